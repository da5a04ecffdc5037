"""Which variables of a slow host's environment make it slow? Delta debugging between two environments, under noise.

The variables that differ are turned from the good host's value to the bad one's, one after the other: a chain of
environments, which is searched as a history of versions is (`kinds/bisect.py`). The variable at which it becomes slow
is needed. Whether it is enough is asked next: from it alone to it with all that came before it in the chain. Where
these do not differ, the search is over; where they do, that chain has the next variable that is needed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.kinds.base import RepeatedSettings
from ridgeline.campaign.kinds.bisect import MOST_RUNS, BisectAgenda, BisectQuestion
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import Setting, parse_point
from ridgeline.campaign.verdict import KeptVerdict, answer_of
from ridgeline.errors import InputError
from ridgeline.files import read_text
from ridgeline.records.answer import NOTHING_PASSED, Answer, Candidate, Reference
from ridgeline.records.exhibit import Exhibits, TextTable
from ridgeline.records.secrets import looks_secret, masked
from ridgeline.records.space import Discrete, Point, point_key
from ridgeline.records.study import NOT_SET, Study
from ridgeline.records.template import is_variable
from ridgeline.records.trial import Stage
from ridgeline.stats.change_points import (
    FOUND,
    NOT_REPRODUCED,
    Observed,
    between_ends,
    change_posterior,
    jumps,
    next_step,
)
from ridgeline.stats.wording import count, metric_text, percent, percent_range
from ridgeline.study.codec import VerdictLine
from ridgeline.study.history import History

_UNRESOLVED = "unresolved"
# what a login, a terminal or a job is: other on every host, and of no effect on how fast a program is
_SESSION = re.compile(
    r"(PWD|OLDPWD|SHLVL|_|HOME|USER|LOGNAME|SHELL|MAIL|HOST|HOSTNAME|TERM\w*|COLORTERM|LS_COLORS|DISPLAY|WINDOWID|COLUMNS|"
    r"LINES|PS1|PROMPT\w*|HIST\w*|LESS\w*|PAGER|EDITOR|STY|TMUX\w*|EUID|UID|LANG|LC_\w+|(SSH|XDG|DBUS|SLURM|PBS|BASH_FUNC|"
    r"RIDGELINE|GITHUB|RUNNER|CI)_\w*%*)"
)


@dataclass(frozen=True, slots=True)
class EnvironmentVerdict(KeptVerdict):
    """`needed` are the variables that make it slow together, none of which can be left out."""

    conclusion: str
    headline: str
    needed: tuple[str, ...] = ()
    change: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0


@dataclass(frozen=True)
class EnvironmentSearch:
    """Of one moment: what is known to be needed, and the chain that is searched. `step` as `next_step` says it.

    `left` are the variables that the chain turns, in its order.
    """

    needed: tuple[str, ...]
    left: tuple[str, ...]
    chain: BisectQuestion
    step: str
    pair: tuple[Point, Point] | None


@dataclass(frozen=True, slots=True)
class EnvironmentQuestion(RepeatedSettings):
    """`good` and `bad` have the same names, those in which the two hosts differ; `variables` of them are variables of
    the environment, the others knobs of the study. `start` is the setting of all other knobs."""

    start: Point
    good: Mapping[str, Any]
    bad: Mapping[str, Any]
    variables: Sequence[str]
    slower: float = 0.03
    most_runs: int = MOST_RUNS
    left_out: Sequence[str] = field(default_factory=list)

    kind: ClassVar[str] = "environment"
    reference: ClassVar[str] = "the good environment"
    stage: ClassVar[str] = "bisect"
    runs_called: ClassVar[str] = "good"

    @property
    def asked(self) -> str:
        return "Which variables of the environment make it slower?"

    @property
    def first(self) -> Point:
        return self.point(())

    def most(self, study: Study) -> int:
        return self.most_runs

    def point(self, bad: Sequence[str]) -> Point:
        """The setting with the bad host's values of these names."""
        return {**self.start, **{name: (self.bad if name in bad else self.good)[name] for name in self.good}}

    def names_of(self, point: Point) -> tuple[str, ...]:
        return tuple(name for name in self.good if point.get(name) == self.bad[name])

    def applied_to(self, study: Study) -> Study:
        own = [Discrete(name, (self.good[name], self.bad[name]), ordered=False) for name in self.variables]
        space = replace(study.space, knobs=(*study.space.knobs, *own))
        # the name of the base: super() does not know a class that slots were added to
        return RepeatedSettings.applied_to(self, replace(study, space=space, variables=tuple(self.variables)))

    def agenda(self, found: CheckedStudy, history: History, ledger: Ledger) -> EnvironmentAgenda:
        return EnvironmentAgenda(found.study, history, ledger, self)

    def verdict_from(self, line: VerdictLine) -> EnvironmentVerdict:
        return EnvironmentVerdict.from_line(line)

    # what the history says

    def skipped(self, history: History, before_block: int | None = None) -> dict[str, str]:
        """Environments in which it does not run, by key, each with why."""
        return self._chain((), ()).skipped(history, before_block)

    def _chain(self, needed: Sequence[str], left: Sequence[str]) -> BisectQuestion:
        points = [self.point((*needed, *left[:turned])) for turned in range(len(left) + 1)]
        return BisectQuestion("", points, self.slower, self.most_runs)

    def state(self, study: Study, history: History, block: int) -> EnvironmentSearch:
        """Where the search stands before this block, found again block by block: what is decided stays decided,
        whatever later runs of the same environments measure."""
        needed: tuple[str, ...] = ()
        left = tuple(self.good)
        step, pair = "", None
        chain = self._chain(needed, left)
        for now in range(1, block + 1):
            while True:
                chain = self._chain(needed, left)
                alive = chain.alive(history, now)
                if len(alive) < 2 or point_key(chain.points[-1]) in chain.skipped(history, now):
                    return EnvironmentSearch(needed, left, chain, NOT_REPRODUCED if needed else NOTHING_PASSED, None)
                runs = chain.runs(study, history, now)
                step, places = next_step(runs, len(alive), self.slower, [1.0] * len(alive))
                pair = None if places is None else (alive[places[0]], alive[places[1]])
                if step != FOUND:
                    break
                needed, left = self._narrowed(needed, left, alive, runs)
                if not left:
                    return EnvironmentSearch(needed, left, self._chain(needed, left), NOT_REPRODUCED, None)
            if step == NOT_REPRODUCED:
                break
        return EnvironmentSearch(needed, left, chain, step, pair)

    def _narrowed(
        self, needed: tuple[str, ...], left: tuple[str, ...], alive: Sequence[Point], runs: Sequence[Observed]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """With what was turned where the chain became slow; what was turned after that is not needed."""
        found = change_posterior(runs, len(alive)).found
        slow = [jump.at for jump in jumps(runs, found) if jump.change > 0] or list(found)
        culprits = [
            name
            for at in slow
            for name in left
            if name in self.names_of(alive[at + 1]) and name not in self.names_of(alive[at])
        ]
        before = self.names_of(alive[slow[-1]])
        return (*needed, *culprits), tuple(name for name in left if name in before and name not in culprits)

    # what every face shows

    def answer(self, study: Study, history: History) -> Answer:
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        facts = {} if verdict is None else {"environment": dict(verdict.details())}
        means = self._means(study, history)
        first = Reference(self.reference, self.point(()), means.get(point_key(self.point(()))))
        candidate = None
        if verdict is not None and verdict.needed:
            key = point_key(self.point(verdict.needed))
            trial = next((trial for trial in history.trials.values() if trial.key == key and key in means), None)
            if trial is not None:
                candidate = Candidate("with these alone", trial.number, trial.point, trial.settings, means[key])
        answer = answer_of(self.kind, history.verdict, first, candidate, facts, offers=False)
        if verdict is None or verdict.conclusion == FOUND:
            return answer
        return replace(answer, undecided=verdict.conclusion == _UNRESOLVED, not_better=verdict.headline)

    def _means(self, study: Study, history: History) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for trial, run in history.ok_runs(Stage.BASELINE, Stage.CONFIRM):
            values.setdefault(trial.key, []).append(run.metrics[study.goal.metric])
        return {key: math.fsum(found) / len(found) for key, found in values.items()}

    def exhibits(self, study: Study, history: History) -> Exhibits:
        means, skipped = self._means(study, history), self.skipped(history)
        points = {trial.key: trial.point for trial in history.trials.values()}
        rows = tuple(
            (self._called(point), metric_text(means[key]) if key in means else "did not run")
            for key, point in points.items()
            if key in means or key in skipped
        )
        notes = tuple(f"{self._called(points[key])}: {why}" for key, why in skipped.items())
        tables = [TextTable("Runs", ("from the bad host", study.goal.metric), rows, notes=notes)]
        verdict = None if history.verdict is None else self.verdict_from(history.verdict)
        if verdict is not None and verdict.needed:
            differ = tuple((name, str(self.good[name]), str(self.bad[name])) for name in verdict.needed)
            tables.append(TextTable("What makes it slow", ("name", "good host", "bad host"), differ))
        out = () if not self.left_out else (f"left out: {', '.join(self.left_out)}",)
        groups = {t.number: self._called(t.point) for t in history.trials.values()}
        return Exhibits(tables=tuple(tables), notes=out, groups=groups)

    def _called(self, point: Point) -> str:
        names = self.names_of(point)
        if len(names) == len(self.good) and len(names) > 1:
            return f"all {len(names)}"
        return " ".join(names) or "nothing"


@dataclass
class EnvironmentAgenda(BisectAgenda):
    """Blocks A B B A as those of a bisection; which pair, the chain of the moment says."""

    question: EnvironmentQuestion  # type: ignore[assignment]

    def _pair(self, block: int) -> tuple[Point, Point] | None:
        started = [trial.point for trial in self.history.trials.values() if trial.block == block]
        known = list({point_key(point): point for point in started}.values())
        if len(known) == 2:
            return (known[0], known[1]) if block % 2 else (known[1], known[0])
        done = sum((t.block or 0) < block for t, _ in self.history.ok_runs(Stage.BASELINE, Stage.CONFIRM))
        if done + 4 > self.question.most_runs:
            return None
        return self.question.state(self.study, self.history, block).pair

    def conclude(self) -> EnvironmentVerdict:  # type: ignore[override]
        question, study, history = self.question, self.study, self.history
        last = max((trial.block or 0 for trial in history.trials.values()), default=0)
        state = question.state(study, history, last + 1)
        ran = history.ok_runs(Stage.BASELINE, Stage.CONFIRM)
        runs, metric = len(ran), study.goal.metric
        if any(run.metrics[metric] <= 0 for _, run in ran):
            text = f"{metric} is not above 0 in every run, and ratios need that; choose another goal"
            return EnvironmentVerdict(_UNRESOLVED, text, runs=runs)
        if state.step == NOTHING_PASSED:
            why = question.skipped(history).get(point_key(question.point(tuple(question.good))), "")
            text = f"it does not run in the bad environment: {why}; take what it needs there out of the file"
            return EnvironmentVerdict(NOTHING_PASSED, text, runs=runs)
        bad = state.needed or tuple(question.good)
        ends = BisectQuestion("", [question.point(()), question.point(bad)])
        measured = between_ends(ends.runs(study, history), 1)
        if measured is None:
            text = f"the budget ended after {count(runs, 'run')}; give it more"
            return EnvironmentVerdict(_UNRESOLVED, text, runs=runs)
        change = measured.range()
        size = f"slowdown {percent(change[0])} (95%: {percent_range(*change[1:])}; {count(runs, 'run')})"
        names = ", ".join(map(self._text, state.needed))
        if state.step != NOT_REPRODUCED:
            known = f"{f'{names} and something ' if names else ''}among {', '.join(state.left)}"
            text = f"not resolved: {known}; {size}; continue with more --runs or budget"
            return EnvironmentVerdict(_UNRESOLVED, text, state.needed, *change, runs=runs)
        if not state.needed:
            of = count(len(question.good), "difference")
            text = f"not reproduced here: the bad host's environment ({of}) against the good one's: {size}"
            text += f"; {question.slower * 100:.2g}% was looked for"
            return EnvironmentVerdict(NOT_REPRODUCED, text, (), *change, runs)
        alone = "makes" if len(state.needed) == 1 else "together make"
        text = f"{names} {alone} it slow, of {count(len(question.good), 'difference')}: {size}"
        return EnvironmentVerdict(FOUND, text, state.needed, *change, runs)

    def _text(self, name: str) -> str:
        good, bad = str(self.question.good[name]), str(self.question.bad[name])
        if bad == NOT_SET:
            return f"{name} not set (good: {_short(good)})"
        return f"{name}={_short(bad)} ({'not set on the good host' if good == NOT_SET else f'good: {_short(good)}'})"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}"


# the question as it is typed


def environment_question(
    found: CheckedStudy, good: Path, bad: Path, at: Setting, slower: float, most_runs: int
) -> EnvironmentQuestion:
    """What differs between the files of two hosts. A name that is a knob of the study is one here too."""
    study = found.study
    sides = [_variables_in(path) for path in (good, bad)]
    start = dict(parse_point(found, at, study.baseline))
    chosen: list[dict[str, Any]] = [{}, {}]
    variables, left_out = [], []
    for name in sorted({*sides[0], *sides[1]}):
        values = [side.get(name, NOT_SET) for side in sides]
        taken: list[Any] = list(values)
        if values[0] == values[1]:
            continue
        if name in study.space.by_name and NOT_SET not in values:
            taken = [parse_point(found, f"{name}={value}", start)[name] for value in values]
        elif _SESSION.fullmatch(name) or name in study.space.by_name:
            left_out.append(name)
            continue
        elif any(looks_secret(value) or masked(f"{name}={value}") != f"{name}={value}" for value in values):
            left_out.append(f"{name} (looks like a secret)")
            continue
        else:
            variables.append(name)
        for side, value in zip(chosen, taken, strict=True):
            side[name] = value
    if not chosen[0]:
        what = f"; left out as no cause: {', '.join(left_out)}" if left_out else ""
        raise InputError(f"{good} and {bad} do not differ in anything that can be tried{what}")
    return EnvironmentQuestion(start, chosen[0], chosen[1], variables, slower, most_runs, left_out)


def _variables_in(path: Path) -> dict[str, str]:
    """What `env`, `env -0`, `export -p` or the file `env` of a run folder say."""
    try:
        text = read_text(path)
    except OSError as error:
        why = f"cannot be read ({error.strerror}); write it on that host: env > {path.name}"
        raise InputError(f"{path}: {why}") from None
    found = {}
    for line in text.split("\0") if "\0" in text else text.splitlines():
        name, equals, value = re.sub(r"^(export|declare -x) ", "", line).partition("=")
        if not equals or not is_variable(name):
            continue  # a value of several lines, a comment, a function
        if line.startswith(("export ", "declare ")):
            try:
                value = "".join(shlex.split(value))
            except ValueError:
                continue
        found[name] = value
    if not found:
        raise InputError(f"{path}: holds no variable; write it on that host: env > {path.name}")
    return found
