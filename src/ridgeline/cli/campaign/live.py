"""Drives a campaign from the terminal: a live picture where there is one, a line per finished run elsewhere."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from ridgeline.campaign.assembly import assemble_campaign
from ridgeline.campaign.controller import Campaign, Interrupted
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.machine import busy_machine
from ridgeline.campaign.status import CampaignStatus, pasted_answer
from ridgeline.campaign.verdict import goal_text, is_simulated
from ridgeline.cli.terminal import clean_line, uncleaned
from ridgeline.cli.text.answer import answer_lines, details_lines, error_of, paste_lines
from ridgeline.cli.text.picture import EMPTY, FULL, fitted, in_ascii, picture_lines
from ridgeline.cli.text.wording import (
    answered_text,
    clock_text,
    leftover_text,
    node_hours_text,
    run_time_text,
    setting_text,
)
from ridgeline.errors import ExitCode
from ridgeline.records.answer import Answer
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import Run
from ridgeline.records.trial import Stage, Trial
from ridgeline.report import insights as report_insights
from ridgeline.report import page, sections
from ridgeline.stats.wording import count
from ridgeline.study.codec import Extension
from ridgeline.study.folder import StudyFolder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

Seen = Campaign | CampaignStatus  # one that runs here, or one of which the folder is followed
T = TypeVar("T")
REDRAW_S = 0.2
_TICK_S = 1.0
_WAIT_SAID_AFTER_S = 5.0
_BOX_WIDTH = 100
# of the live picture's lines; colour only adds to what the words say, and NO_COLOR leaves the words
_STYLES = (
    (r"(?m)^  #\d+ +running .*$", "cyan"),
    (r"(?m)^  #\d+ +waiting .*$", "yellow"),
    (r"(?m)^  best .*$", "bold"),
    (r"(?m)^  failed .*$", "red"),
    (rf"{FULL}+", "yellow"),
    (rf"{EMPTY}+", "dim"),
)


def drive(
    folder: StudyFolder,
    question: CampaignQuestion | None,
    as_json: bool,
    extension: Extension | None = None,
    why: bool = False,
) -> None:
    """Run to the end or to Ctrl-C, write the report, print the answer. Leaves with the documented exit codes.

    `why` also prints why each trial was chosen.
    """
    with _stop_flag() as stopping:
        face = TerminalView(quiet=as_json, why=why)

        def stop_asked() -> bool:
            # the campaign asks at least twice a second, also while one run takes an hour: the clock moves with it
            face.tick()
            return stopping[0]

        with assemble_campaign(folder, question, face.update, stop_asked, extension) as campaign:
            face.title(campaign, len(folder.missing(run.folder for run in campaign.history.runs.values())))
            try:
                with face:
                    campaign.run()
            except (Interrupted, KeyboardInterrupt):
                again = f"ridgeline resume {quote(str(folder.path))}"
                print(
                    f"\nstopped; everything measured is kept{_going_on(campaign)}. Go on with: {again}", file=sys.stderr
                )
                sys.exit(ExitCode.INTERRUPTED)
            now = _status_of(campaign)
            answer = pasted_answer(now, campaign.workload)

    report = page.write_report(sections.Findings(now.study, now.history, answer, now.exhibits), folder.report_path)
    seen = report_insights.insights(now.study, now.history, now.answer)
    if as_json:
        more = {"paste": answer.paste, "insights": seen, "folder": str(folder.path), "report": str(report)}
        _show(json.dumps(now.as_json() | more, indent=1))
    elif face.is_terminal:
        face.close(answer, now, [*seen, f"report  {report}"])
    else:
        lines = [*answer_lines(answer, now.exhibits), "", *(f"  {line}" for line in seen), f"  report  {report}"]
        _show("", *lines)
    if answer.lacks:
        raise error_of(answer)(answer.lacks)


def _going_on(campaign: Campaign) -> str:
    """Jobs that wait, run and are charged although we leave."""
    jobs = [run.ticket.partition(" ")[0] for run in campaign.history.open_runs.values() if run.ticket]
    if not jobs or not campaign.executor.detached:
        return ""
    return f". Jobs left to the batch system, for resume to read: {', '.join(jobs)}"


def _status_of(seen: Seen) -> CampaignStatus:
    if isinstance(seen, CampaignStatus):
        return seen
    return CampaignStatus(seen.question, seen.study, seen.history, seen.ledger)


@contextmanager
def _stop_flag() -> Iterator[list[bool]]:
    """The first Ctrl-C (or SIGTERM) asks the campaign to stop at the next safe moment; the second one stops at once."""
    asked = [False]

    def ask(number: int, frame: object) -> None:
        asked[0] = True
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(*lines: str) -> None:
    """Print until the reader goes away: a closed pipe (`| head`) ends the output, not the campaign."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class TerminalView:
    """What a terminal shows of a campaign, its own or one that is followed. `console`: standard output by default."""

    def __init__(self, quiet: bool, console: Console | None = None, why: bool = False) -> None:
        self._quiet = quiet
        self._why = why
        self._console = console
        self._best: float | None = None  # score of the best run of the search so far
        self._live: Live | None = None
        self._seen: Seen | None = None
        self._shown = {"runs": 0, "aside": 0, "answers": 0}
        self._height = 0
        self._drawn_s = 0.0
        self._said: set[object] = set()  # what is said once

    def title(self, campaign: Campaign, deleted: int = 0) -> None:
        """`deleted`: how many run folders are gone."""
        self._seen = campaign
        study, history = campaign.study, campaign.history
        done, answers = len(history.runs), len(history.instructions.answers)
        self._shown = {"runs": done, "aside": len(history.set_aside), "answers": answers}
        if not self._quiet:
            resumed = f"   {count(done, 'run')} kept" if done else ""
            kind = campaign.question.kind
            how = study.search.sampler if kind == "search" else kind
            _show(f"{study.name}   {study.workload.kind} on {study.site.name}   {how}{resumed}\n")
        if deleted and not self._quiet:
            _show(f"  {deleted} run folders were deleted; what they measured is kept in the journal\n")

    def __enter__(self) -> TerminalView:
        if not self._quiet and (self._console is not None or sys.stdout.isatty()):
            from rich.console import Console
            from rich.live import Live

            self._console = self._console or Console(file=uncleaned(sys.stdout))
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_terminal(self) -> bool:
        return self._console is not None

    def close(self, answer: Answer, now: CampaignStatus, more: Sequence[str]) -> None:
        """The answer last, where a reader looks: what it rests on, then what to paste, then a box."""
        assert self._console is not None
        from rich.panel import Panel
        from rich.text import Text

        width = self._console.width - 1
        above = [*details_lines(answer, now.exhibits), "", *(f"  {line}" for line in more)]
        for line in ("", *above, ""):
            self._print(clean_line(line))
        for line in paste_lines(answer.paste) if answer.paste else []:
            self._console.print(clean_line(line), style="bold", highlight=False, markup=False, soft_wrap=True)
        text = Text(clean_line(answer.statement), style="bold")
        spent = f"{count(len(now.history.runs), 'run')}, {node_hours_text(now.history.node_hours)}"
        text.append(f"\n{spent}", style="not bold dim")
        look = "green" if answer.confirmed else "yellow" if not answer.conclusion else "cyan"
        self._console.print(Panel(text, border_style=look, width=min(width, _BOX_WIDTH), padding=(0, 1)))

    def tick(self) -> None:
        """Called again and again while nothing happens: redraws when the clock has moved on."""
        if self._seen is not None and time.monotonic() - self._drawn_s > _TICK_S:
            self._draw(self._seen)
            if self._live is None and not self._quiet:
                self._say_what_waits(self._seen)

    def update(self, seen: Seen) -> None:
        self._seen = seen
        if self._quiet:
            return
        history = seen.history
        for run in self._new("runs", history.runs.values()):
            self._say(seen, run)
        for block in self._new("aside", history.set_aside):
            self._print(clean_line(f"  block {block.block} of the confirmation is run again: {block.reason}"))
        for line in self._new("answers", history.instructions.answers.values()):
            self._print(clean_line(f"  instruction: {answered_text(line)}"))
        if time.monotonic() - self._drawn_s > REDRAW_S:
            self._draw(seen)

    def _new(self, what: str, items: Collection[T]) -> Iterator[T]:
        """Those that came since this was last asked."""
        shown, self._shown[what] = self._shown[what], len(items)
        return islice(items, shown, None)

    def _draw(self, seen: Seen) -> None:
        self._drawn_s = time.monotonic()
        if self._live is None:
            return
        from rich.text import Text

        # one column less: a terminal that is full to its last column begins another line
        lines = picture_lines(_status_of(seen), self._live.console.width - 1, time.time())
        # never lower than before, its last lines always in the same place: between two runs it would jump otherwise
        self._height = max(self._height, len(lines))
        lines = [""] * (self._height - len(lines)) + lines
        shown = "\n".join(map(clean_line, lines))
        if self._live.console.options.ascii_only:
            shown = in_ascii(shown)
        text = Text(shown, no_wrap=True, overflow="ignore")
        for pattern, look in _STYLES:
            text.highlight_regex(pattern, look)
        self._live.update(text, refresh=True)

    def _say(self, seen: Seen, run: Run) -> None:
        if is_simulated(seen.study, seen.history):
            self._say_once("simulated: these figures come from a model, nothing is measured")
        headline, story = run_text(seen, run, self._why)
        if self._live is None:
            _show(f"{headline}   {story}" if story else headline)
        else:
            self._print(headline, self._look_of(seen, run))
            if story:
                self._print(f"{'':8}{story}", "dim")
        if busy := busy_machine(seen.history, seen.study.goal.metric):
            self._say_once(busy)

    def _look_of(self, seen: Seen, run: Run) -> str:
        """How a line of a run is set: red where it failed, bold where the search has a new best."""
        if run.outcome != Outcome(Kind.OK):
            return "red"
        goal = seen.study.goal
        if seen.history.trials[run.trial].stage is not Stage.SEARCH or goal.metric not in run.metrics:
            return ""
        score = goal.score(run.metrics[goal.metric])
        if self._best is not None and score <= self._best:
            return ""
        self._best = score
        return "bold yellow"

    def _say_what_waits(self, seen: Seen) -> None:
        """Each reason once: where there is no picture, nothing else shows why nothing happens."""
        now_s = time.time()
        for run in _status_of(seen).under_way(now_s):
            if run.waits and run.elapsed_s >= _WAIT_SAID_AFTER_S:
                line = f"#{run.trial.number:<4} {clock_text(run, now_s)}"
                self._say_once(clean_line(line), about=(run.trial.number, run.waits))

    def _say_once(self, text: str, about: object = None) -> None:
        if (about or text) not in self._said:
            self._said.add(about or text)
            self._print(f"  {text}")

    def _print(self, line: str, look: str = "") -> None:
        if self._console is None:
            _show(line)
            return
        for piece in fitted(line, self._console.width - 1):
            # soft_wrap: a word wider than the terminal goes on in its next line and can still be copied whole
            self._console.print(piece, style=look, highlight=False, markup=False, soft_wrap=True)


def run_text(seen: Seen, run: Run, why: bool = False) -> tuple[str, str]:
    """What was run and what came out; and the reason of a failure: `out of memory ...; stderr:311: ...`.

    With `why`, also the reason for which the trial was chosen.
    """
    trial = seen.history.trials[run.trial]
    assert run.outcome is not None
    metric = seen.study.goal.metric
    story = [trial.why] if why and trial.why and trial.stage is Stage.SEARCH else []
    if run.outcome.kind == "ok":
        result = goal_text(seen.study, seen.history).value(run.metrics[metric])
    else:
        result = run.outcome.kind.text
        evidence = f"; {run.outcome.evidence}" if run.outcome.evidence else ""
        story.append(f"{run.outcome.reason}{evidence}")
    if run.ending.leftovers:
        story.append(f"left behind and ended: {leftover_text(run.ending.leftovers)}")
    text = f"#{run.trial:<4} {seen.question.called(trial):<8} {run_time_text(run.ending.duration_s):>5}   {result}"
    # settings can be long: the result stands before them
    return clean_line(f"  {text}   {_settings_of(seen, trial)}"), clean_line("   ".join(story))


def _settings_of(seen: Seen, trial: Trial) -> str:
    """All of the first setting once, then what differs from it; of one that ran before, its number."""
    if trial.number == 1:
        return setting_text(trial.point)
    if trial.stage in (Stage.CONFIRM, Stage.WARM_UP) and trial.point != seen.study.baseline:
        before = (each for each in seen.history.trials.values() if each.stage is Stage.SEARCH)
        first = next((each.number for each in before if each.point == trial.point), None)
        if first is not None:
            return f"the setting of #{first}"
    changed = {name: value for name, value in trial.point.items() if seen.study.baseline.get(name) != value}
    again = "the same setting" if seen.question.kind == "gate" else seen.question.reference
    return setting_text(changed) or f"{again} again"
