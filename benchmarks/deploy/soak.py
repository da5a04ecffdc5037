"""A service that is left alone: real vLLM-CPU replicas, the default router, `service keep`, a fault every few minutes.

    python benchmarks/deploy/soak.py --minutes 120 [--every 240] [--out soak] [--faults kill-replica,stop-engine]

Needs scripts/engines (vllm-cpu) and scripts/engines smg. A steady load runs through the router all the time; the faults
come in turn. Of each the table says when `keep` acted on it, when the service was whole again, how many requests failed
from ten seconds before it until then, and whether a server was touched that had nothing. Every few seconds the command
line of each server's process is compared with what was accepted. The engine's own start is measured at `up`.

`table.md` in --out is written anew every minute and after every fault; `log.jsonl` has every minute, fault and failed
request: a run that is cut is worth what it holds by then. Ctrl-C and SIGTERM end it, and leave nothing running. Exit
code 1: a fault was missed, a healthy server was touched, something ran that was not accepted, or a client was told 404.
A disk is filled only where --out is on a small file system: mount -t tmpfs -o size=1g tmpfs DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ridgeline.errors import StoreError
from ridgeline.records.launch import OnNode
from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import Member
from ridgeline.serving.service.operate import Operator
from ridgeline.study.journal import read_events
from tests.free_ports import free_row
from tests.journeys.test_deploy_real import engine_of, pids_of
from tests.journeys.vllm_engine import ENGINE, ENV, HOME, READY_LIMIT_S, SMALL, missing, write_model

WHOLE_S = 900.0  # the longest that a fault is waited for
ACTS = ("mend", "leaving", "replace", "ended", "planned")  # what keep's journal says when it acts on a member
CONTEXT = 16384
# `ridgeline service keep` whose wall clock is off by what a file says at the time: only root could set the machine's
JUMPING = """
import pathlib, sys, time
offset, real = pathlib.Path(sys.argv.pop(1)), time.time
def shifted():
    try:
        return real() + float(offset.read_text() or 0)
    except (OSError, ValueError):
        return real()
time.time = shifted
sys.argv[0] = "ridgeline"
from ridgeline.cli.main import main
main()
"""


def listening(port: int) -> list[int]:
    """Who listens there: a router that names itself anew has no arguments to know it by."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
    return found


@dataclass
class Struck:
    """One fault: when, on whom (empty: on nobody, so nobody may be touched), and what became of it.

    `broken` says why the fault itself could not be made.
    """

    kind: str
    member: str
    at_s: float
    broken: str = ""
    found_s: float | None = None
    whole_s: float | None = None
    touched: list[str] = field(default_factory=list)
    failed: int = 0
    sent: int = 0

    @property
    def members(self) -> list[str]:
        return self.member.split(", ") if self.member else []

    @property
    def good(self) -> bool:
        return not self.broken and self.whole_s is not None and not self.touched

    def row(self) -> str:
        if self.broken:
            return f"| {self.kind} | {self.member or '-'} | could not be made: {self.broken} | | | |"
        shown = [("-" if s is None else f"{s:.1f} s") for s in (self.found_s, self.whole_s)]
        others = ", ".join(self.touched) or "none"
        cells = (self.kind, self.member or "-", *shown, f"{self.failed} of {self.sent}", others)
        return f"| {' | '.join(cells)} |"


class Soak:
    def __init__(self, out: Path, rate_s: float) -> None:
        self.out, self.rate_s = out, rate_s
        out.mkdir(parents=True, exist_ok=True)
        self.model = write_model(
            out / "tiny", context_tokens=CONTEXT, shape=SMALL | {"max_position_embeddings": CONTEXT}
        )
        self.file = out / "service.yaml"
        self.file.write_text(self._text())
        self.operator = Operator(load_service(self.file), out / "service", lambda line: None)
        self.log = (out / "log.jsonl").open("w", buffering=1)
        self.over = threading.Event()
        self.records: list[tuple[float, str]] = []  # when each request was sent, and how it ended
        self.faults: list[Struck] = []
        self.start_s, self.began_s, self.end_s = 0.0, time.monotonic(), float("inf")
        self._struck_s = 0.0  # when the fault that is struck begins
        self._keeper: subprocess.Popen[bytes] | None = None
        self.checked, self.unlike = 0, list[str]()  # looks at a server's process, and those that were not as accepted
        (out / "faults").mkdir()
        self.offset = out / "clock-offset"  # seconds that the keeper's clock is ahead
        self.offset.write_text("0")

    def _text(self) -> str:
        own = {"SOAK_FAULTS": str(self.out / "faults"), "PYTHONPATH": str(Path(__file__).parent)}
        variables = ", ".join(f'{name}: "{value}"' for name, value in (ENV | own).items())
        settings = f"max_model_len: {CONTEXT}, max_num_seqs: 4, load_format: dummy, dtype: float32, enforce_eager: true"
        return (
            f"version: 1\nmodel: {self.model}\nserved_name: tiny\n"
            f"engine: {{kind: vllm, python: {ENGINE / 'bin' / 'python'}}}\nfirst_port: {free_row(8)}\n"
            f"units:\n  - {{replicas: 2, settings: {{{settings}}}, env: {{{variables}}},\n"
            "     arguments: [--middleware, soak_middleware.Faulty]}\n"
            f"router: {{policy: round_robin, port: {free_row(2)}, python: {HOME / 'smg' / 'bin' / 'python'}}}\n"
        )

    def note(self, **line: Any) -> None:
        self.log.write(json.dumps({"at": round(time.time(), 3), **line}) + "\n")

    # the service, its keeper and its load

    def up(self) -> None:
        began_s = time.monotonic()
        self.operator.up(READY_LIMIT_S)
        self.start_s = time.monotonic() - began_s
        self.keep()

    def keep(self) -> None:
        """As a unit of systemd has it: started again whenever it ends."""
        words = [sys.executable, "-c", JUMPING, str(self.offset), "service", "keep", str(self.file)]
        words += ["--folder", str(self.out / "service")]
        said = (self.out / "keep.log").open("ab")
        self._keeper = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT)

    def mind_the_keeper(self) -> None:
        while not self.over.wait(1.0):
            if self._keeper is not None and self._keeper.poll() is not None:
                time.sleep(5)  # RestartSec of the unit
                self.keep()

    def load(self) -> None:
        """So many requests a second, each on a thread of its own: none waits for another."""
        number = 0
        while not self.over.wait(1 / self.rate_s):
            number += 1
            threading.Thread(target=self._request, args=(number,), daemon=True).start()

    def _request(self, number: int) -> None:
        sent_s = time.time()
        body = {"model": "tiny", "prompt": f"request {number}", "max_tokens": 8}
        try:
            how = probe.why_no_token(probe.ask(f"{self.url}/v1/completions", body, timeout_s=120)) or "ok"
        except urllib.error.HTTPError as error:
            how = str(error.code)
        except OSError as error:
            how = type(error).__name__
        self.records.append((sent_s, how))
        if how != "ok":
            self.note(request=number, sent=round(sent_s, 3), ended=how)

    def check_what_runs(self) -> None:
        """Each word of the command that was accepted must be on the command line of the process; not in mid-restart."""
        looks = 0
        while not self.over.wait(5.0):
            looks += 1
            with contextlib.suppress(StoreError, OSError):
                operator = Operator(None, self.out / "service")
                folder = operator.folder
                for member in operator.servers:
                    if member.name in folder.moving or not folder.serves(member.name):
                        continue
                    for pid in pids_of(member.port):
                        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                        lacks = [w for w in member.argv[1:] if not isinstance(w, OnNode) and w not in words]
                        self.checked += 1
                        if lacks and folder.generation(member.name) == self._generations().get(member.name):
                            self.unlike.append(f"{member.name}: {' '.join(words)} lacks {' '.join(lacks)}")
                            self.note(unlike=self.unlike[-1])
            if looks % 12 == 0:
                ended = Counter(how for _, how in self.records)
                self.note(minute=looks // 12, looks=self.checked, unlike=len(self.unlike), requests=dict(ended))
                self.write_table()

    @property
    def url(self) -> str:
        return self.operator.folder.url(self.operator.front)

    # faults

    def strike(self, kind: str) -> None:
        victim = random.choice(self.operator.servers)
        act: Callable[[], str] = {
            "kill-replica": lambda: self._signal(victim.name, pids_of(victim.port), signal.SIGKILL),
            "stop-api": lambda: self._signal(victim.name, pids_of(victim.port), signal.SIGSTOP),
            "stop-engine": lambda: self._signal(victim.name, [engine_of(victim.port)], signal.SIGSTOP),
            "kill-router": lambda: self._signal("router", listening(self._router_port()), signal.SIGKILL),
            "kill-keeper": self._kill_keeper,
            "long-prompts": self._long_prompts,
            "bad-requests": self._bad_requests,
            "disk-full": lambda: self._disk_full(victim),
            "clock-jump": self._clock_jump,
            "429-then-hang": lambda: self._refused_then_stopped(victim),
            "empty-choices": lambda: self._answers_as(victim, "empty"),
            "slow-replica": lambda: self._slowed(victim),
            "mixed-prompts": self._mixed_prompts,
            "kill-both": self._kill_both,
            "edited-rolled": self._edited_and_rolled,
            "canary-rejected": self._canary_rejected,
        }[kind]
        fault = Struck(kind, "", time.time())
        before = self._generations()
        self.note(fault=kind)
        self._struck_s = fault.at_s
        try:
            fault.member = act()
        except (AssertionError, OSError, LookupError) as error:
            fault.broken = str(error) or type(error).__name__
        fault.at_s = self._struck_s
        before = before if fault.member or kind not in BY_HAND else self._generations()
        self.faults.append(fault)
        self._watch(fault, before)
        self.write_table()
        print(fault.row(), flush=True)

    def _watch(self, fault: Struck, before: dict[str, int]) -> None:
        """Until the service is whole again: everybody of it makes tokens, the victim in a later generation."""
        deadline = fault.at_s + WHOLE_S
        while time.time() < deadline and time.monotonic() < self.end_s and not self.over.is_set():
            time.sleep(1.0)
            if fault.member and fault.found_s is None:
                acts = [
                    e for e in self._events() if e["at"] >= fault.at_s and e["event"] in (*ACTS, "ended", "planned")
                ]
                found = {name: [e["at"] for e in acts if e.get("member") == name] for name in fault.members}
                if all(found.values()):
                    fault.found_s = max(times[0] for times in found.values()) - fault.at_s
            now = self._generations()
            mended = all(now.get(name, 0) > before.get(name, 0) for name in fault.members)
            quiet = fault.member or time.time() - fault.at_s > 60  # of a fault on nobody: time to do harm
            if mended and quiet and self._whole():
                fault.whole_s = time.time() - fault.at_s
                break
        now = self._generations()
        fault.touched = [n for n, g in now.items() if g > before.get(n, 0) and n not in fault.members]
        window = [how for sent_s, how in self.records if sent_s >= fault.at_s - 10]
        fault.sent, fault.failed = len(window), sum(how != "ok" for how in window)
        self.note(ended=fault.kind, **vars(fault) | {"kind": None})

    def _whole(self) -> bool:
        self.operator.refresh()
        states = self.operator.status()
        return all(state.state == "ready" for state in states) and self._answers()

    def _answers(self) -> bool:
        try:
            probe.ask(f"{self.url}/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 1}, timeout_s=30)
        except OSError:
            return False
        return True

    def _events(self) -> list[Any]:
        return list(read_events(self.out / "service" / "journal.jsonl"))

    def _generations(self) -> dict[str, int]:
        return {e["member"]: e["generation"] for e in self._events() if e["event"] == "planned"}

    def _signal(self, member: str, pids: list[int], number: signal.Signals) -> str:
        assert pids, f"nothing of {member} runs"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return member

    def _kill_both(self) -> str:
        """Nobody is left behind the router: clients must be told to come back, not that there is no such model."""
        for member in self.operator.servers:
            self._signal(member.name, pids_of(member.port), signal.SIGKILL)
        return ", ".join(member.name for member in self.operator.servers)

    def _router_port(self) -> int:
        assert self.operator.router is not None
        return self.operator.router.port

    def _kill_keeper(self) -> str:
        assert self._keeper is not None
        self._keeper.kill()
        return ""

    def _long_prompts(self) -> str:
        def send() -> None:
            body = {"model": "tiny", "prompt": "".join(random.choices("0123456789!#$%&", k=8000)), "max_tokens": 2}
            with contextlib.suppress(OSError):
                probe.ask(f"{self.url}/v1/completions", body, timeout_s=READY_LIMIT_S)

        for _ in range(4):
            threading.Thread(target=send, daemon=True).start()
        return ""

    def _bad_requests(self) -> str:
        for number in range(50):
            wrong = {"model": "nobody"} if number % 2 else {"model": "tiny", "max_tokens": 10**6}
            with contextlib.suppress(OSError):
                probe.ask(f"{self.url}/v1/completions", {"prompt": "hi", "max_tokens": 1, **wrong}, timeout_s=30)
        return ""

    def _answers_as(self, victim: Member, kind: str) -> str:
        (self.out / "faults" / str(victim.port)).write_text(f"{kind} {pids_of(victim.port)[0]}")
        return victim.name

    def _refused_then_stopped(self, victim: Member) -> str:
        self._answers_as(victim, "429")
        time.sleep(12)
        (self.out / "faults" / str(victim.port)).unlink()
        self._struck_s = time.time()
        return self._signal(victim.name, [engine_of(victim.port)], signal.SIGSTOP)

    def _slowed(self, victim: Member) -> str:
        """Its engine runs for a tenth of the time, until it is ended."""
        engine = engine_of(victim.port)

        def stutter() -> None:
            with contextlib.suppress(ProcessLookupError):
                while not self.over.is_set():
                    for number, seconds in ((signal.SIGSTOP, 0.45), (signal.SIGCONT, 0.05)):
                        os.kill(engine, number)
                        time.sleep(seconds)

        threading.Thread(target=stutter, daemon=True).start()
        return victim.name

    def _mixed_prompts(self) -> str:
        """From a word to the model's limit, for a minute."""

        def send(tokens: int) -> None:
            body = {"model": "tiny", "prompt": random.choices(range(100, 1000), k=tokens), "max_tokens": 20}
            with contextlib.suppress(OSError):
                probe.ask(f"{self.url}/v1/completions", body, timeout_s=READY_LIMIT_S)

        for tokens in (10, 4000, 200, CONTEXT - 100, 30, 8000, 8000, 1000):
            threading.Thread(target=send, args=(tokens,), daemon=True).start()
            time.sleep(random.uniform(1, 8))
        return ""

    def _edit(self) -> None:
        text = self.file.read_text()
        four = "max_num_seqs: 4" in text
        self.file.write_text(text.replace(f"max_num_seqs: {4 if four else 5}", f"max_num_seqs: {5 if four else 4}"))

    def _deploy(self, *words: str) -> int:
        said = (self.out / "deploy.log").open("ab")
        argv = [sys.executable, "-m", "ridgeline", "service", "restart", str(self.file), "--rolling", *words]
        argv += ["--folder", str(self.out / "service")]
        return subprocess.run(argv, stdout=said, stderr=subprocess.STDOUT, check=False).returncode

    def _edited_and_rolled(self) -> str:
        self._edit()
        assert self._deploy() == 0
        self._struck_s = time.time()
        return self._kill_keeper()

    def _canary_rejected(self) -> str:
        """Too little load to show anything: it goes back, and the file keeps what was rejected."""
        self._edit()
        assert self._deploy("--canary", "1") != 0
        self._struck_s = time.time()
        return self._kill_keeper()

    def _disk_full(self, victim: Member) -> str:
        """The file system of --out takes no more bytes for twenty seconds, and a replica dies while it is full."""
        rest = os.statvfs(self.out)
        assert rest.f_bavail * rest.f_frsize < 2**31, "put --out on a small file system: mount -t tmpfs -o size=1g ..."
        filler = self.out / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 2**20)
        member = self._signal(victim.name, pids_of(victim.port), signal.SIGKILL)
        time.sleep(20)
        filler.unlink()
        return member

    def _clock_jump(self) -> str:
        """An hour ahead, then two hours back, then right again; the keeper alone sees it, and nobody may be touched."""
        for offset_s in (3600, -3600, 0):
            self.offset.write_text(str(offset_s))
            time.sleep(10)
        return ""

    # the end

    def down(self) -> list[int]:
        """What is left of it afterwards."""
        self.over.set()
        if self._keeper is not None:
            self._keeper.terminate()
            self._keeper.wait()
        self.operator.refresh()
        self.operator.down()
        return [pid for member in self.operator.members for pid in pids_of(member.port)]

    @property
    def told_404(self) -> int:
        return sum(how == "404" for _, how in self.records)

    def write_table(self, left: list[int] | None = None) -> str:
        """What is known by now; `left` is what still ran after the end."""
        ended = Counter(how for _, how in self.records)
        minutes, how_often = (time.monotonic() - self.began_s) / 60, [f"{n} {how}" for how, n in ended.most_common()]
        head = f"{minutes:.0f} min; engine's own start with the router: {self.start_s:.0f} s"
        lines = [f"{head}; {len(self.records)} requests, {', '.join(how_often)}", ""]
        lines += [
            "| fault | on | found | whole again | requests failed | others touched |",
            "|---|---|---|---|---|---|",
        ]
        lines += [fault.row() for fault in self.faults]
        lines += ["", f"what ran was as accepted at {self.checked - len(self.unlike)} of {self.checked} looks"]
        lines += [f"left behind: {left or 'nothing'}"] if left is not None else ["the run was cut here"]
        text = "\n".join([*lines, ""])
        partial = self.out / "table.partial"
        with contextlib.suppress(OSError):  # the disk may be full, by a fault of ours
            partial.write_text(text)
            partial.replace(self.out / "table.md")
        return text


FAULTS = (
    "kill-replica", "stop-engine", "long-prompts", "kill-router", "bad-requests", "stop-api", "kill-keeper",
    "clock-jump", "429-then-hang", "empty-choices", "slow-replica", "mixed-prompts", "edited-rolled", "canary-rejected",
    "kill-both", "disk-full",
)  # fmt: skip
BY_HAND = ("edited-rolled", "canary-rejected")  # whose own restarts are no harm; what comes after them would be


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--minutes", type=float, default=120.0)
    ask.add_argument("--every", type=float, default=240.0, help="seconds between two faults")
    ask.add_argument("--rate", type=float, default=1.0, help="requests a second")
    ask.add_argument("--out", type=Path, default=Path("soak"))
    ask.add_argument("--faults", default="", help=f"of {', '.join(FAULTS)}; default: all that can be made here")
    ask.add_argument("--seed", type=int, default=1)
    asked = ask.parse_args()
    if why := missing() or missing(HOME / "smg"):
        sys.exit(why)
    random.seed(asked.seed)
    asked.out.mkdir(parents=True, exist_ok=True)
    rest = os.statvfs(asked.out)
    small = rest.f_bavail * rest.f_frsize < 2**31
    kinds = asked.faults.split(",") if asked.faults else [kind for kind in FAULTS if small or kind != "disk-full"]
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        sys.exit(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    soak = Soak(asked.out.absolute(), asked.rate)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        soak.up()
        soak.end_s = time.monotonic() + 60 * asked.minutes
        print(f"up after {soak.start_s:.0f} s", flush=True)
        for beside in (soak.load, soak.mind_the_keeper, soak.check_what_runs):
            threading.Thread(target=beside, daemon=True).start()
        number = 0
        while time.monotonic() + asked.every < soak.end_s:
            next_s = time.monotonic() + asked.every
            soak.over.wait(min(30.0, asked.every))
            soak.strike(kinds[number % len(kinds)])
            number += 1
            soak.over.wait(max(0.0, next_s - time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        left = soak.down()
        print(soak.write_table(left), flush=True)
    bad = left or soak.unlike or soak.told_404 or [fault for fault in soak.faults if not fault.good]
    sys.exit(1 if bad or not soak.faults else 0)


if __name__ == "__main__":
    main()
