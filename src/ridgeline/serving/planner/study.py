"""A study that checks a plan: the planned setting as baseline, its neighbours as the space.

Copies behind a router do not talk to each other, so what is checked is one slice of the plan (one engine, or the
smallest whole number of prefill and decode groups) with its share of the traffic: the fewest GPUs that can prove it.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path

from ridgeline.records.measurement import unit_of
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.deployment import Deployment, role_text
from ridgeline.serving.engines.layout import Layout, group_text
from ridgeline.serving.engines.layout_rules import deepep_values
from ridgeline.serving.engines.releases import workloads_of
from ridgeline.serving.engines.settings import CURRENT_VERSION
from ridgeline.serving.metrics import LATENCIES, TWIN_QUANTILES
from ridgeline.serving.planner.candidates import PlanRequest
from ridgeline.serving.planner.commands import unit_arguments
from ridgeline.serving.planner.operating_point import Option
from ridgeline.serving.planner.scheme import Pair, Scheme
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import OpenLoop, Traffic, dataset_of

MOST_REQUESTS = 2000
# an engine of this size starts, compiles and warms up within this time
START_S = 1200.0


def verification_study(option: Option, traffic: Traffic, asked: PlanRequest) -> str:
    """YAML text that `ridgeline check` accepts."""
    q = option.scheme.question
    limits = ", ".join(map(str, q.slos)) or "no limits"
    reach = f"{option.goodput_s:.3g} requests/s" if q.slos else f"{option.total_tok_s:,.0f} tokens/s"
    name = re.sub(r"[^a-z0-9]+", "-", f"verify {q.model.name} {option.layout}".lower()).strip("-")
    slice_ = f"one of {option.scheme.slices} equal parts" if option.scheme.slices > 1 else "all of it"
    make = _groups if isinstance(option.scheme.shape, Pair) else _engine
    if engine_named(q.settings.engine).planned_whole:
        make = _whole_engine
    parts = make(option, traffic, asked)
    return "\n".join(
        [
            "version: 1",
            f"name: {name}",
            f"question: Does {option.layout} ({slice_} is tried here) reach the predicted {reach} with {limits}?",
            "",
            *parts,
            f"goal: {_goal(q.slos)}",
            "guards:",
            f"  - successful_requests == {_requests(traffic)}",
            *(f"  - {_metric(slo)} <= {slo.limit_ms:g}" for slo in q.slos),
            "budget: {trials: 6}",
            "confirm: {top: 1, blocks: 5}",
            "",
        ]
    )


def _engine(option: Option, traffic: Traffic, asked: PlanRequest) -> list[str]:
    """One engine: the twin today, the real engine by another `kind`."""
    unit, q = option.scheme.main, option.scheme.question
    layout = unit.layout
    kind = _workload_kind(option, traffic)
    fixed: dict[str, object] = {
        k: getattr(layout, k) for k in ("tp", "pp", "ep", "attn_dp") if k == "tp" or getattr(layout, k) > 1
    }
    fixed["chunked_prefill_size"] = unit.chunk_flag
    fixed["attention_backend"] = unit.settings.attention_backend
    fixed |= deepep_values(unit.layout, unit.role, unit.settings.version) | (
        {"enable_mixed_chunk": "true"} if unit.settings.mixed_chunk else {}
    )
    fraction, gpus = unit.memory.mem_fraction, min(layout.gpus_per_node, unit.gpus)
    share = layout.attn_dp * layout.pp
    caps, fractions = _around(unit.cap, share), sorted({round(fraction - 0.02, 3), fraction})
    graphs = f"min(512, max_running_requests // {share})  # without a graph a batch waits for the host"
    if unit.settings.cuda_graph_max_bs == 0:
        graphs = "0  # this release takes no graphs here"
    baseline = {**fixed, "max_running_requests": unit.cap, "mem_fraction_static": f"{fraction:g}"}
    return [
        "workload:",
        f"  kind: twin                    # {kind} on the real cluster, and `site`: nothing else changes",
        f"  model: {quoted(beside(asked.model))}",
        *([f"  # planned with {_joined(_dtypes(asked))}: quantise the model so"] if _dtypes(asked) else []),
        f"  gpu: {q.cluster.gpu.spelled}",
        f"  traffic: {{dataset: {dataset_of(traffic)!r}, requests: {_requests(traffic)}, seed: {traffic.seed}}}",
        *(f"  {line}" for line in _pace(option, traffic)),
        *([f"  slo: [{', '.join(map(str, q.slos))}]"] if q.slos else []),
        *([f"  calibration: {quoted(str(Path(asked.calibration).absolute()))}"] if asked.calibration else []),
        f"job: {{nodes: {layout.nodes}, gpus: {gpus}, limit: {_limit_s(option, traffic)}}}",
        "",
        "space:",
        *(f"  {name}: [{value}]" for name, value in fixed.items()),
        f"  max_running_requests: [{', '.join(map(str, caps))}]",
        f"  mem_fraction_static: [{', '.join(f'{f:g}' for f in fractions)}]",
        "derived:",
        f"  cuda_graph_max_bs: {graphs}",
        f"baseline: {{{', '.join(f'{name}: {value}' for name, value in baseline.items())}}}",
        "",
    ]


def _groups(option: Option, traffic: Traffic, asked: PlanRequest) -> list[str]:
    """Prefill and decode groups: several servers and a router, which no single engine's workload starts."""
    scheme = option.scheme
    deployment = scheme.deployment()
    load = _load_arguments(option, traffic)
    ask = _simulate_arguments(deployment, asked)
    unit = scheme.main
    share = unit.layout.attn_dp * unit.layout.pp
    return [
        "workload:",
        "  kind: command",
        "  # on the real cluster start commands.txt with the value of the trial, and run instead:",
        f"  #   {_joined(['ridgeline', 'bench', 'http://ROUTER:8000', *load])} --json",
        f"  run: {quoted(f'{_joined(ask + load)} {_roles(scheme, deployment.layout)} --json')}",
        *_METRICS,
        f"job: {{limit: {_limit_s(option, traffic)}}}",
        "",
        "space:",
        "  # of a decode engine; SGLang divides it among its attention groups",
        f"  max_running_requests: [{', '.join(map(str, _around(unit.cap, share)))}]",
        "derived:",
        f"  cuda_graph_max_bs: max(8, min(512, max_running_requests // {share}))",
        f"baseline: {{max_running_requests: {unit.cap}}}",
        "",
    ]


def _workload_kind(option: Option, traffic: Traffic) -> str:
    """The real engine's own: a batch where no pace is asked for, else a served load."""
    offline, serve = workloads_of(option.scheme.question.settings.engine)
    return offline if option.rate_s is None and traffic.concurrency is None else serve


def _whole_engine(option: Option, traffic: Traffic, asked: PlanRequest) -> list[str]:
    """One engine that is planned whole: simulated as it is, on a cluster by its own workload under the same knobs."""
    unit = option.scheme.main
    layout, settings, load = unit.layout, unit.settings, _load_arguments(option, traffic)
    ask = _simulate_arguments(option.scheme.deployment(), asked)
    ask += ["--tp", layout.tp, "--pp", layout.pp, "--ep", layout.ep, "--mem-fraction", settings.mem_fraction]
    ask += ["--cuda-graph-max-bs", settings.cuda_graph_max_bs]
    chunks = sorted({max(2048, unit.chunk_flag // 2), unit.chunk_flag})
    kind = _workload_kind(option, traffic)
    text = shlex.join(unit_arguments(unit))
    knobs = "--max-running-requests {max_num_seqs} --chunked-prefill-size {max_num_batched_tokens} --json"
    return [
        "workload:",
        "  kind: command",
        f"  # on the real cluster use `kind: {kind}` with these knobs, or start commands.txt with its values and run",
        f"  #   {_joined(['ridgeline', 'bench', 'http://ROUTER:8000', *load])} --json",
        f"  # planned: {text}",
        f"  run: {quoted(f'{_joined(ask + load)} {knobs}')}",
        *_METRICS,
        f"job: {{limit: {_limit_s(option, traffic)}}}",
        "",
        "space:",
        f"  max_num_seqs: [{', '.join(map(str, _around(unit.cap, layout.pp)))}]",
        f"  max_num_batched_tokens: [{', '.join(map(str, chunks))}]",
        f"baseline: {{max_num_seqs: {unit.cap}, max_num_batched_tokens: {unit.chunk_flag}}}",
        "",
    ]


def _load_arguments(option: Option, traffic: Traffic) -> list[object]:
    """The traffic, its pace and the limits, as `twin simulate` and `bench` take them."""
    load: list[object] = ["--traffic", dataset_of(traffic), "--requests", _requests(traffic), "--seed", traffic.seed]
    load += [
        argument for text in _pace(option, traffic) for argument in (f"--{text.partition(':')[0]}", text.split()[1])
    ]
    return load + [argument for slo in option.scheme.question.slos for argument in ("--slo", slo)]


_LATENCIES = [f"{name}_{q}_ms" for name in LATENCIES for q in TWIN_QUANTILES]
_METRICS = [
    "  metrics:",
    "    successful_requests: {json: successful_requests}",
    f"    total_tok_s: {{json: total_tok_s, unit: {unit_of('total_tok_s')}}}",
    *(
        f"    {name}: {{json: {name.replace('_p', '_ms.p').removesuffix('_ms')}, unit: {unit_of(name)}}}"
        for name in _LATENCIES
    ),
]


def _simulate_arguments(deployment: Deployment, asked: PlanRequest) -> list[object]:
    """The command that simulates this deployment, up to its groups and traffic."""
    layout, settings = deployment.layout, deployment.settings
    # this interpreter: a checkout's `ridgeline` is seldom on the PATH of a job
    ask: list[object] = [sys.executable, "-m", "ridgeline", "twin", "simulate", "--model", beside(asked.model)]
    ask += ["--gpu", deployment.cluster.gpu.spelled, *_dtypes(asked)]
    ask += ["--nodes", layout.nodes, "--gpus-per-node", layout.gpus_per_node]
    ask += ["--fabric", deployment.cluster.fabric.name, "--attention-backend", settings.attention_backend]
    if settings.version != CURRENT_VERSION:
        ask += ["--engine", f"{settings.engine}:{'.'.join(map(str, settings.version))}"]
    if asked.calibration:
        ask += ["--calibration", Path(asked.calibration).absolute()]
    return ask


def _roles(scheme: Scheme, layout: Layout) -> str:
    """Groups with the settings of their servers, as commands.txt starts them; the knobs of the study left open."""
    model = scheme.question.model
    settings = {unit.role: role_text(unit.settings) for unit in scheme.units}
    opened = re.sub(r"running=\d+", "running={max_running_requests}", settings["decode"])
    settings["decode"] = re.sub(r"graph=\d+", "graph={cuda_graph_max_bs}", opened)
    sides = {role: group_text(lay, model) for role, lay in layout.roles.items()}
    joined = {role: f"{text}{',' if ':' in text else ':'}{settings[role]}" for role, text in sides.items()}
    return " ".join(f"--{role}-groups {text}" for role, text in joined.items())


def _around(cap: int, share: int) -> list[int]:
    """Half, as planned, and double, in whole shares."""
    return sorted({max(share, cap // 2 // share * share), cap, 2 * cap})


def _goal(slos: tuple[Slo, ...]) -> str:
    # the limits are guards; among settings that keep them the one with the shortest wait is best
    return f"{{minimize: {_metric(slos[0])}}}" if slos else "{maximize: total_tok_s}"


def _metric(slo: Slo) -> str:
    # what every workload measures; a limit on another percentile is watched by the next stricter one
    quantile = slo.quantile if slo.quantile in TWIN_QUANTILES else "p95"
    return f"{slo.latency}_{quantile}_ms"


def _pace(option: Option, traffic: Traffic) -> list[str]:
    slices = option.scheme.slices
    if option.rate_s is not None:
        lines = [f"rate: {option.rate_s / slices:.4g}"]
        if isinstance(traffic.pace, OpenLoop) and traffic.pace.burstiness != 1:
            lines.append(f"burstiness: {traffic.pace.burstiness:g}")
        return lines
    return [f"concurrency: {option.scheme.users_each(traffic.concurrency)}"] if traffic.concurrency is not None else []


def _limit_s(option: Option, traffic: Traffic) -> int:
    """Three times what the run is predicted to take, after the engine has started; whole minutes."""
    run_s = _requests(traffic) / max(1e-6, option.summary.requests_s)
    return math.ceil((START_S + 3 * run_s) / 60) * 60


def _requests(traffic: Traffic) -> int:
    return min(traffic.requests, MOST_REQUESTS)


def beside(model: str) -> str:
    """A preset by its name, a config.json by its full path: the study lies elsewhere."""
    path = Path(model)
    return str(path.absolute()) if path.exists() else model


def _dtypes(asked: PlanRequest) -> list[object]:
    given = (("--dtype", asked.dtype), ("--kv-dtype", asked.kv_dtype))
    return [argument for name, value in given if value for argument in (name, value)]


def _joined(arguments: list[object]) -> str:
    return shlex.join(map(str, arguments))


def quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./+-]+", text) else "'" + text.replace("'", "''") + "'"
