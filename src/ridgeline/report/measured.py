"""How it was measured: enough for another team to repeat it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.files import text_of
from ridgeline.records.answer import Answer
from ridgeline.records.exhibit import TextTable
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage
from ridgeline.report.parts import CodeText, Fold, Paragraph, Part
from ridgeline.stats.wording import count
from ridgeline.study.folder import STUDY
from ridgeline.study.history import History

_LARGEST_TEXT = 40_000  # characters of a study or script on the page
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
    for label, path in _scripts(study, history, answer):
        if text := _text(path):
            yield Fold(
                f"The script of {label}: {path.parent.name}/run.sh", (CodeText(text, copy=True),), on_paper=False
            )
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
        ends = max(run.ending.ended_s for run in history.runs.values())
        yield "when (UTC)", f"{_when(min(started))} to {_when(ends)}"
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


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _scripts(study: Study, history: History, answer: Answer) -> Iterator[tuple[str, Path]]:
    wanted = [(answer.reference.label, study.baseline)]
    if answer.candidate is not None and answer.candidate.point != study.baseline:
        wanted.append((answer.candidate.label, answer.candidate.point))
    for label, point in wanted:
        runs = [run for trial, run in history.ok_runs(*Stage) if trial.point == point]
        paths = [run.folder / "run.sh" for run in reversed(runs)]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            yield label, path


def _text(path: Path) -> str:
    text = text_of(path)
    if len(text) <= _LARGEST_TEXT:
        return text
    return f"{text[:_LARGEST_TEXT]}\n... cut; the file has {len(text):,} characters"
