"""How far a campaign is and what it says so far: what the live picture, `status`, `best` and the report show."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline import catalog
from ridgeline.campaign.advice import PROPOSER
from ridgeline.campaign.extension import next_step
from ridgeline.campaign.kinds.base import CampaignQuestion, question_of
from ridgeline.campaign.ledger import PROFILE_SHARE, Ledger, profile_share
from ridgeline.campaign.machine import brief_runs, busy_machine
from ridgeline.campaign.point_text import pasted
from ridgeline.campaign.task import compliance_table
from ridgeline.campaign.under_way import RunUnderWay, runs_under_way
from ridgeline.campaign.verdict import judged_today, with_figures
from ridgeline.diagnose.base import Analyzer, LogSummary, diagnose, figure_changes, opened
from ridgeline.errors import InputError, RidgelineError
from ridgeline.records.answer import Answer, Progress
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.finding import Finding
from ridgeline.records.outcome import Kind
from ridgeline.records.run import PROFILE_FOLDER, Run
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import Budget, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.contribution import contributions
from ridgeline.study.folder import StudyFolder, read_history_as_far
from ridgeline.study.history import History, read_history
from ridgeline.study.lock import ControllerState, Presence, find_controller
from ridgeline.workloads.base import Workload

# what mpiP names after the program, and IPM's banner on stdout
_FILES = ("perf.txt", "vtune.csv", "*.mpiP", "stdout")
_TRACE, _TABLE = "torch-trace", "nsys"
_KINDS = ("perf", "vtune", "mpip", "ipm", _TRACE, _TABLE)


def _profile_tables(study: Study, history: History) -> tuple[TextTable, ...]:
    """One row for each finding of each profiled run, and the figures of the two side by side where the profiler gives
    any; empty where nothing was profiled."""
    profiled = [run for run in history.runs.values() if history.trials[run.trial].stage is Stage.PROFILE]
    analyzers: list[Analyzer] = [
        catalog.part("analyzers", kind) for kind in _KINDS if kind in catalog.names("analyzers")
    ]
    rows: list[tuple[str, ...]] = []
    for run in profiled:
        failed = run.outcome is not None and run.outcome.kind is not Kind.OK
        nothing = f"no profile: {run.outcome}" if failed else "nothing stands out"
        claims = [(found.claim, found.advice) for found in _findings(run.folder, analyzers)] or [(nothing, "")]
        rows += [(_whose(study, history.trials[run.trial]), run.folder.name, *row) for row in claims]
    if not rows:
        return ()
    head = ("of", "run", "what the profile shows", "what to do")
    share = profile_share(history) or 0.0
    cost = f"profile: {share:.1%} of node-hours"
    if share > PROFILE_SHARE:
        cost += f", more than the {PROFILE_SHARE:.0%} that a campaign should spend on them"
    return (TextTable("Profiles", head, tuple(rows), notes=(cost,)), *_side_by_side(study, history, profiled))


def _side_by_side(study: Study, history: History, runs: list[Run]) -> Iterator[TextTable]:
    """The traces of the first and the last profiled run: the baseline's and the best setting's."""
    traced = [(run, traces[0]) for run in runs if (traces := _traces_in(run.folder))]
    if len(traced) < 2:
        return
    (before, first), (after, second) = traced[0], traced[-1]
    try:
        changes = figure_changes(_summary_of(first), _summary_of(second))
    except RidgelineError:
        return  # gone or not readable: the report goes on without it
    if rows := tuple(change.cells for change in changes if change.first or change.second):
        labels = [_whose(study, history.trials[run.trial]) for run in (before, after)]
        names = " ".join(str(path.relative_to(history.root)) for path in (first, second))
        note = f"ridgeline diagnose --compare {names} in the study folder shows the same with the evidence"
        yield TextTable("Profiles, before and after", ("figure", *labels, "change"), rows, notes=(note,))


def _traces_in(folder: Path) -> list[Path]:
    """What was recorded of a server: traces of its own profiler, the first rank's first, or a kernel table of nsys."""
    files = [path for pattern in ("*.json*", "*.csv") for path in (folder / PROFILE_FOLDER).glob(pattern)]
    return sorted(files, key=lambda path: (_RANK.findall(path.name), path.name))


def _summary_of(trace: Path) -> LogSummary:
    analyzer = catalog.part("analyzers", _TABLE if trace.suffix == ".csv" else _TRACE)
    found: LogSummary = analyzer.portray(opened(trace))
    return found


_RANK = re.compile(r"(?:TP-|DP-|PP-|EP-|rank_?)(\d+)", re.IGNORECASE)


def _findings(folder: Path, analyzers: list[Analyzer]) -> list[Finding]:
    found: list[Finding] = []
    files = [path for pattern in _FILES for path in sorted(folder.glob(pattern))]
    for file in (*files, *_traces_in(folder)[:1]):
        try:
            found += diagnose(file, analyzers).findings
        except RidgelineError:
            continue  # gone or not readable: the report goes on without it
    return found


def _whose(study: Study, trial: Trial) -> str:
    return "the baseline" if trial.key == point_key(study.baseline) else f"#{trial.number}"


@dataclass(frozen=True)
class CampaignStatus:
    """`study` is the study as the question's campaign runs it; `controller` is who is at work on a folder on disk."""

    question: CampaignQuestion
    study: Study
    history: History
    ledger: Ledger | None = None
    controller: ControllerState | None = None

    def __post_init__(self) -> None:
        # every face goes by this history, so none shows what an earlier release concluded and today's rules do not
        object.__setattr__(self, "history", judged_today(self.question.kind, self.study, self.history))

    @cached_property
    def answer(self) -> Answer:
        found = with_figures(self.question.answer(self.study, self.history), self.study, self.history)
        reason = "" if self.history.stopped is None else self.history.stopped.reason
        stopped = "" if reason in ("finished", "interrupted") else reason
        takes = self.question.extended_by
        return replace(found, stopped=stopped, next_step=next_step(self.study, self.history, takes, self.ledger))

    @cached_property
    def progress(self) -> Progress:
        return self.question.progress(self.study, self.history)

    @cached_property
    def exhibits(self) -> Exhibits:
        shown = self.question.exhibits(self.study, self.history)
        busy = busy_machine(self.history, self.study.goal.metric)
        doubts = [text for text in (brief_runs(self.study, self.history), busy) if text]
        workload = _workload_of(self.study)
        doubts += [] if workload is None else workload.doubts()
        if workload is None and (kind := self.study.workload.kind) not in catalog.names("workloads"):
            doubts.append(f"what makes `kind: {kind}` is not installed here: its command and its limits are not known")
        tables = [*shown.tables, *_profile_tables(self.study, self.history)]
        if self.study.task is not None and self.history.verdict is not None:
            tables.append(compliance_table(self.study, self.history.root, workload))
        return replace(shown, doubts=tuple(doubts), tables=tuple(tables))

    @property
    def budget(self) -> Budget:
        """As it is now: people may have extended it, while the campaign ran or after its verdict."""
        budget, limit = self.history.instructions.budget(self.study.budget), self.history.search_limit
        return budget if limit is None else replace(budget, trials=limit)

    @property
    def is_over(self) -> bool:
        return self.history.verdict is not None or self.history.stopped is not None

    def under_way(self, now_s: float) -> list[RunUnderWay]:
        return runs_under_way(self.history, self.ledger or Ledger(self.study.budget, self.history), now_s)

    @property
    def moved(self) -> list[Trial]:
        """Trials that a failure asked for; `why` says what was moved after which."""
        return [trial for trial in self.history.trials.values() if trial.proposer == PROPOSER]

    def as_json(self) -> dict[str, Any]:
        history, answer = self.history, self.answer
        return {
            "name": self.study.name,
            "kind": answer.kind,
            "stage": self.progress.stage,
            "headline": answer.headline,
            "verdict": None if history.verdict is None else history.verdict.as_line(),
            "trials": history.count(Stage.SEARCH),
            "runs": len(history.runs),
            "controller": None if self.is_over or self.controller is None else self.controller.as_json(),
            "running": [run.as_json() for run in self.under_way(time.time())],
            "outcomes": {kind.value: n for kind, n in history.outcomes.items()},
            "moved": [{"trial": t.number, "why": t.why, "outcome": _ended(history, t)} for t in self.moved],
            "node_hours": history.node_hours,
            "profile_share": profile_share(history),
            "wall_s": history.wall_s,
            "budget": asdict(self.budget),
            "paused": history.instructions.paused,
            "baseline": answer.reference.value,
            "unit": answer.unit,
            "simulated": answer.simulated,
            "change": answer.change,
            "keep_baseline": answer.keep,
            "refuted": answer.refuted,
            **answer.reservations(),
            **answer.facts,
            "builds": {b.key: {"outcome": str(b.outcome), "files": b.files_kept} for b in history.builds.values()},
            "stopped": None if history.stopped is None else history.stopped.reason,
        }


def _workload_of(study: Study) -> Workload | None:
    """None where it is not to be had on this machine."""
    try:
        workload: Workload = catalog.part("workloads", study.workload.kind)(study)
    except RidgelineError:
        return None
    return workload


def _ended(history: History, trial: Trial) -> str | None:
    run = history.final_run(trial)
    return None if run is None or run.outcome is None else run.outcome.kind.value


def read_status(path: Path) -> CampaignStatus:
    """The status of the campaign in this folder; never takes the lock, so it may be asked while it runs."""
    folder = StudyFolder.open(path)
    return _status(folder, read_history(folder.path))


def read_status_as_far(path: Path) -> tuple[CampaignStatus, tuple[str, ...]]:
    """As `read_status`, but of a damaged journal what stands before the damage, with what the reader must know."""
    folder = StudyFolder.open(path)
    history, notes = read_history_as_far(folder.path)
    now = _status(folder, history)
    return now, (*notes, *_unfinished(now))


def _status(folder: StudyFolder, history: History) -> CampaignStatus:
    question = question_of(history)
    study = question.applied_to(folder.load(history).study)
    controller = find_controller(folder.lock_path, folder.journal_path)
    return CampaignStatus(question, study, history, controller=controller)


def _unfinished(now: CampaignStatus) -> tuple[str, ...]:
    """That there is more to come, and how; what else than a person stopped a campaign is said by its answer."""
    history = now.history
    interrupted = history.stopped is not None and history.stopped.reason == "interrupted"
    if history.verdict is not None or (history.stopped is not None and not interrupted):
        return ()
    if not history.openings:
        return ("Nothing has happened in this study yet.",)
    so_far = "The study is not over: what follows is what is known so far"
    if now.controller is not None and now.controller.presence is Presence.HERE:
        return (f"{so_far}.",)
    ended = "it was interrupted" if interrupted else "if nothing runs it any more"
    return (f"{so_far}; {ended}, continue with: ridgeline resume {shlex.quote(str(history.root))}",)


def pasted_answer(now: CampaignStatus, workload: Workload | None = None) -> Answer:
    """The answer with its settings as a person types them. The study's own workload is made where none is given."""
    answer = now.answer
    if workload is None:
        # not checked again: the folder may be open on a smaller machine than the one that ran it
        workload = catalog.part("workloads", now.study.workload.kind)(now.study)
    answer = replace(answer, reference_paste=pasted(now.study, workload, answer.reference.point, offered=True))
    if (chosen := answer.to_use) is None:
        return answer
    served, repeat = workload.pasted_as, ""
    if served:  # then it is not what was measured: the last run of this point whose folder is left does that again
        scripts = [run.folder / "run.sh" for trial, run in now.history.ok_runs(*Stage) if trial.point == chosen]
        repeat = next((f"sh {shlex.quote(str(path))}" for path in reversed(scripts) if path.is_file()), "")
    return replace(answer, paste=pasted(now.study, workload, chosen, offered=True), pasted_as=served, repeat=repeat)


def answer_on_paper(now: CampaignStatus) -> Answer:
    """As `pasted_answer`; without what is pasted where the workload is not to be had on this machine."""
    try:
        return pasted_answer(now)
    except RidgelineError:
        return now.answer


def read_winner(path: Path) -> tuple[Point, list[str]]:
    """The confirmed setting of this folder, and its knobs of which the search shows that they brought something."""
    now = read_status(path)
    chosen = now.answer.candidate
    if chosen is None or not chosen.confirmed:
        raise InputError(f"{path}: it has no confirmed setting; finish it, or give the setting as knob=value")
    goal = now.study.goal
    runs = now.history.ok_runs(Stage.BASELINE, Stage.SENTINEL, Stage.SEARCH)
    trials = [(trial.point, run.metrics[goal.metric]) for trial, run in runs]
    found = contributions(now.study.baseline, chosen.point, trials, goal.direction, now.study.confirm.level)
    return chosen.point, [knob for part in found if part.detectable for knob in part.knobs]


def read_answer(path: Path) -> tuple[Answer, Exhibits]:
    now = read_status(path)
    if now.study.workload.kind not in catalog.names("workloads"):
        return now.answer, now.exhibits
    return pasted_answer(now), now.exhibits
