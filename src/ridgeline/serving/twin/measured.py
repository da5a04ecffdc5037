"""Measured rows: a CSV in which every line names a deployment, the traffic sent to it, and what was measured.

Columns are those people write anyway. Throughput: total_tok_s or duration_s. One batch sent at once (batch, input_len,
output_len): latency_s and ttft_s (the last request's) or ttft_p95_s. A load that goes on: concurrency or rate, prompts,
traffic. Rows that did not end well say nothing of speed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.knobs import KNOBS, Domain, engine_total, modelled, wrong_value
from ridgeline.serving.engines.layout import Layout, parse_layout
from ridgeline.serving.engines.releases import release_meant
from ridgeline.serving.engines.settings import DEFAULTS, EngineSettings, layout_of, parse_engine, settings_of
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.hardware.cluster import Cluster, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.traffic.traffic import Traffic, parse_traffic
from ridgeline.serving.twin.simulate import SimulationResult

# columns that were measured, and what a simulation says of each
METRICS: dict[str, Callable[[SimulationResult], float | None]] = {
    "total_tok_s": lambda r: r.summary.total_tok_s,
    "duration_s": lambda r: r.summary.duration_s,
    "latency_s": lambda r: r.summary.duration_s,
    "ttft_s": lambda r: r.last_ttft_s,
    "ttft_mean_s": lambda r: r.summary.ttft_ms.mean / 1000 if r.summary.ttft_ms else None,
    "ttft_p50_s": lambda r: r.summary.ttft_ms.p50 / 1000 if r.summary.ttft_ms else None,
    "ttft_p95_s": lambda r: r.summary.ttft_ms.p95 / 1000 if r.summary.ttft_ms else None,
    "tpot_mean_s": lambda r: r.summary.tpot_ms.mean / 1000 if r.summary.tpot_ms else None,
    "itl_mean_s": lambda r: r.summary.itl_ms.mean / 1000 if r.summary.itl_ms else None,
    "itl_p50_s": lambda r: r.summary.itl_ms.p50 / 1000 if r.summary.itl_ms else None,
    "itl_p95_s": lambda r: r.summary.itl_ms.p95 / 1000 if r.summary.itl_ms else None,
}
# columns that are settings of the engine
SETTINGS = {name for knob in modelled() for name in knob.names(SGLANG.name)}
# the first release whose prefill and decode servers divide their request slots among attention-DP ranks
_SLOTS_DIVIDED = (0, 5, 8)
# no speed or time that anybody measured is larger
MOST = 1e12
_LEFT_OUT = ("", "default", "-", "none")


@dataclass(frozen=True, slots=True)
class Measured:
    """One row. `values` holds the metrics it gives, `noise` what makes them less sure than a run's, as a logarithm."""

    source: str
    deployment: Deployment
    traffic: Traffic
    values: Mapping[str, float]
    result: str = "ok"
    note: str = ""
    noise: Mapping[str, float] = field(default_factory=dict)
    at_s: float | None = None  # when, on the clock on the wall


def read_rows(
    path: Path, *, model: str | None = None, gpu: str | None = None, settings: EngineSettings = DEFAULTS
) -> list[Measured]:
    """Every row of a file. `model` and `gpu` stand in where it has no such column, `settings` for empty cells."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a CSV file of measured rows") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as CSV") from None
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise InputError(f"{path}: holds no rows; the first line names the columns, such as tp,pp,dp,total_tok_s")
    known = {"model": model or "", "gpu": gpu or ""}
    return [_row(f"{path.name}:{number}", {**known, **_filled(row)}, settings) for number, row in enumerate(rows, 2)]


def _filled(row: Mapping[str | None, str | None]) -> dict[str, str]:
    """Cells that say something; `model` and `gpu` of the call stay where the row leaves them out."""
    cells = {str(k).strip(): (v or "").strip() for k, v in row.items() if k is not None and isinstance(v, str | None)}
    return {k: v for k, v in cells.items() if v.lower() not in _LEFT_OUT}


def _row(where: str, cells: Mapping[str, str], settings: EngineSettings) -> Measured:
    model = load_model(_needed(cells, "model", where))
    gpus_per_node = 8
    nodes = _whole(cells, "nodes", where) or 1
    if gpus := _whole(cells, "gpus", where):
        gpus_per_node = max(1, gpus // nodes)
    gpus_per_node = _whole(cells, "gpus_per_node", where) or gpus_per_node
    given = _values(cells, where)
    applied = _settings(cells, given, settings)
    if "layout" in cells:
        # P2D4-chunk-large: what follows the dash is the study's own remark
        layout = parse_layout(cells["layout"].partition("-")[0], model, gpus_per_node)
        nodes = layout.nodes
    else:
        layout = layout_of(given, nodes, gpus_per_node)
    cluster = make_cluster(_needed(cells, "gpu", where), nodes, gpus_per_node, cells.get("fabric"))
    values = {name: number for name in METRICS if (number := _number(cells, name, where)) is not None}
    result = cells.get("result", "ok").split("(")[0].strip() or "ok"
    note = cells.get("note", "")
    deployment = _deployment(model, cluster, layout, applied)
    return Measured(where, deployment, _traffic(cells, where), values, result, note)


def _values(cells: Mapping[str, str], where: str) -> dict[str, Value]:
    """The cells that are settings of the engine, under our names."""
    found: dict[str, Value] = {}
    for name, text in cells.items():
        # own notes such as "default (4096)" say what the engine chose; the choice is the engine's again in the twin
        if name in SETTINGS and not text.lower().startswith("default"):
            found[name] = _cell(name, text, where)
    if cells.get("attention_dp", "no").lower() in ("yes", "true", "1"):
        # SGLang's --dp with --enable-dp-attention splits the ranks of a stage; it adds no copies
        found["enable_dp_attention"] = True
    return SGLANG.flags.canonical(found)


def _cell(name: str, text: str, where: str) -> Value:
    takes = KNOBS[name].takes
    if takes is Domain.TEXT:
        value: Value = text
    elif takes is Domain.SWITCH:
        value = text.lower() in ("yes", "true", "1")
    else:
        try:
            value = float(text) if takes in (Domain.SHARE, Domain.NUMBER) else int(text)
        except ValueError:
            raise InputError(f"{where}: {name} is {text!r}, not {takes.value}") from None
    if wrong := wrong_value(name, value):
        raise InputError(f"{where}: {name} is {text}: {wrong}; leave it empty for the default")
    return value


def _settings(cells: Mapping[str, str], values: Mapping[str, Value], settings: EngineSettings) -> EngineSettings:
    found = settings_of(values, settings)
    version = re.match(r"\d+(\.\d+)*", cells.get(SGLANG.name, ""))
    return parse_engine(f"{SGLANG.name}:{version[0]}", found) if version else found


def _deployment(model: Model, cluster: Cluster, layout: Layout, settings: EngineSettings) -> Deployment:
    """Of a split measured before SGLang 0.5.8 the running limit is that of each attention-DP rank.

    Those releases made a rank's request slots by the undivided flag, and the decode role admits by its slots; later
    ones divide both. What we keep is the whole engine's number.
    """
    found = Deployment(model, cluster, layout, settings)
    limit = settings.max_running_requests
    if limit is None or not layout.disaggregated or release_meant(settings.version) >= _SLOTS_DIVIDED:
        return found
    each = {
        role: replace(found.role_settings(role), max_running_requests=engine_total(limit, lay.attn_dp))
        for role, lay in layout.roles.items()
    }
    return replace(found, prefill_settings=each["prefill"], decode_settings=each["decode"])


def _traffic(cells: Mapping[str, str], where: str) -> Traffic:
    if "input_len" in cells:
        lengths = f"fixed:{_needed(cells, 'input_len', where)}:{_needed(cells, 'output_len', where)}"
        return parse_traffic(lengths, requests=_whole(cells, "batch", where) or 1)
    requests = _whole(cells, "prompts", where) or 2000
    return parse_traffic(
        cells.get("traffic", "sharegpt"),
        requests=requests,
        rate_s=_number(cells, "rate", where),
        concurrency=_whole(cells, "concurrency", where),
        seed=2025,
    )


def _needed(cells: Mapping[str, str], name: str, where: str) -> str:
    if not cells.get(name):
        raise InputError(f"{where}: no {name}; add a column named {name} or give --{name}")
    return cells[name]


def _whole(cells: Mapping[str, str], name: str, where: str) -> int | None:
    value = _number(cells, name, where)
    if value is None:
        return None
    if value % 1:
        raise InputError(f"{where}: {name} is {cells[name]}, not a whole number")
    return int(value)


def _number(cells: Mapping[str, str], name: str, where: str) -> float | None:
    if name not in cells or cells[name].lower().startswith("default"):
        return None
    try:
        value = float(cells[name])
    except ValueError:
        raise InputError(f"{where}: {name} is {cells[name]!r}, not a number") from None
    if not 0 < value < MOST:
        raise InputError(f"{where}: {name} is {value:g}; write one above zero and below {MOST:g}, or leave it empty")
    return value
