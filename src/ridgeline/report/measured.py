"""How it was measured, enough for another team to repeat it, and what had to hold for a result to count."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.files import text_of
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable
from ridgeline.records.guard import Closeness, Condition, Guard
from ridgeline.records.outcome import Kind
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.figures.values import settings_shown
from ridgeline.report.parts import CodeText, Fold, Paragraph, Part
from ridgeline.stats.wording import count
from ridgeline.study.folder import STUDY
from ridgeline.study.history import History

_LARGEST_TEXT = 40_000  # characters of a study or script on the page
_SIMPLE = re.compile(r"^\s*(\w+)\s*(<=|>=|==|<|>)\s*([-+0-9.eE]+)\s*$")  # a guard with a margin
_RECEIPT = {
    "host": "controller", "cpu": "controller CPU", "cores": "controller cores", "gpus": "controller GPUs",
    "driver": "GPU driver", "kernel": "kernel", "ridgeline": "Ridgeline", "python": "Python",
    "seed": "seed of the search", "command": "command", "load": "load average at the start",
}  # fmt: skip


def folder_text(history: History) -> str:
    """The study folder as commands name it in the folder that `place_text` names: nothing of the machine is shown."""
    return shlex.quote("/".join(_from_the_last_studies(history)))


def place_text(history: History) -> str:
    return f"In the folder that holds `{_from_the_last_studies(history)[0]}`"


def _from_the_last_studies(history: History) -> tuple[str, ...]:
    """`studies`, where new study folders go, and what is below it; the folder's own name where it lies elsewhere."""
    *above, name = Path(os.path.normpath(history.root.absolute())).parts
    if "studies" not in above:
        return (name,)
    return (*above[len(above) - 1 - above[::-1].index("studies") :], name)


def measured(study: Study, history: History, answer: Answer) -> Iterator[Part]:
    yield TextTable("What ran where", ("", ""), tuple(_facts(study, history)))
    gone = sum(not run.folder.is_dir() for run in history.runs.values())
    if gone:
        line = (
            f"{gone} of {count(len(history.runs), 'run folder')} can no longer be found; the journal's numbers stand."
        )
        yield Paragraph(line, "note")
    check = f"{place_text(history)}, `ridgeline study verify {folder_text(history)}` checks every number of this page"
    yield Paragraph(f"{check} against the runs' own files.", "sub")
    for label, runs in settings_shown(study, history, answer):
        path = next((path for run in reversed(runs) if (path := run.folder / "run.sh").is_file()), None)
        if path is not None and (text := _text(path)):
            title = f"The script of {label}: {path.parent.name}/run.sh"
            yield Fold(title, (CodeText(text, copy=True),), on_paper=False)
    if text := _text(history.root / STUDY):
        yield Fold("The study file", (CodeText(text, copy=True),))


def _facts(study: Study, history: History) -> Iterator[tuple[str, str]]:
    receipt: Mapping[str, Any] = next((r for r in reversed(history.receipts) if r), {})
    for name, label in _RECEIPT.items():
        value = receipt.get(name)
        if value not in (None, "", []):
            yield label, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if not receipt:
        yield "controller", "not recorded: begun with an older release"
    if history.openings > 1:
        yield "resumed", count(history.openings - 1, "time")
    nodes = sorted({node for run in history.runs.values() for node in run.ending.nodes})
    if nodes:
        yield "nodes", ", ".join(nodes)
    gpus = sorted({gpu for run in history.runs.values() for m in run.ending.machines for gpu in m.gpus})
    if gpus:
        yield "GPUs", ", ".join(gpus)
    for name, values in sorted(versions(history).items()):
        yield name.replace("_", " "), ", ".join(sorted(values))
    started = [run.ending.started_s for run in history.runs.values() if run.ending.started_s > 0]
    if started:
        ends = (min(started), max(run.ending.ended_s for run in history.runs.values()))
        yield "when (UTC)", " to ".join(time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) for seconds in ends)
    yield "workload", study.workload.kind
    yield "site", f"{study.site.name} ({study.site.batch})"
    confirm = study.confirm
    if any(trial.stage is Stage.CONFIRM for trial in history.trials.values()):
        runs = count(confirm.repeats, "run")
        yield "proof", f"interleaved blocks, {runs} of each setting in each; {confirm.level * 100:g}% intervals"


def versions(history: History) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in history.runs.values():
        for name, value in run.texts.items():
            if name.endswith("version"):
                found.setdefault(name, set()).add(value)
    return found


def _text(path: Path) -> str:
    text = text_of(path)
    if len(text) <= _LARGEST_TEXT:
        return text
    return f"{text[:_LARGEST_TEXT]}\n... cut; the file has {len(text):,} characters"


def guard_table(study: Study, history: History) -> TextTable | None:
    """Each guard with the runs it judged, and how near to its limit they came; None for a study without guards."""
    if not study.guards:
        return None
    passed = [(t.number, {**r.texts, **r.metrics}) for t, r in history.ok_runs(*Stage)]
    ended = [(f"#{run.trial}", run.outcome) for run in history.runs.values() if run.outcome is not None]
    rows = []
    for guard in study.guards:
        failing = [name for name, how in ended if how.kind is Kind.WRONG and _names(guard, how.reason)]
        rows.append((str(guard), str(len(passed)), _worst(guard, passed, history.reference), ", ".join(failing) or "–"))
    failed = frozenset(at for at, row in enumerate(rows) if row[3] != "–")
    head = ("guard", "runs that passed", "tightest margin", "runs rejected")
    return TextTable("Guards", head, tuple(rows), failed)


def _names(guard: Guard, reason: str) -> bool:
    if isinstance(guard, Closeness):
        return reason.startswith(f"{guard.metric} ")
    return str(guard) in reason or (not guard.names and str(guard).split(" ")[0] in reason)


def _worst(guard: Guard, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    """How near the nearest run came, in words; what no number measures simply held."""
    if not runs:
        return "no run counts yet"
    if isinstance(guard, Closeness):
        return _distance(guard, runs, reference)
    match = _SIMPLE.match(str(guard)) if isinstance(guard, Condition) else None
    if match is None:
        return "held in all of them"
    metric, sign, limit = match[1], match[2], float(match[3])
    values = [(number, float(v)) for number, row in runs if isinstance(v := row.get(metric), int | float)]
    if not values:
        return "not measured"
    if sign == "==":
        return f"all equal {limit:g}" if all(v == limit for _, v in values) else "held in all of them"
    number, value = (max if sign in ("<", "<=") else min)(values, key=lambda pair: pair[1])
    room = (limit - value) if sign in ("<", "<=") else (value - limit)
    share = f", {room / abs(limit):.0%} of the limit to spare" if limit else ""
    return f"{value:.4g} at #{number}{share}"


def _distance(guard: Closeness, runs: list[tuple[int, dict[str, object]]], reference: Mapping[str, object]) -> str:
    target = guard.reference if guard.reference is not None else reference.get(guard.metric)
    if not isinstance(target, int | float):
        return "held in all of them"
    limit = guard.abs_tol + guard.rel_tol * abs(target)
    gaps = [(abs(v - target), number) for number, row in runs if isinstance(v := row.get(guard.metric), int | float)]
    if not gaps:
        return "not measured"
    gap, number = max(gaps)
    share = f", {gap / limit:.0%} of the tolerance used" if limit else ""
    return f"off by {gap:.3g} at #{number}{share}"
