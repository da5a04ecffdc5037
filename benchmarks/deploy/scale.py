"""How soon a doubled load gets servers, and what scaling costs and keeps beside numbers of servers that stay.

    python benchmarks/deploy/scale.py [--trace mooncake-conversation.jsonl]

In virtual time, on the twin, by the rules that `keep` follows. Without a trace: Poisson arrivals of ShareGPT-like
lengths. With one: its own times, doubled in its middle. Exit code 1: a doubled load was not answered within 30 s, or
servers were added and removed in turn while the load stayed the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.rehearsed_scaling import ScaledTraffic, rehearse_scaling
from ridgeline.serving.verbs.rehearse import scaling_text

FILE = """\
version: 1
model: llama-70b
engine: {kind: sglang, gpu: h100}
units:
  - {replicas: SERVERS, gpus: 4, settings: {tp: 4}}
router: {kind: smg}
slo: {ttft_p95_ms: 2000, tpot_p95_ms: 60}
scale: {both: {least: 2, most: 12, running: RUNNING}}
"""
START_S, LIMIT_S = 120.0, 30.0


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--trace", help="a recorded trace with times")
    ask.add_argument("--running", type=float, default=24.0, help="requests on each server: the target")
    ask.add_argument("--double-at", type=float, default=30.0, help="minutes")
    asked = ask.parse_args()
    good = True
    loads = (
        [ScaledTraffic(asked.trace, double_at_s=60 * asked.double_at)]
        if asked.trace
        else [ScaledTraffic("sharegpt", rate, 2700.0, 900.0, seed) for rate, seed in ((8.0, 1), (16.0, 2))]
    )
    for sent in loads:
        servers = 2 if asked.trace else max(2, round((sent.rate_s or 0) / 5))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "service.yaml"
            file.write_text(FILE.replace("SERVERS", str(servers)).replace("RUNNING", f"{asked.running:g}"))
            found = rehearse_scaling(load_service(file), sent, START_S, datetime(2026, 11, 16, 9))
        rate = f", {sent.rate_s:g} requests/s" if sent.rate_s else ""
        print(f"{asked.trace or 'sharegpt'}{rate}, doubled after {(sent.double_at_s or 0) / 60:g} min")
        print(f"{scaling_text(found, START_S)}\n", flush=True)
        good &= found.first_up_s is not None and found.first_up_s <= LIMIT_S
        good &= bool(asked.trace) or found.scaled.turns == 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
