"""Ridgeline finds the fastest correct setting of a cluster program, in the fewest node-hours, with proof."""

__version__ = "0.2.0"
