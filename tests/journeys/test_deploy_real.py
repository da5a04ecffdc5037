"""Services for real: two vLLM replicas behind the real router, one of them lost; and the twin with roles apart."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.deploy import probe
from ridgeline.deploy.file import load_service
from ridgeline.deploy.keep.keeper import Keeper
from ridgeline.deploy.operate import Operator
from tests.journeys.vllm_engine import ENGINE, ENV, READY_LIMIT_S, ROUTER, free_port, missing, write_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing() or missing(ROUTER)), reason=missing() or missing(ROUTER) or "present"),
]

ROUTER_LINE = "router: {{kind: sglang-router, policy: round_robin, port: {port}, python: {python}}}\n"


@contextlib.contextmanager
def served(folder: Path, text: str) -> Iterator[Operator]:
    file = folder / "service.yaml"
    file.write_text(text + ROUTER_LINE.format(port=free_port(), python=ROUTER / "bin" / "python"))
    operator = Operator(load_service(file), folder / "service")
    try:
        operator.up(READY_LIMIT_S)
        yield operator
    finally:
        operator.down()


def answers(operator: Operator, model: str, count: int) -> int:
    """How many of some requests through the router were answered."""
    url, good = operator.folder.url(operator.front), 0
    for _ in range(count):
        with contextlib.suppress(OSError):
            good += len(probe.first_answer(url, model, "")["choices"])
    return good


def pids_of(port: int) -> list[int]:
    wanted, found = f"--port\0{port}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_two_real_replicas_serve_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    first = 20000 + free_port() % 9000
    variables = ", ".join(f'{name}: "{value}"' for name, value in ENV.items())
    settings = "max_model_len: 512, max_num_seqs: 4, load_format: dummy, dtype: float32, enforce_eager: true"
    text = (
        f"version: 1\nmodel: {model}\nserved_name: tiny\nengine: {{kind: vllm, python: {ENGINE / 'bin' / 'python'}}}\n"
        f"first_port: {first}\nunits:\n  - {{replicas: 2, settings: {{{settings}}}, env: {{{variables}}}}}\n"
    )
    with served(tmp_path, text) as operator:
        assert {state.state for state in operator.status()} == {"ready"}
        assert answers(operator, "tiny", 6) == 6
        for pid in pids_of(operator.member("server-1").port):
            os.kill(pid, signal.SIGKILL)
        # the router finds out by asking: whoever had not begun to answer is asked for again elsewhere
        assert answers(operator, "tiny", 12) == 12
        keeper = Keeper(operator, ready_s=READY_LIMIT_S)
        until = time.monotonic() + READY_LIMIT_S
        while (start := operator.folder.started["server-1"]).generation == 1 or not start.ready:
            keeper.step()
            assert time.monotonic() < until
            time.sleep(0.5)
        before = probe.metrics(operator.folder.url(operator.member("server-1"))).get(
            "vllm:generation_tokens_total", 0.0
        )
        assert answers(operator, "tiny", 6) == 6
        after = probe.metrics(operator.folder.url(operator.member("server-1")))["vllm:generation_tokens_total"]
        assert after > before, "the one that was lost serves again"
    assert not pids_of(first)
    assert not pids_of(first + 1)


def test_prefill_and_decode_of_the_twin_are_paired_by_the_real_router(tmp_path: Path) -> None:
    first = 30000 + free_port() % 9000
    text = (
        f"version: 1\nmodel: llama-8b\nfirst_port: {first}\n"
        f"engine: {{kind: twin, gpu: h200, python: {sys.executable}}}\n"
        "units:\n  - {role: prefill, settings: {tp: 1}}\n  - {role: decode, settings: {tp: 1}}\n"
    )
    with served(tmp_path, text) as operator:
        assert answers(operator, "llama-8b", 5) == 5
        decode = probe.metrics(operator.folder.url(operator.member("decode-0")))
        assert decode["sglang:num_requests_total"] >= 6  # and the first one, of `up`
