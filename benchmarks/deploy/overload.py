"""Goodput of a service that is offered more than it can serve, with the limits of `service rehearse` and without any.

    python benchmarks/deploy/overload.py --router smg --python .engines/smg/bin/python [--seconds 45]

Two servers of the twin behind the real router. Loads are multiples of what the twin says the servers bear within the
SLO. Goodput counts requests that kept every limit of the SLO, of those sent in the last two thirds of each run: what
comes first meets empty servers and says nothing of a service under steady overload.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service import TRAFFIC, arguments, kept_s, load, served, setup_of

from ridgeline.serving.service.admission import AdmissionLimits, admission_of
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.probe import metrics
from ridgeline.serving.service.service import Service

LOADS = (0.8, 0.9, 1.0, 1.5, 3.0)


def service_of(text: str) -> Service:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "service.yaml"
        file.write_text(text)
        return load_service(file)


def limits_of(text: str, traffic: str) -> AdmissionLimits:
    return admission_of(service_of(text), traffic)


@contextmanager
def watched(operator: Operator) -> Iterator[dict[str, float]]:
    """The most requests on the servers at once, the unevenness between them, and how late the twin's tokens were."""
    over, seen = threading.Event(), {"at once": 0.0, "apart": 0.0, "behind s": 0.0}

    def look() -> None:
        while not over.wait(1.0):
            found = [metrics(operator.folder.url(server)) for server in operator.servers]
            on = [f.get("sglang:num_running_reqs", 0.0) + f.get("sglang:num_queue_reqs", 0.0) for f in found]
            late = max(f.get("ridgeline:twin_behind_seconds", 0.0) for f in found)
            now = {"at once": sum(on), "apart": max(on) - min(on), "behind s": late}
            seen.update({name: max(seen[name], value) for name, value in now.items()})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def main() -> None:
    ask = arguments(__doc__)
    ask.add_argument("--traffic", default=TRAFFIC)
    ask.add_argument("--seconds", type=float, default=45.0)
    ask.add_argument("--loads", default=",".join(map(str, LOADS)))
    ask.add_argument("--router-alone", action="store_true", help="no limits of the servers' own behind the router's")
    ask.add_argument("--policy", default="power_of_two")
    ask.add_argument("--more", default="", help="further words of the router's command line")
    ask.add_argument("--only", choices=("limits", "none"))
    chosen = ask.parse_args()
    setup = setup_of(chosen)
    limits = limits_of(setup.text(), chosen.traffic)
    print(limits.reason)
    keys = {name: value for name, value in limits.for_router(chosen.router).items() if value is not None}
    told = "".join(f", {name}: {value}" for name, value in keys.items())
    print(f"router: {json.dumps(keys)}", flush=True)
    print(
        f"{'':8} {'offered/s':>9} {'goodput/s':>9} {'of peak':>8} {'ttft p95':>9} {'itl p95':>8}  refused", flush=True
    )
    for name, words in (("none", ""), ("limits", told)):
        if chosen.only and chosen.only != name:
            continue
        more = f", arguments: {json.dumps(chosen.more.split())}" if chosen.more else ""
        text = setup.text(chosen.policy, f"{words}{more}")
        if words and not chosen.router_alone:
            # of two servers: each refuses by itself what is over its half
            running, waiting = limits.most_running // 2, max(1, limits.most_waiting // 2)
            own = f"max_running_requests: {running}, max_queued_requests: {waiting}"
            text = text.replace("{tp: 4,", f"{{tp: 4, {own},")
        peak = 0.0
        with served(text) as (operator, url):
            for share in map(float, chosen.loads.split(",")):
                rate_s = share * limits.requests_s
                with watched(operator) as seen:
                    result = load(url, chosen.traffic, rate_s, chosen.seconds)
                good_s, summary = kept_s(result.records, chosen.seconds), result.summary
                peak = max(peak, good_s)
                first = f"{summary.ttft_ms.p95:,.0f} ms" if summary.ttft_ms else "-"
                gap = f"{summary.itl_ms.p95:.1f} ms" if summary.itl_ms else "-"
                refused = Counter(f"{r.status} {r.error[:60]}" for r in result.records if not r.ok)
                void = " void: " + "; ".join(result.fidelity.why) if result.void else ""
                print(
                    f"{name:8} {rate_s:9.2f} {good_s:9.2f} {good_s / peak:8.0%} {first:>9} {gap:>8}  "
                    f"{dict(refused)} {json.dumps({n: round(v, 2) for n, v in seen.items()})}{void}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
