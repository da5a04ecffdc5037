"""A study folder as the dashboard sees it: its journal followed as it grows, in the wording of all other output."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.campaign.kinds.base import question_of
from ridgeline.campaign.status import CampaignStatus, answer_on_paper
from ridgeline.cli.text.snapshot import snapshot_of
from ridgeline.errors import RidgelineError
from ridgeline.files import stamp
from ridgeline.records.space import Knob, Point
from ridgeline.records.study import Study
from ridgeline.report import page as report_page
from ridgeline.report.live.page import live_html
from ridgeline.report.live.snapshot import Snapshot, State
from ridgeline.report.sections import Findings
from ridgeline.study.folder import STUDY, StudyFolder
from ridgeline.study.history import History
from ridgeline.study.instructions import INSTRUCTIONS, Instruction, waiting_instructions
from ridgeline.study.journal import JournalTail
from ridgeline.study.lock import Presence, find_controller
from ridgeline.study.state_files import newest_log

# what reading a damaged, edited or half-deleted folder can raise: shown on the page
_TROUBLE = (RidgelineError, OSError, ValueError, LookupError, ArithmeticError)
_CURRENT_S = 1.0  # a picture is good for so long where nothing changed: its clocks move


@dataclass
class WatchedStudy:
    """Several threads may ask at once; they wait for each other, and share what one of them worked out."""

    path: Path
    _tail: JournalTail = field(init=False)
    _history: History = field(init=False)
    _study: Study | None = field(default=None, init=False)
    _shown: tuple[object, float, Snapshot] | None = field(default=None, init=False)
    _busy: threading.RLock = field(default_factory=threading.RLock, init=False)

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.path / "journal.jsonl")
        self._history = History(self.path.resolve())

    def pulse(self) -> object:
        with self._busy:
            logs = [newest_log(run.folder) for run in self._history.open_runs.values()]
        files = (self._tail.path, self.path / STUDY, self.path / INSTRUCTIONS, *(log for log in logs if log))
        return (*map(stamp, files), self._presence())

    def _presence(self) -> Presence | None:
        try:
            return find_controller(self.path / "lock", self._tail.path).presence
        except OSError:
            return None

    def snapshot(self) -> Snapshot:
        with self._busy:
            pulse, now_s = self.pulse(), time.monotonic()
            if self._shown is None or self._shown[0] != pulse or now_s - self._shown[1] > _CURRENT_S:
                self._shown = (pulse, now_s, self._look())
            return self._shown[2]

    def _look(self) -> Snapshot:
        try:
            now = self.status()
            answer = replace(now.answer, paste=_confirmed_paste(now))
            found = Findings(now.study, now.history, answer, now.exhibits)
            return replace(snapshot_of(now, time.time(), waiting_instructions(self.path)), **live_html(found))
        except _TROUBLE as error:
            before = Snapshot(self.path.name, State.DAMAGED, "") if self._shown is None else self._shown[2]
            return replace(before, state=State.DAMAGED, state_text="", note=str(error), steerable=False)

    def status(self) -> CampaignStatus:
        """As `read_status`, but of a long journal only what is new is read."""
        with self._busy:
            if self._study is None:
                StudyFolder.open(self.path)
            try:
                before = self._tail.lines
                anew, events = self._tail.poll()
                if anew:
                    self._history, self._study, before = History(self.path.resolve()), None, 0
                self._history.apply_all(events, before + 1)
            except _TROUBLE:
                self._tail.restart()
                self._history, self._study = History(self.path.resolve()), None
                raise
            history = self._history
            question = question_of(history)
            if self._study is None:
                self._study = StudyFolder(self.path).load(history).study
            controller = find_controller(self.path / "lock", self._tail.path)
            return CampaignStatus(question, question.applied_to(self._study), history, controller=controller)

    def _readable(self) -> CampaignStatus | None:
        try:
            return self.status()
        except _TROUBLE:
            return None

    def knobs(self) -> tuple[Sequence[Knob], Point]:
        now = self._readable()
        if now is None or now.question.kind != "search":
            return (), {}
        best = now.answer.candidate
        return now.study.space.knobs, now.study.baseline if best is None else best.point

    def refusal(self, instruction: Instruction) -> str:
        try:
            now = self.status()
        except _TROUBLE as error:
            return str(error)
        if not now.is_over:
            return ""
        more = " --trials +N" if now.history.verdict is not None else ""
        return f"the campaign is over; continue with: ridgeline resume {shlex.quote(str(self.path))}{more}"

    def metrics(self) -> tuple[Mapping[str, Any], str] | None:
        now = self._readable()
        return None if now is None else (now.as_json(), now.study.goal.metric)

    def report(self) -> bytes:
        if (now := self._readable()) is None:
            return b""
        return b"".join(report_page.page(Findings(now.study, now.history, answer_on_paper(now), now.exhibits)))


def _confirmed_paste(now: CampaignStatus) -> str:
    """What to type, as the verdict has it; a page that is drawn at every change asks no workload."""
    return "" if now.history.verdict is None else str(now.history.verdict.details.get("paste", ""))
