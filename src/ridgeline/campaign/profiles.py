"""What the profiled runs of a campaign show: findings of the analyzers, as a table of the report."""

from __future__ import annotations

from pathlib import Path

from ridgeline import catalog
from ridgeline.diagnose.base import Analyzer, diagnose
from ridgeline.errors import RidgelineError
from ridgeline.records.exhibit import TextTable
from ridgeline.records.finding import Finding
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.history import History

# what mpiP and IPM name after the program, and IPM's banner on stdout
FILES = ("perf.txt", "vtune.csv", "*.mpiP", "*.ipm.xml", "stdout")
KINDS = ("perf", "vtune", "mpip", "ipm")


def profile_table(study: Study, history: History) -> TextTable | None:
    """One row for each finding of each profiled run; None where nothing was profiled."""
    analyzers: list[Analyzer] = [catalog.part("analyzers", kind) for kind in KINDS]
    rows: list[tuple[str, ...]] = []
    for run in history.runs.values():
        trial = history.trials[run.trial]
        if trial.stage is Stage.PROFILE:
            found = _findings(run.folder, analyzers)
            claims = [(finding.claim, finding.advice) for finding in found] or [("nothing stands out", "")]
            rows += [(_whose(study, trial), run.folder.name, *row) for row in claims]
    head = ("of", "run", "what the profile shows", "what to do")
    return TextTable("Profiles", head, tuple(rows)) if rows else None


def _findings(folder: Path, analyzers: list[Analyzer]) -> list[Finding]:
    found: list[Finding] = []
    for file in (path for pattern in FILES for path in sorted(folder.glob(pattern))):
        try:
            found += diagnose(file, analyzers).findings
        except RidgelineError:
            continue  # gone or not readable: the report goes on without it
    return found


def _whose(study: Study, trial: Trial) -> str:
    return "the baseline" if trial.key == point_key(study.baseline) else f"#{trial.number}"
