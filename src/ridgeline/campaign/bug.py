"""A failed run as a report for the people who make the program: Markdown for their issue tracker, secrets masked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.judge import secret_values
from ridgeline.campaign.status import CampaignStatus, read_status
from ridgeline.errors import InputError, RidgelineError
from ridgeline.files import text_of
from ridgeline.records.exhibit import changes
from ridgeline.records.outcome import Kind
from ridgeline.records.run import Run
from ridgeline.records.secrets import masked
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.wording import count
from ridgeline.study.folder import RUNS
from ridgeline.study.state_files import state_text

_BEFORE, _AFTER = 25, 12  # lines of the log around the deciding one
_LONGEST_LINE = 400
_MOST_TRIED = 12
_HOME = re.compile(r"/(?:home|Users|root)(?:/[^\s/:'\"]+)?")


def failed_run(folder: Path) -> tuple[CampaignStatus, Run]:
    """The run of this run folder, with the campaign it belongs to. InputError says what to name instead."""
    path = folder.resolve()
    root = path.parent.parent
    if path.parent.name != RUNS or not (root / "journal.jsonl").is_file():
        hint = "".join(f", such as {example}" for example in sorted(path.glob(f"{RUNS}/*"))[:1])
        raise InputError(f"{folder} is not a run folder; name one of a study's {RUNS}{hint}")
    now = read_status(root)
    run = next((run for run in now.history.runs.values() if run.folder.name == path.name), None)
    if run is None:
        raise InputError(f"{folder}: the journal knows no run of this name that has ended")
    if run.outcome is None or run.outcome.kind is Kind.OK:
        raise InputError(f"{folder}: this run passed, so there is nothing to report")
    if run.outcome.kind in (Kind.CANCELLED, Kind.STOPPED_EARLY):
        raise InputError(f"{folder}: this run was ended by us ({run.outcome.reason}), which is no fault of the program")
    return now, run


def bug_report(now: CampaignStatus, run: Run) -> str:
    """Everything a maintainer asks for first, and nothing that only this machine or its user should know."""
    return _HOME.sub("~", masked("\n".join(_lines(now, run)) + "\n", secret_values(now.study.site.secrets)))


def _lines(now: CampaignStatus, run: Run) -> Iterator[str]:
    study, history = now.study, now.history
    trial, outcome = history.trials[run.trial], run.outcome
    assert outcome is not None
    versions = dict(_versions(now, run))
    program = f"{study.workload.kind} {versions.get('engine', '')}".strip()
    yield from (f"# {program}: {outcome.reason or outcome.kind.value}", "")
    yield f"What happens: **{outcome.kind.value}**{f', {outcome.reason}' if outcome.reason else ''}."
    yield ""
    if outcome.evidence is not None:
        yield from ("The line that decided:", "", *_fenced([str(outcome.evidence)]))
    attempts = [r for t in history.trials.values() if t.key == trial.key for r in history.runs_of.get(t.number, ())]
    alike = sum(r.outcome is not None and r.outcome.kind is outcome.kind for r in attempts)
    yield from (f"It ended so in {alike} of {count(len(attempts), 'run')} of this setting.", "")
    yield from ("## Command", "", *_command(now, trial))
    changed = changes(study.baseline, trial.point) or "nothing: this is the baseline itself"
    passed = any(t.point == study.baseline for t, _ in history.ok_runs(*Stage))
    yield from ("## What differs from what works", "")
    yield f"The baseline {'passes' if passed else 'was not seen to pass'}. Changed from it: {changed}."
    yield from ("", "## Versions and machine", "", *(f"- {name}: {value}" for name, value in versions.items()))
    yield from ("", "## Log", "", *_log(run))
    yield from ("## What was tried", "", *_tried(now, trial))


def _command(now: CampaignStatus, trial: Trial) -> Iterator[str]:
    study = now.study
    try:
        workload = catalog.part("workloads", study.workload.kind)(study)
        yield from _fenced(str(workload.paste(study.space.settings(trial.point))).splitlines(), "sh")
    except RidgelineError as error:
        yield from (f"The command cannot be written again on this machine ({error}); as the run's scripts have it:", "")
    run = now.history.final_run(trial)
    exported = [] if run is None else state_text(run.folder, "env").splitlines()
    if own := [line for line in exported if "RIDGELINE_" not in line]:
        yield from ("with this environment:", *_fenced(own, "sh"))


def _versions(now: CampaignStatus, run: Run) -> Iterator[tuple[str, str]]:
    receipt: Mapping[str, Any] = now.history.receipts[-1] if now.history.receipts else {}
    if version := run.texts.get("engine_version"):
        yield "engine", version
    for name, said in (receipt.get("programs") or {}).items():
        version = said.get("version") if isinstance(said, dict) else said
        if version:
            yield str(name), str(version)
    for name in ("kernel", "python", "cpu", "cores", "driver"):
        if receipt.get(name):
            yield name, str(receipt[name])
    if gpus := receipt.get("gpus"):
        yield "GPUs", f"{len(gpus)} x {gpus[0]}"
    asked = run.resources
    gpus_text = f", {asked.gpus} GPUs each" if asked.gpus else ""
    yield "job", f"{count(asked.nodes, 'node')}, {count(asked.ranks_per_node, 'rank')} each{gpus_text}"
    yield "found by", f"ridgeline {receipt.get('ridgeline', '')}".strip()


def _log(run: Run) -> Iterator[str]:
    """The lines around the deciding one; without one, the end of what the program wrote last."""
    assert run.outcome is not None
    evidence = run.outcome.evidence
    names = [evidence.source] if evidence is not None else ["stderr", "stdout"]
    for name in names:
        if not (lines := text_of(run.folder / name).splitlines()):
            continue
        at = evidence.line_number - 1 if evidence is not None and evidence.line_number else len(lines) - 1
        first, last = max(0, at - _BEFORE), min(len(lines), at + _AFTER + 1)
        shown = [("> " if n == at else "  ") + lines[n][:_LONGEST_LINE] for n in range(first, last)]
        yield from (f"`{name}`, lines {first + 1} to {last} of {len(lines)}:", "", *_fenced(shown))
        return
    yield from ("The run left no log.", "")


def _tried(now: CampaignStatus, trial: Trial) -> Iterator[str]:
    """Other settings and how they ended, those nearest to this one first."""
    rows = []
    seen = {trial.key}
    for other in now.history.trials.values():
        run = now.history.final_run(other)
        if other.key in seen or run is None or run.outcome is None:
            continue
        seen.add(other.key)
        apart = [name for name in {**trial.point, **other.point} if trial.point.get(name) != other.point.get(name)]
        rows.append((len(apart), changes(trial.point, other.point), run.outcome.brief))
    if not rows:
        yield "Nothing else was run."
        return
    yield from ("| changed from the failing setting | ended as |", "|---|---|")
    for _, what, ended in sorted(rows, key=lambda row: row[0])[:_MOST_TRIED]:
        cell = ended.replace("|", "\\|").replace("\n", " ")[:200]
        yield f"| {what} | {cell} |"
    if len(rows) > _MOST_TRIED:
        yield from ("", f"and {len(rows) - _MOST_TRIED} more, further away.")


def _fenced(lines: Iterable[str], kind: str = "text") -> Iterator[str]:
    shown = list(lines)
    fence = "````" if any("```" in line for line in shown) else "```"
    yield from (f"{fence}{kind}", *shown, fence, "")
