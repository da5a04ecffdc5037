"""How many token events `twin serve` sends in a second of CPU time, and how far its figures are from `twin simulate`'s.

    python benchmarks/deploy/serve_twin.py [--rate 100] [--requests 1500] [--speed 1]

The server is loaded by `ridgeline bench` from another process. Its CPU time is read from /proc before and after, so the
first figure hardly depends on what else this machine does; the comparison does, and says so when the run was void. On a
machine that others use, `--speed 0.1` lets the server's time pass slowly: what it is late by weighs a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TRAFFIC = ["--traffic", "fixed:200:200"]
TWIN = ["--model", "llama-8b", "--gpu", "h200", "--tp", "1"]


def ridgeline(*words: str) -> list[str]:
    return [sys.executable, "-m", "ridgeline", *words]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ready(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{url} did not come up")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--rate", default="100")
    ask.add_argument("--requests", default="1500")
    ask.add_argument("--speed", type=float, default=1.0)
    chosen = ask.parse_args()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    load = [*TRAFFIC, "--rate", chosen.rate, "--requests", chosen.requests, "--json"]
    slowly = [*TRAFFIC, "--rate", f"{float(chosen.rate) * chosen.speed:g}", "--requests", chosen.requests, "--json"]
    words = ridgeline("twin", "serve", *TWIN, "--port", port, "--speed", f"{chosen.speed:g}")
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        ready(url)
        before_s, began_s = cpu_s(server.pid), time.monotonic()
        run = subprocess.run(ridgeline("bench", url, *slowly), capture_output=True, text=True, check=False)
        used_s, took_s = cpu_s(server.pid) - before_s, time.monotonic() - began_s
    finally:
        server.terminate()
        server.wait()
    served = json.loads(run.stdout)
    said = json.loads(
        subprocess.run(
            ridgeline("twin", "simulate", *TWIN, "--gpus-per-node", "1", *load),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    events = int(chosen.requests) * 200
    print(
        f"{events:,} token events in {took_s:.1f} s, {used_s:.2f} CPU-s of the server: {events / used_s:,.0f} a CPU-s"
    )
    print(f"run void: {served.get('void') or 'no'}")
    print(f"{'':14} {'served':>10} {'simulate':>10} {'ratio':>7}")
    for name, rank in (
        ("ttft", "p50"),
        ("ttft", "p95"),
        ("tpot", "p50"),
        ("tpot", "p95"),
        ("e2e", "p50"),
        ("e2e", "p95"),
    ):
        ours, theirs = served[f"{name}_ms"][rank] * chosen.speed, said[f"{name}_ms"][rank]
        print(f"{f'{name} {rank} ms':14} {ours:10.2f} {theirs:10.2f} {ours / theirs:7.3f}")


if __name__ == "__main__":
    main()
