"""Every serving engine of the catalog keeps the promises of ridgeline.serving.engines.contract."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeline import catalog
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.contract import EngineContract
from ridgeline.serving.service.keep.watch import poll_from
from ridgeline.serving.twin.server.metrics import Counters, Gauges, metrics_text
from ridgeline.testing.contracts import held_to

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "samples"
ENGINES = sorted(catalog.shipped("engines"))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.81 GiB."
WATCHDOG = "[rank3]:[E1116 Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) ran for 600012 ms"


class TestSglang(EngineContract):
    name = "sglang"
    failed: ClassVar[Mapping[str, str]] = {
        "ERROR: [Errno 98] error while attempting to bind on address: address already in use": "port-taken",
        "ValueError: SGLANG_GRPC_PORT (68123) must be between 1 and 65535": "port-taken",
        "ValueError: dist_init_port at 30233 is not available in 30 seconds.": "port-taken",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": "pool-too-small",
        "launch_server.py: error: unrecognized arguments: --attn-db-size 8": "rejected",
        "Exception: Capture cuda graph failed: CUDA out of memory": "graph-capture",
        "Rank 0 scheduler died during initialization (exit code: -9). If you see OOM": "host-oom",
        "KVTransferError(bootstrap_room=1): timed out in KVPoll.Bootstrapping": "kv-transfer",
        "Watchdog timeout (self.watchdog_last_forward_tick)": "watchdog",
        OOM: "cuda-oom",
        "Fatal Python error: Segmentation fault": "signal",
        "Received sigquit from a child process. It usually means the child failed.": "child-died",
        "AssertionError: page size 64 needs fa3": "exception",
    }

    def logs(self) -> Sequence[bytes]:
        return [path.read_bytes()[:20_000] for path in sorted((SAMPLES / "sglang").glob("*.log"))[:6]]


class TestVllm(EngineContract):
    name = "vllm"
    failed: ClassVar[Mapping[str, str]] = {
        "OSError: [Errno 98] Address already in use": "port-taken",
        "RuntimeError: Could not find open port after 1000 attempts": "port-taken",
        "ValueError: To serve at least one request with the model's max seq len (131072), 16 GiB": "pool-too-small",
        "ValueError: No available memory for the cache blocks.": "pool-too-small",
        "ValueError: User-specified max_model_len (9999) is greater than the derived max_model_len": "rejected",
        "ValueError: attention heads (32) must be divisible by tensor parallel size (3).": "split",
        "api_server.py: error: unrecognized arguments: --max-num-seq 3": "rejected",
        OOM: "cuda-oom",
        WATCHDOG: "watchdog",
        "RuntimeError: Engine core initialization failed. See root cause above.": "child-died",
        "AssertionError: block size": "exception",
    }

    def logs(self) -> Sequence[bytes]:
        return [path.read_bytes()[:20_000] for path in sorted((SAMPLES / "vllm").glob("*.log"))[:6]]


def test_every_engine_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(ENGINES) <= held_to(EngineContract)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_one_folder_and_one_row(name: str) -> None:
    assert catalog.shipped("engines")[name].startswith(f"ridgeline.serving.engines.{name}.")
    assert type(engine_named(name)).__module__ == f"ridgeline.serving.engines.{name}.engine"


@pytest.mark.parametrize("name", ENGINES)
def test_keep_finds_on_the_twins_page_every_figure_that_it_looks_for(name: str) -> None:
    counters = Counters(prompt_tokens=5, output_tokens=7)
    counters.ttft.add(0.2)
    counters.itl.add(0.01, 6)
    page = metrics_text(name, "m", counters, Gauges(2, 3, 40, 100, 1.0, 0, 0.0, 7))
    names, seen = engine_named(name).metrics, poll_from(name, "both", page, 0.0)
    assert (seen.running, seen.waiting, seen.kv_share) == (2, 3, 0.4)
    assert seen.tokens == 7 and seen.progress and seen.progress > 7
    assert all(f"\n{row}" in page for row in (*names.live, *names.progress))


@pytest.mark.parametrize("room", ["service", "load", "workloads/engine", "testing"])
def test_no_other_room_asks_for_an_engine_by_its_name(room: str) -> None:
    """What differs between engines is asked of their homes."""
    asked = re.compile(rf"""(?:==|!=|\bin\b|\[)\s*\(?["'](?:{"|".join(ENGINES)})["']""")
    metric = re.compile(rf"""["'](?:{"|".join(ENGINES)}):\w""")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "src/ridgeline" / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (asked.search(line) and "Literal[" not in line) or metric.search(line)
    ]
    assert found == []
