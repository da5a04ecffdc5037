"""How soon a journal line is on twenty screens, and what `ridgeline watch` needs for it.

    .venv/bin/python benchmarks/dashboard.py [--runs 1000] [--viewers 20] [--lines 20]

A study of so many finished runs is made; viewers listen to its events over real connections; every second one more run
ends. Printed is the time from the line on disk to its arrival at each viewer, and the server's memory.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from ridgeline.campaign.assembly import assemble_folder
from ridgeline.campaign.check import check_study
from ridgeline.records.run import Resources
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import RunBegun, event_of

STUDY = """\
version: 1
name: many-runs
question: How soon is a line on the screen?
workload: {kind: command, run: "echo rate {x} {y} {z}", metrics: {rate: {regex: 'rate (.*)'}}}
space: {x: {from: 0, to: 99999}, y: [a, b, c], z: {from: 0.0, to: 1.0, step: 0.01}}
goal: {maximize: rate}
baseline: {x: 0, y: a, z: 0.5}
budget: {trials: 5000, wall: 48h}
search: {sampler: random, sentinel_every: 0}
"""


def one_run(number: int) -> list[dict[str, Any]]:
    point = {"x": number * 7919 % 100000, "y": "abc"[number % 3], "z": number % 100 / 100}
    stage = Stage.BASELINE if number <= 3 else Stage.SEARCH
    if stage is Stage.BASELINE:
        point = {"x": 0, "y": "a", "z": 0.5}
    at = 1_700_000_000.0 + number * 60
    trial = event_of(Trial(number, point, point, stage, "random", "chosen for the benchmark"))
    run = event_of(RunBegun(number, number, 1, f"runs/{number:04d}", Resources()))
    crashed = number % 17 == 0 and stage is Stage.SEARCH
    outcome = {"kind": "oom-run", "reason": "out of memory"} if crashed else {"kind": "ok"}
    ended: dict[str, Any] = {"event": "ended", "run": number, "outcome": outcome}
    ended["ending"] = {"cause": "exited", "started": at, "ended": at + 50, "nodes": ["n1"]}
    if not crashed:
        ended["measurements"] = [["rate", 100 + number * 37 % 101, "GF/s", "stdout", "measured"]]
    return [{"at": at, **event} for event in (trial, run, {"event": "submitted", "run": number, "ticket": "t"}, ended)]


def made(folder: Path, runs: int) -> Path:
    (folder / "many.yaml").write_text(STUDY)
    study = assemble_folder(check_study(folder / "many.yaml"), folder / "many", "many").path
    opened = {
        "at": 1_700_000_000.0,
        "event": "opened",
        "kind": "search",
        "question": {"sampler": "random"},
        "asked": {},
    }
    with (study / "journal.jsonl").open("w") as journal:
        for event in (opened, *(event for number in range(1, runs + 1) for event in one_run(number))):
            journal.write(json.dumps(event) + "\n")
    return study


class Viewer(threading.Thread):
    """Listens as a browser does; notes when each text that is waited for came."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self.came_s: dict[str, float] = {}
        self.ready = threading.Event()
        self._socket = socket.create_connection(("127.0.0.1", port))
        asked = f"GET /study/many/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        self._socket.sendall(asked.encode())
        self.waits_for: list[str] = []

    def run(self) -> None:
        seen = b""
        while chunk := self._socket.recv(1 << 20):
            now_s = time.monotonic()
            if b"event: sections" in chunk:
                self.ready.set()
            seen = (seen + chunk)[-400_000:]
            for text in self.waits_for:
                if text not in self.came_s and text.encode() in seen:
                    self.came_s[text] = now_s


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def ours(study: Path, runs: int, viewers: int, lines: int) -> None:
    command = [sys.executable, "-m", "ridgeline", "watch", str(study), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = urlparse(server.stdout.readline().strip())
        token = parse_qs(address.query)["token"][0]
        watching = [Viewer(address.port or 0, token) for _ in range(viewers)]
        for viewer in watching:
            viewer.start()
        assert all(viewer.ready.wait(120) for viewer in watching)
        time.sleep(3)
        began_s, began_cpu_s = time.monotonic(), cpu_s(server.pid)
        took = [_one_more(study, runs + n, watching) for n in range(1, lines + 1)]
        busy = (cpu_s(server.pid) - began_cpu_s) / (time.monotonic() - began_s)
        all_s = sorted(each for line in took for each in line)
        print(f"{runs} runs, {viewers} viewers, {lines} journal lines, one each second")
        print(
            f"  line to screen   median {statistics.median(all_s):.2f} s   95% {all_s[int(len(all_s) * 0.95)]:.2f} s",
            end="",
        )
        print(f"   worst {all_s[-1]:.2f} s")
        print(f"  memory at most   {memory_mb(server.pid):.0f} MB")
        print(f"  of one core      {busy * 100:.0f}%")
    finally:
        server.terminate()
        server.wait(30)


def _one_more(study: Path, number: int, watching: list[Viewer]) -> list[float]:
    text = f"<td>#{number}<td>"  # its row in the table of latest runs
    for viewer in watching:
        viewer.waits_for.append(text)
    with (study / "journal.jsonl").open("a") as journal:
        journal.write("".join(json.dumps(event) + "\n" for event in one_run(number)))
    written_s = time.monotonic()
    deadline = written_s + 60
    while any(text not in viewer.came_s for viewer in watching) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(max(0.0, written_s + 1 - time.monotonic()))
    return [viewer.came_s.get(text, deadline) - written_s for viewer in watching]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--runs", type=int, default=1000)
    asked.add_argument("--viewers", type=int, default=20)
    asked.add_argument("--lines", type=int, default=20)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="ridgeline-dashboard-") as folder:
        study = made(Path(folder), given.runs)
        ours(study, given.runs, given.viewers, given.lines)


if __name__ == "__main__":
    main()
