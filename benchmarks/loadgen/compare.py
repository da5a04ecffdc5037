#!/usr/bin/env python3
"""Ours beside the peers: the same closed loop against a server that knows the truth about its own timing.

    benchmarks/loadgen/compare.py                       # ours only
    benchmarks/loadgen/compare.py --peers all --install # installs each peer in its own venv (gigabytes), then runs all

Every tool sends the same load to fake_server.c on this host. The table sets what each one reports beside what the
server logged in the same run. A peer that cannot be installed or fails to run is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.serving.traffic.bench.results import read_bench_results

HERE = Path(__file__).resolve().parent
RIDGELINE = [sys.executable, "-m", "ridgeline"]


@dataclass(frozen=True)
class Load:
    url: str
    concurrency: int
    requests: int
    tokens: int
    prompt_tokens: int
    tokenizer: Path
    out: Path


@dataclass(frozen=True)
class Peer:
    """How to install a tool and the command that sends the load; its files under `load.out` are read by our readers."""

    name: str
    packages: tuple[tuple[str, ...], ...]
    command: Callable[[Path, Load], list[str]]
    # aiperf takes "offline" to mean that a local tokenizer folder is not to be opened either
    offline: bool = True


def guidellm(venv: Path, load: Load) -> list[str]:
    return [
        str(venv / "bin/guidellm"), "run", "--backend", f"kind=openai_http,target={load.url},model=fake",
        "--profile", f"kind=concurrent,streams={load.concurrency}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--data", f"kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.tokens}",
        "--tokenizer", f"kind=hf_auto,model={load.tokenizer}", "--disable-console-interactive",
    ]  # fmt: skip


def aiperf(venv: Path, load: Load) -> list[str]:
    return [
        str(venv / "bin/aiperf"), "profile", "--model", "fake", "--streaming", "--endpoint-type", "chat",
        "--tokenizer", str(load.tokenizer), "--url", load.url, "--concurrency", str(load.concurrency),
        "--request-count", str(load.requests), "--synthetic-input-tokens-mean", str(load.prompt_tokens),
        "--output-tokens-mean", str(load.tokens), "--artifact-dir", str(load.out), "--ui", "none",
    ]  # fmt: skip


def genai_bench(venv: Path, load: Load) -> list[str]:
    return [
        str(venv / "bin/genai-bench"), "benchmark", "--api-backend", "openai", "--api-base", load.url,
        "--api-key", "none", "--api-model-name", "fake", "--model-tokenizer", str(load.tokenizer),
        "--task", "text-to-text", "--max-time-per-run", "5", "--max-requests-per-run", str(load.requests),
        "--num-concurrency", str(load.concurrency), "--experiment-base-dir", str(load.out),
        "--traffic-scenario", f"D({load.prompt_tokens},{load.tokens})",
    ]  # fmt: skip


def evalscope(venv: Path, load: Load) -> list[str]:
    return [
        str(venv / "bin/evalscope"), "perf", "--api", "openai", "--model", "fake",
        "--url", f"{load.url}/v1/chat/completions", "--parallel", str(load.concurrency),
        "--number", str(load.requests), "--dataset", "random", "--tokenizer-path", str(load.tokenizer),
        "--min-prompt-length", str(load.prompt_tokens), "--max-prompt-length", str(load.prompt_tokens),
        "--max-tokens", str(load.tokens), "--min-tokens", str(load.tokens), "--outputs-dir", str(load.out), "--stream",
    ]  # fmt: skip


def sglang(venv: Path, load: Load) -> list[str]:
    script = next((venv / "lib").glob("python*/site-packages/sglang/bench_serving.py"))
    return [
        str(venv / "bin/python"), str(script), "--backend", "sglang-oai-chat", "--base-url", load.url,
        "--model", "fake", "--tokenizer", str(load.tokenizer), "--dataset-name", "random-ids",
        "--random-input-len", str(load.prompt_tokens), "--random-output-len", str(load.tokens),
        "--random-range-ratio", "1", "--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency),
        "--output-file", str(load.out / "result.jsonl"), "--disable-tqdm",
    ]  # fmt: skip


PEERS = {
    peer.name: peer
    for peer in (
        Peer("guidellm", (("guidellm",),), guidellm),
        Peer("aiperf", (("aiperf",),), aiperf, offline=False),
        Peer("genai-bench", (("genai-bench",),), genai_bench),
        Peer("evalscope", (("evalscope[perf]",),), evalscope),
        # the last version whose client runs without torch and a GPU stack
        Peer(
            "sglang",
            (
                ("--no-deps", "sglang==0.5.6"),
                ("aiohttp", "numpy", "pybase64", "requests", "datasets<4", "pillow", "tqdm", "transformers<5"),
            ),
            sglang,
        ),
    )
}


@dataclass
class Row:
    name: str
    requests_s: float | None = None
    cpu_ms: float | None = None
    memory_mb: float | None = None
    ttft: dict[str, float] | None = None
    itl: dict[str, float] | None = None
    truth: dict[str, dict[str, float]] | None = None
    note: str = ""


def main() -> None:
    options = arguments()
    cache = Path(options.cache).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    server_program = build(cache)
    names = [] if options.peers == "none" else list(PEERS) if options.peers == "all" else options.peers.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = options.tokenizer or write_tokenizer(Path(scratch) / "tokenizer")
        with Server(server_program, options) as server:
            for number, name in enumerate(["ridgeline", *names]):
                out = Path(scratch) / f"{number}-{name}"
                out.mkdir()
                sizes = (options.concurrency, options.requests, options.tokens, options.prompt_tokens)
                load = Load(server.url, *sizes, tokenizer, out)
                rows.append(ours(load, server) if name == "ridgeline" else theirs(name, load, server, cache, options))
                print(f"  {name}: done {rows[-1].note}", file=sys.stderr)
            if options.poisson:
                print(poisson(server, options))
    print(table(rows, options))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="none", help=f"none, all, or some of {','.join(PEERS)}")
    parser.add_argument("--install", action="store_true", help="install peers that are missing (PyPI)")
    parser.add_argument("--cache", default="~/.cache/ridgeline-peers", help="folder of the peers' venvs")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer folder for the peers [default: made here]")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--itl-ms", type=float, default=5.0)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a peer may take")
    parser.add_argument("--poisson", action="store_true", help="also check our Poisson arrivals at 50/s")
    return parser.parse_args()


def build(cache: Path) -> Path:
    program = cache / "fake_server"
    source = HERE / "fake_server.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


class Server:
    def __init__(self, program: Path, options: argparse.Namespace) -> None:
        self._command = [str(program), "0", str(options.ttft_ms), str(options.itl_ms), str(options.tokens)]

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, path: str) -> dict:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)


def measured(command: list[str], limit_s: float, out: Path, offline: bool) -> tuple[int, str, float, float]:
    """Exit code, what it said, CPU seconds of the process and all it waited for, and its peak memory in MB."""
    environment = os.environ | ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else {})
    said = out.with_suffix(".said")
    with said.open("w") as log, (out.with_suffix(".stdout")).open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, stderr=log, cwd=out, env=environment, start_new_session=True)
        killer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        _, status, used = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    text = out.with_suffix(".stdout").read_text() or said.read_text()
    return process.returncode, text, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def ours(load: Load, server: Server) -> Row:
    server.ask("/reset")
    command = [
        *RIDGELINE, "bench", load.url, "--concurrency", str(load.concurrency), "--requests", str(load.requests),
        "--max-tokens", str(load.tokens), "--input-tokens", str(load.prompt_tokens), "--json",
    ]  # fmt: skip
    code, said, cpu_s, memory_mb = measured(command, 600, load.out, offline=True)
    if code:
        return Row("ridgeline", note=f"failed: {said.strip()[-200:]}")
    answer = json.loads(said)
    note = f"void: {answer['why']}" if answer["void"] else f"{answer['cpu_ms_per_request']:.2f} CPU-ms while sending"
    return Row(
        "ridgeline", answer["requests_s"], cpu_s * 1e3 / load.requests, memory_mb, answer["ttft_ms"], answer["itl_ms"],
        server.ask("/truth"), note,
    )  # fmt: skip


def theirs(name: str, load: Load, server: Server, cache: Path, options: argparse.Namespace) -> Row:
    peer, venv = PEERS[name], cache / name
    problem = install(peer, venv) if options.install else ""
    if problem or not (venv / "bin/python").exists():
        return Row(name, note=problem or "not installed (--install)")
    server.ask("/reset")
    code, said, cpu_s, memory_mb = measured(peer.command(venv, load), options.timeout, load.out, peer.offline)
    try:
        runs = read_bench_results(load.out)
    except RidgelineError:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        ended = f"did not end within {options.timeout:g} s" if code == -signal.SIGKILL else f"exit code {code}"
        return Row(name, note=f"failed, {ended}: {last[0][:160]}")
    run = runs[-1]
    truth = server.ask("/truth")
    sent = max(1, int(truth["requests"]))
    itl = run.latencies_ms.get("itl") or run.latencies_ms.get("tpot")
    note = "" if "itl" in run.latencies_ms and "itl_ms" not in run.derived else "ITL averaged per request"
    return Row(
        name, run.requests_s, cpu_s * 1e3 / sent, memory_mb, dict(run.latencies_ms.get("ttft", {})), itl, truth, note
    )


def install(peer: Peer, venv: Path) -> str:
    if (venv / ".installed").exists():
        return ""
    # the host's pip fills the venv: Debian's python3 has no ensurepip
    steps = [[sys.executable, "-m", "venv", "--without-pip", str(venv)]]
    steps += [
        [
            os.environ.get("PYTHON", "python3"),
            "-m",
            "pip",
            "--python",
            str(venv / "bin/python"),
            "install",
            "-q",
            *packages,
        ]
        for packages in peer.packages
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["unknown reason"]
            return f"could not be installed: {lines[-1][:160]}"
    (venv / ".installed").touch()
    return ""


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer, so that no peer needs the network."""
    subprocess.run([*RIDGELINE, "model", "make", "llama-8b", str(folder)], capture_output=True, check=True)
    return folder


def poisson(server: Server, options: argparse.Namespace) -> str:
    """Our arrivals at 50/s as the server's kernel stamped them: rate, its standard error, Kolmogorov-Smirnov."""
    server.ask("/reset")
    command = [*RIDGELINE, "bench", server.url, "--rate", "50", "--requests", "1000", "--max-tokens", "5", "--json"]
    subprocess.run(command, capture_output=True, check=True)
    at = server.ask("/truth")["arrivals_s"]
    gaps = sorted(b - a for a, b in pairwise(at))
    n, rate = len(gaps), len(gaps) / (at[-1] - at[0])
    share = [1 - math.exp(-50 * g) for g in gaps]
    distance = max(max((k + 1) / n - s, s - k / n) for k, s in enumerate(share))
    return (
        f"Poisson 50/s: {rate:.2f}/s at the server (standard error {50 / math.sqrt(n):.2f}), "
        f"KS distance {distance:.4f} (5% limit {1.36 / math.sqrt(n):.4f})"
    )


def table(rows: list[Row], options: argparse.Namespace) -> str:
    cpus = len(os.sched_getaffinity(0))
    head = (
        f"closed loop, {options.concurrency} at once, {options.requests} requests, TTFT {options.ttft_ms:g} ms, "
        f"{options.tokens} tokens {options.itl_ms:g} ms apart; client and server on {cpus} cores, "
        f"{time.strftime('%Y-%m-%d')}\n"
    )
    names = ("tool", "requests/s", "CPU-ms/request", "TTFT p50 (true)", "TTFT p99 (true)", "ITL p50 (true)", "note")
    lines = [head, "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = [row.name, shown(row.requests_s, 0), shown(row.cpu_ms, 2)]
        for reported, latency, quantile in (
            (row.ttft, "ttft_ms", "p50"),
            (row.ttft, "ttft_ms", "p99"),
            (row.itl, "itl_ms", "p50"),
        ):
            true = (row.truth or {}).get(latency) or {}
            cells.append(f"{shown((reported or {}).get(quantile), 2)} ({shown(true.get(quantile), 2)})")
        memory = f"{row.memory_mb:.0f} MB; " if row.memory_mb else ""
        lines.append("| " + " | ".join([*cells, memory + row.note]) + " |")
    return "\n".join(lines)


def shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
