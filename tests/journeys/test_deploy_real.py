"""Services for real: two vLLM replicas behind the real router, left alone with `keep`; the twin with roles apart."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ridgeline.serving.service import probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.routers import RouterAdmin
from tests.free_ports import free_row
from tests.journeys.vllm_engine import ENGINE, ENV, READY_LIMIT_S, ROUTER, SMALL, free_port, missing, write_model

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
            probe.first_answer(url, model, "")
            good += 1
    return good


def pids_of(port: int) -> list[int]:
    wanted, found = f"--port\0{port}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def engine_of(port: int) -> int:
    """The process that computes for the server at this port; the one that listens there only talks to it."""
    fronts = set(pids_of(port))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) in fronts and "EngineCor" in stat:
                    return int(entry.name)
    raise AssertionError(f"no engine behind port {port}")


def long_prompt(operator: Operator, letters: int) -> int:
    """How many tokens the tokenizer made of it: about as many, and none that another prompt shares."""
    body = {"model": "tiny", "prompt": "".join(random.choices("0123456789!#$%&", k=letters)), "max_tokens": 2}
    url = operator.folder.url(operator.front)
    return int(json.loads(probe.ask(f"{url}/v1/completions", body, timeout_s=READY_LIMIT_S))["usage"]["prompt_tokens"])


@contextlib.contextmanager
def kept(operator: Operator) -> Iterator[list[str]]:
    """With `keep` at work on it, as it is by default; what it says."""
    said, over = list[str](), threading.Event()
    own = Operator(operator.service, operator.folder.root, said.append)
    keeper = threading.Thread(target=lambda: Keeper(own, ready_s=READY_LIMIT_S).run(over.is_set))
    keeper.start()
    try:
        yield said
    finally:
        over.set()
        keeper.join()


def until(holds: Callable[[], bool], said: list[str]) -> float:
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < READY_LIMIT_S, said
        time.sleep(0.5)
    return time.monotonic() - began_s


@pytest.mark.timeout(1500)
def test_two_real_replicas_can_be_left_alone(tmp_path: Path) -> None:
    """Long prompts on idle servers, a limit that passes, an engine that stands still, and one that is killed."""
    model = write_model(tmp_path / "tiny", context_tokens=16384, shape=SMALL | {"max_position_embeddings": 16384})
    first = free_row(8)
    variables = ", ".join(f'{name}: "{value}"' for name, value in ENV.items())
    settings = "max_model_len: 16384, max_num_seqs: 4, load_format: dummy, dtype: float32, enforce_eager: true"
    text = (
        f"version: 1\nmodel: {model}\nserved_name: tiny\nengine: {{kind: vllm, python: {ENGINE / 'bin' / 'python'}}}\n"
        f"first_port: {first}\nlimit: 1s\n"
        f"units:\n  - {{replicas: 2, settings: {{{settings}}}, env: {{{variables}}}}}\n"
    )
    with served(tmp_path, text) as operator, kept(operator) as said:
        assert {state.state for state in operator.status()} == {"ready"}, "a limit is for a batch system"
        assert answers(operator, "tiny", 6) == 6

        # each takes many seconds in which an idle vLLM counts nothing, and a canary waits behind all of them
        with ThreadPoolExecutor(4) as users:
            assert min(users.map(lambda _: long_prompt(operator, 8000), range(4))) > 6000
        assert said == [], "busy servers are not hung ones"

        server = operator.member("server-1")
        os.kill(engine_of(server.port), signal.SIGSTOP)
        assert probe.is_healthy(operator.folder.url(server)), "and it goes on saying that it is well"
        found_s = until(lambda: any(line.startswith("server-1: hung") for line in said), said)
        print(f"found after {found_s:.0f} s: {said[0]}")
        assert "one of its processes is stopped" in said[0]
        until(lambda: "server-1: serves again" in said, said)
        operator.refresh()
        assert {name: s.generation for name, s in operator.folder.started.items()} == {
            "server-0": 1, "server-1": 2, "router": 1,
        }  # fmt: skip
        before = probe.metrics(operator.folder.url(server)).get("vllm:generation_tokens_total", 0.0)
        assert answers(operator, "tiny", 6) == 6
        after = probe.metrics(operator.folder.url(server))["vllm:generation_tokens_total"]
        assert after > before, "the one that was lost serves again"

        for pid in pids_of(server.port):
            os.kill(pid, signal.SIGKILL)
        # the router finds out by asking: whoever had not begun to answer is asked for again elsewhere
        assert answers(operator, "tiny", 12) == 12
        until(lambda: any(line.startswith("server-1: dead") for line in said), said)
    assert not pids_of(first)
    assert not pids_of(first + 1)


def test_prefill_and_decode_of_the_twin_are_paired_by_the_real_router(tmp_path: Path) -> None:
    first = free_row(8)
    text = (
        f"version: 1\nmodel: llama-8b\nfirst_port: {first}\n"
        f"engine: {{kind: twin, gpu: h200, python: {sys.executable}}}\n"
        f"first_bootstrap_port: {free_row(1)}\n"
        "units:\n  - {role: prefill, settings: {tp: 1}}\n  - {role: decode, settings: {tp: 1}}\n"
    )
    with served(tmp_path, text) as operator:
        assert answers(operator, "llama-8b", 5) == 5
        decode = probe.metrics(operator.folder.url(operator.member("decode-0")))
        assert decode["sglang:num_requests_total"] >= 6  # and the first one, of `up`
        admin, url = RouterAdmin(operator.folder.url(operator.front), ""), operator.folder.url(operator.servers[1])
        admin.take_away(url)
        states = {state.name: state for state in operator.status()}
        assert (states["prefill-0"].state, states["decode-0"].state) == ("ready", "ready")
        assert states["router"].state == "refuses", "it says 200 at /health, and 503 to everybody"
        assert states["router"].detail.startswith("503:")
        admin.add(url, "decode")
        assert {state.state for state in operator.status()} == {"ready"}
