"""A deployment file of twin servers behind a real router, for the benchmarks beside this one."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ridgeline.serving.load.bench import BenchResult, bench
from ridgeline.serving.load.session import BenchOptions, plan_from
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.traffic.requests import RequestRecord, Slo

READY_S = 180.0
# About 12 requests/s at the edge, some 1,800 tokens a second: two cores carry that beside the router.
TRAFFIC = "lognormal:1500:150:0.5"
SERVERS = "{replicas: 2, settings: {tp: 4, mem_fraction_static: 0.52}}"
SLO = {"ttft_p95_ms": 2000.0, "tpot_p95_ms": 100.0}


@dataclass(frozen=True)
class Setup:
    kind: str
    python: str
    port: int
    units: str = SERVERS
    model: str = "llama-70b"
    gpu: str = "h100"

    def text(self, policy: str = "round_robin", limits: str = "") -> str:
        slo = ", ".join(f"{name}: {limit:g}" for name, limit in SLO.items())
        return (
            f"version: 1\nmodel: {self.model}\nengine: {{kind: twin, gpu: {self.gpu}, python: {sys.executable}}}\n"
            f"first_port: {self.port + 10}\nunits:\n  - {self.units}\n"
            f"router: {{kind: {self.kind}, policy: {policy}, port: {self.port}, python: {self.python}{limits}}}\n"
            f"slo: {{{slo}}}\n"
        )


def arguments(description: str | None) -> argparse.ArgumentParser:
    ask = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--router", default="sglang-router", help="sglang-router or smg")
    ask.add_argument("--python", default=".engines/router/bin/python", help="of the environment that has the router")
    ask.add_argument("--port", type=int, default=46100)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    return ask


def setup_of(chosen: argparse.Namespace) -> Setup:
    return Setup(chosen.router, str(Path(chosen.python).absolute()), chosen.port)


@contextmanager
def served(text: str) -> Iterator[tuple[Operator, str]]:
    """The service of a deployment file, up, and its URL."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-benchmark-") as folder:
        file = Path(folder) / "service.yaml"
        file.write_text(text)
        operator = Operator(load_service(file), Path(folder) / "service")
        try:
            yield operator, operator.up(READY_S)
        finally:
            operator.down()


def load(url: str, traffic: str, rate_s: float, seconds: float, **more: object) -> BenchResult:
    slos = tuple(f"{name}={limit:g}" for name, limit in SLO.items())
    options = BenchOptions(
        url=url, traffic=traffic, rate_s=rate_s, duration_s=seconds, ignore_eos=True, slos=slos, **more
    )  # type: ignore[arg-type]
    return bench(plan_from(options))


def kept_s(records: Sequence[RequestRecord], seconds: float) -> float:
    """Requests a second that kept every limit, of those sent in the last two thirds of the time."""
    from_s = seconds / 3
    slos = [Slo.parse(f"{name}={limit:g}") for name, limit in SLO.items()]
    counted = [record for record in records if from_s <= record.scheduled_s < seconds]
    return sum(all(slo.met_by(record) for slo in slos) for record in counted) / (seconds - from_s)
