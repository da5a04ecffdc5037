"""What the router adds, and what happens when a server behind it is lost.

    python benchmarks/deploy/router.py through|kill|hang|up [--router smg --python .engines/smg/bin/python]

- through: TTFT of the same requests to the same server, straight and through the router, in turn;
- kill: one of two servers dies at 80% of what both bear, without and with `service keep`: what is lost, how long;
- hang: one of two servers stops making tokens and goes on saying 200 at /health, `service keep` watches;
- up: `service up` of two servers and their router, beside the same servers and router started by hand.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from overload import limits_of
from service import TRAFFIC, Setup, arguments, load, served, setup_of

from ridgeline.serving.service import probe
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.router_admin import RouterAdmin
from ridgeline.serving.traffic.requests import RequestRecord, Spread
from ridgeline.study.journal import read_events

SMALL = {"units": "{replicas: 1, settings: {tp: 1}}", "model": "llama-8b", "gpu": "h200"}


def through(setup: Setup, rounds: int) -> None:
    first: dict[str, list[float]] = {"straight": [], "through": []}
    with served(replace(setup, **SMALL).text()) as (operator, url):  # type: ignore[arg-type]
        addresses = {"straight": operator.folder.url(operator.servers[0]), "through": url}
        for turn in range(rounds):
            for name, address in addresses.items():
                result = load(address, "fixed:200:20", 20.0, 10.0, burstiness=0.0, seed=turn)
                first[name] += [t for r in result.records if r.ok and (t := r.ttft_s) is not None]
                if result.void:
                    print(f"void: {'; '.join(result.fidelity.why)}")
    spreads = {name: Spread.of(values) for name, values in first.items()}
    for name, spread in spreads.items():
        assert spread is not None
        print(f"{name:9} ttft p50 {spread.p50:6.2f} ms  p99 {spread.p99:6.2f} ms  ({len(first[name])} requests)")
    added = {rank: getattr(spreads["through"], rank) - getattr(spreads["straight"], rank) for rank in ("p50", "p99")}
    print(f"added by the router: p50 {added['p50']:.2f} ms, p99 {added['p99']:.2f} ms")


@contextlib.contextmanager
def strike(operator: Operator, name: str, kind: str, after_s: float) -> Iterator[list[float]]:
    """A fault after so long; the list then holds when, on the wall's clock."""
    at: list[float] = []

    def act() -> None:
        at.append(time.time())
        with contextlib.suppress(OSError):
            probe.ask(f"{operator.folder.url(operator.member(name))}/fault", {"kind": kind})

    timer = threading.Timer(after_s, act)
    timer.start()
    try:
        yield at
    finally:
        timer.cancel()
        timer.join()


def tell(records: Sequence[RequestRecord], struck_s: float) -> None:
    failed = [r for r in records if not r.ok]
    unbegun = [r for r in failed if r.first_token_s is None]
    print(
        f"{len(records)} requests, {len(unbegun)} lost before their first token, {len(failed) - len(unbegun)} cut off"
    )
    if failed:
        last_s = max(r.end_s or r.sent_s for r in failed)
        why = dict(Counter(f"{r.status} {r.error[:70]}".strip() for r in failed))
        print(f"the last of them {last_s - struck_s:.1f} s after the fault: {why}")
    waits = [(r.sent_s - struck_s, r.ttft_s) for r in records if r.ttft_s is not None and r.sent_s > struck_s - 5]
    late = [sent_s for sent_s, ttft_s in waits if ttft_s > 2.0]
    print(f"requests later than the SLO's 2 s were sent until {max(late, default=0.0):.1f} s after the fault")


@contextlib.contextmanager
def keeping(operator: Operator) -> Iterator[None]:
    file = operator.folder.root.parent / "service.yaml"
    words = [sys.executable, "-m", "ridgeline", "service", "keep", str(file), "--folder", str(operator.folder.root)]
    keeper = subprocess.Popen(words)
    try:
        yield
    finally:
        keeper.terminate()
        keeper.wait()


def kill(setup: Setup, seconds: float) -> None:
    rate_s = 0.8 * limits_of(setup.text(), TRAFFIC).requests_s
    for watched in (False, True):
        with served(setup.text("power_of_two")) as (operator, url):
            keeper = keeping(operator) if watched else contextlib.nullcontext()
            began_s = time.time()
            with keeper, strike(operator, "server-1", "crash", seconds / 3) as at:
                result = load(url, TRAFFIC, rate_s, seconds)
            by = "keep watches" if watched else "nobody mends it"
            print(f"{rate_s:.1f} requests/s, server-1 killed after {at[0] - began_s:.0f} s, {by}:")
            tell(result.records, at[0] - began_s)


def hang(setup: Setup, seconds: float) -> None:
    rate_s = 0.4 * limits_of(setup.text(), TRAFFIC).requests_s
    with served(setup.text("power_of_two")) as (operator, url):
        began_s = time.time()
        with keeping(operator), strike(operator, "server-1", "hang", seconds / 4) as at:
            result = load(url, TRAFFIC, rate_s, seconds)
        tell(result.records, at[0] - began_s)
        for event in read_events(operator.folder.root / "journal.jsonl"):
            if event.get("member") == "server-1" and event["at"] > at[0]:
                more = event.get("evidence", "")
                print(f"{event['at'] - at[0]:6.1f} s after the fault: {event['event']} {more}")
        print(f"the router lists {sorted(RouterAdmin(url, '').workers())}")


def up(setup: Setup, rounds: int) -> None:
    for _ in range(rounds):
        print(f"by hand: servers {by_hand(setup):.2f} s")
        began_s = time.monotonic()
        with served(setup.text()) as (operator, _):
            took_s = time.monotonic() - began_s
            events = {
                (e["event"], e.get("member")): e["at"] for e in read_events(operator.folder.root / "journal.jsonl")
            }
        start = events["planned", "server-0"]
        ready = max(events["ready", "server-0"], events["ready", "server-1"]) - start
        router = events["ready", "router"] - events["planned", "router"]
        print(f"service up: {took_s:.2f} s; servers ready after {ready:.2f} s, the router {router:.2f} s later")


def by_hand(setup: Setup) -> float:
    words = [
        sys.executable,
        "-m",
        "ridgeline",
        "twin",
        "serve",
        "--model",
        setup.model,
        "--gpu",
        setup.gpu,
        "--tp",
        "4",
    ]
    words += ["--mem-fraction", "0.52", "--port"]
    began_s = time.monotonic()
    ports = [setup.port + 20, setup.port + 21]
    servers = [subprocess.Popen([*words, str(port)], stdout=subprocess.DEVNULL) for port in ports]
    try:
        while not all(probe.is_healthy(f"http://127.0.0.1:{port}") for port in ports):
            time.sleep(0.02)
        return time.monotonic() - began_s
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def main() -> None:
    ask = arguments(__doc__)
    ask.add_argument("what", choices=("through", "kill", "hang", "up"))
    ask.add_argument("--seconds", type=float, default=60.0)
    ask.add_argument("--rounds", type=int, default=3)
    chosen = ask.parse_args()
    setup = setup_of(chosen)
    if chosen.what in ("through", "up"):
        {"through": through, "up": up}[chosen.what](setup, chosen.rounds)
    else:
        {"kill": kill, "hang": hang}[chosen.what](setup, chosen.seconds)


if __name__ == "__main__":
    main()
