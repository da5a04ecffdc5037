"""What a simulated site and its jobs exchange: jobs take no real time, these carry the pretended one."""

from __future__ import annotations

# The job's side: seconds it would have taken, as text, in its run folder. Without this file the real time counts.
TOOK_FILE = "took_s"

# The site's side, in the job's environment.
NODES_ENV = "RIDGELINE_NODES"  # names of the nodes, with spaces between
SPEED_ENV = "RIDGELINE_SPEED"  # speed of these nodes in this run; 1 is what the program would expect
STOPS_AT_ENV = "RIDGELINE_STOPS_AT"  # share of the run after which nothing more comes; only where a node dies or hangs
