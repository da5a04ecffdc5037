"""Does a study folder bear out what it says? Every stated number again, from the journal and the run folders alone.

`Verification` is what such a check found: what does not match, what cannot be checked, and how much was compared.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ridgeline import __version__, catalog
from ridgeline.campaign.assembly import as_asked
from ridgeline.campaign.builds import Recipe
from ridgeline.campaign.check import CheckedStudy
from ridgeline.campaign.confirmation import ConfirmationPlan
from ridgeline.campaign.judge import judge, reading_of, without_blame
from ridgeline.campaign.kinds.base import CampaignQuestion, FormerQuestion, question_of
from ridgeline.campaign.ledger import Ledger
from ridgeline.campaign.point_text import pasted
from ridgeline.campaign.task import COMPLIANCE_FILE, compliance, signature_of
from ridgeline.campaign.verdict import NOT_PROVABLE, judged_today
from ridgeline.errors import RidgelineError, StoreError
from ridgeline.executors.base import BY_HAND, EXIT_FILE, Executor
from ridgeline.files import NotRegularError, read_regular, read_text, text_of
from ridgeline.records.exhibit import Shown, TextTable
from ridgeline.records.expression import ExpressionError, is_number
from ridgeline.records.measurement import Reading, metric_named
from ridgeline.records.outcome import Kind, Outcome
from ridgeline.records.run import PREDICTED, Cause, Job, Run
from ridgeline.records.secrets import HIDDEN
from ridgeline.records.site import NODES_ENV, SPEED_ENV, STOPS_AT_ENV
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.study.codec import Event, VerdictLine, measurement_line, outcome_line
from ridgeline.study.folder import (
    JOURNAL,
    RUNS,
    STUDY,
    StudyFolder,
    require_consistent,
    require_same_question,
    to_be_read,
)
from ridgeline.study.history import History
from ridgeline.study.journal import read_events
from ridgeline.study.state_files import RESULT_FILE, STATE_KEY, state_file
from ridgeline.study.study_file import StudyFile
from ridgeline.workloads.base import Workload

_ABSENT = "nothing"  # what was found where something is stated, and the other way round
_NUMBERS = re.compile(r"[-+]?\d+(?:\.\d+)?")
_WORDS = re.compile(r"[\w.+-]+")
_RELATIVE_TOLERANCE = 1e-9  # another machine's libm may differ in the last digit


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`file` is relative to the study folder; `stated` is what the folder says, `found` what follows from the rest."""

    file: str
    what: str
    stated: Any
    found: Any
    run: int | None = None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that may well be right, and why nobody can tell from this folder or on this machine."""

    file: str
    why: str
    run: int | None = None


@dataclass(repr=False)
class Verification(Shown):
    """Filled while a folder is checked. It holds as long as there is no mismatch."""

    folder: str
    mismatches: list[Mismatch] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    runs: int = 0
    numbers: int = 0  # measurements that were read again and are as stated
    outcomes: int = 0
    verdict: bool | None = None  # derived again and as stated; None: there is none, or it cannot be derived
    receipts: tuple[Mapping[str, Any], ...] = ()
    signature: str = ""  # of the record of the task's rules, made again and as stated

    @property
    def holds(self) -> bool:
        return not self.mismatches

    def differs(self, file: str, what: str, stated: Any, found: Any, run: int | None = None) -> None:
        self.mismatches.append(Mismatch(file, what, stated, found, run))

    def cannot_check(self, file: str, why: str, run: int | None = None) -> None:
        gap = Unchecked(file, why, run)
        if gap not in self.unchecked:
            self.unchecked.append(gap)

    def shown(self) -> TextTable:
        found = "every number that was checked holds" if self.holds else f"{len(self.mismatches)} do not hold"
        rows = tuple((each.file, each.what, str(each.stated), str(each.found)) for each in self.mismatches[:20])
        counted = f"{self.runs} runs, {self.numbers} numbers, {self.outcomes} outcomes"
        notes = (f"{counted}; {len(self.unchecked)} not checked",)
        return TextTable(f"{self.folder}: {found}", ("file", "what", "stated", "found"), rows, notes=notes)

    def as_json(self) -> dict[str, Any]:
        return {"holds": self.holds, **asdict(self)}


def differences(stated: Any, found: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where `found` is not what is stated: the place, and both. What is found beyond that is no difference."""
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for name, value in stated.items():
            yield from differences(value, found.get(name, _ABSENT), f"{at}.{name}" if at else str(name))
    elif isinstance(stated, list | tuple) and isinstance(found, list | tuple) and len(stated) == len(found):
        for index, (one, other) in enumerate(zip(stated, found, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif not same(stated, found):
        yield at, stated, found


def same(stated: Any, found: Any) -> bool:
    if is_number(stated) and is_number(found) and max(abs(stated), abs(found)) < sys.float_info.max:
        return math.isclose(stated, found, rel_tol=_RELATIVE_TOLERANCE, abs_tol=1e-12)
    if isinstance(stated, list | tuple) and isinstance(found, list | tuple):
        return list(stated) == list(found)
    return bool(stated == found) and isinstance(stated, bool) == isinstance(found, bool)


def reworded(stated: Any, found: Any, kept: re.Pattern[str] = _NUMBERS, exact: Iterable[float] = ()) -> bool:
    """Whether two texts differ in their wording only: all that is `kept` of the stated one is in the other.

    Releases say things better than earlier ones did; the figures of a sentence stay, and the words of a command. A
    figure may have more digits or fewer than today, as long as it is one of the `exact` ones, rounded.
    """
    if not isinstance(stated, str) or not isinstance(found, str):
        return False
    gone = set(kept.findall(stated)) - set(kept.findall(found))
    return all(any(_is_rounded(text, value) for value in exact) for text in gone)


def _is_rounded(text: str, exact: float) -> bool:
    """Whether a figure of a sentence is this number, or the change or percentage that it comes to."""
    if _NUMBERS.fullmatch(text) is None:
        return False
    places = len(text.partition(".")[2])
    ways = (exact, exact - 1, 100 * exact, 100 * (exact - 1))
    return any(f"{value:.{places}f}" == text.removeprefix("+") for value in ways)


def _numbers_in(value: Any) -> Iterator[float]:
    """All numbers of a JSON value, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        yield from (number for each in value for number in _numbers_in(each))
    elif isinstance(value, float) and math.isfinite(value):
        yield value


# a path with a space stands in quotes; one without does not
_QUOTED_PATH, _SPACE = re.compile(r"'(/[^'\n]*)'"), "\x1a"
_PLACES = (
    (re.compile(r"(?:/[^\s'\":,/]+)+/(?=(?:sources|runs|builds)/)"), "STUDY/"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/python[\d.]*(?![\w.-])"), "PYTHON"),
    (re.compile(r"(?:/[^\s'\":,/]+)+/ridgeline(?=[/'\"\s]|$)"), "PACKAGE"),
)
_OWN_VERB = re.compile(r"(?<= -m ridgeline )[a-z][a-z-]*")


def anywhere(text: str) -> str:
    """A text without what differs from machine to machine (where the study, the interpreter and this package lie), and
    with our verbs as they are called today."""
    former = {old: new for old, new in catalog.former_verbs().items() if not new.startswith(f"{old} ")}
    text = _OWN_VERB.sub(lambda found: former.get(found[0], found[0]), text)
    text = _QUOTED_PATH.sub(lambda found: found[1].replace(" ", _SPACE), text)
    for place, name in _PLACES:
        text = place.sub(name, text)
    return text.replace(_SPACE, " ")


_SCRIPT, _ENV = "run.sh", "env"
_TRIMMED = "trimmed.txt"  # in the study folder: paths and patterns of what was removed or shortened, one a line
_LOCALE = "export LC_ALL=C.UTF-8"  # of every run.sh that names no other; earlier ones had the caller's
_DATES_S = 5.0  # file systems and clocks of nodes differ by this much
_CLOCK_STEP_S = 0.011  # /proc/uptime counts hundredths
_OF_THE_RUN = ("", "run")  # sources of measurements that are no files: the journal's own account of the ending
_FOLDER = re.compile(r"^cd (\S.*) \|\| exit", re.MULTILINE)
_RUN_ID = re.compile(r"RIDGELINE_RUN=[0-9a-f]+")
# where a pretended cluster put the run, and how fast that place is: as little part of the setting as a real one's nodes
_PRETENDED_PLACE = tuple(f"export {name}=" for name in (NODES_ENV, SPEED_ENV, STOPS_AT_ENV))
# what was predicted of a run is no part of what it was given; the measurement that is read from it is compared
_PREDICTED = re.compile(r'"predicted_tok_s": [^,}\s]+')


def _acts(script: str) -> Iterator[str]:
    """The lines that do something, wherever the folder lies. Directives ask for a place, and nodes to avoid change."""
    if (home := _FOLDER.search(script)) is not None and "$(" not in home[1]:
        for spelled in dict.fromkeys((home[1], *shlex.split(home[1]))):
            script = script.replace(spelled, "FOLDER")
    for line in script.splitlines():
        if line.strip() and line != _LOCALE and not line.startswith(("#", *_PRETENDED_PLACE)):
            yield anywhere(_RUN_ID.sub("RIDGELINE_RUN=ID", line))


@dataclass(frozen=True)
class _RunCheck:
    """Checks the ended runs of one history against their folders.

    Each run is also prepared once more, in a folder that is thrown away, and what that leaves is compared with what is
    there. What another release wrote may be worded otherwise: its script must then hold the command, and is not
    compared further.
    """

    study: Study
    history: History
    workload: Workload | None  # None: it cannot be imported here
    ended: Mapping[int, Event]  # the journal's lines by run number, as they stand there
    trimmed: tuple[str, ...]
    found: Verification

    def all_runs(self) -> None:
        reference: Mapping[str, object] = {}  # none was there for the first run to be compared with
        for run in self.history.runs.values():
            self.found.runs += 1
            stage = self.history.trials[run.trial].stage
            if stage is Stage.SHORT:
                why = "a short trial of an earlier release, which this one cannot prepare or judge again"
                self.found.cannot_check(self._relative(run.folder), why, run.number)
                continue
            self._one(run, reference)
            if run.outcome is not None and run.outcome.kind is Kind.OK and stage is Stage.BASELINE:
                reference = self.history.reference_of(stage)

    def _one(self, run: Run, baseline: Mapping[str, object]) -> None:
        if not run.folder.is_dir():
            if not self._gap(run, ""):
                self._differs(run, "", "the run's folder", "is in the journal", "is not there")
            return
        expected = f"{RUNS}/{run.number:04d}-{self.history.trials[run.trial].label}"
        if (where := self._relative(run.folder)) != expected:
            what = "the run's folder, which is named after its setting"
            self.found.differs(JOURNAL, what, where, expected, run.number)
        self._result(run)
        self._exit(run)
        assert run.outcome is not None
        if run.outcome in self.history.build_outcomes - {Outcome(Kind.OK)}:
            return
        if run.outcome.kind is Kind.BUILD_FAILED:
            what = "no such build in the journal"
            self.found.differs(JOURNAL, "a failed build", str(run.outcome), what, run.number)
            return
        if not (run.folder / _SCRIPT).is_file() and not self._declared(run, _SCRIPT):
            self._differs(run, _SCRIPT, "the script that repeats the run", "is kept", _ABSENT)
        if self.workload is not None:
            self._given_again(self.workload, run)
            self._read_again(self.workload, run, baseline)

    # what the journal and result.json say

    def _result(self, run: Run) -> None:
        try:
            result = json.loads(read_text(run.folder / RESULT_FILE))
        except FileNotFoundError:
            self._gap(run, RESULT_FILE)
            return
        except (OSError, ValueError, RecursionError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            self._differs(run, RESULT_FILE, "the run's result", "a JSON document", f"damaged: {why}")
            return
        if isinstance(result, dict):
            result.pop(STATE_KEY, None)  # the run's own account, which the journal does not repeat
        line = {name: value for name, value in self.ended[run.number].items() if name not in ("event", "at")}
        journal = {"settings": dict(self.history.trials[run.trial].settings), **line}
        pairs = {at: (stated, found) for at, stated, found in differences(result, journal)}
        pairs |= {at: (stated, found) for at, found, stated in differences(journal, result)}
        for at, (stated, found) in pairs.items():
            self._differs(run, RESULT_FILE, f"{at}, against the journal", stated, found)

    def _exit(self, run: Run) -> None:
        """The exit code and the duration as the run itself wrote them down, on the node's own clocks.

        A pretended or a batch site may tell another ending.
        """
        left = state_file(run.folder, EXIT_FILE)
        if run.ending.cause is not Cause.EXITED or run.ending.exit_code is None or left is None:
            return
        fields = dict(line.split("=", 1) for line in left.text.splitlines() if "=" in line)
        if fields.get("exit_code", "") != str(run.ending.exit_code):
            self._differs(run, left.file, "exit_code", run.ending.exit_code, fields.get("exit_code", _ABSENT))
        took = {}
        for name, first, last in (("by date", "started_s", "ended_s"), ("since boot", "up_began_s", "up_ended_s")):
            with suppress(KeyError, ValueError):
                if (began := float(fields[first])) and (ended := float(fields[last])):
                    took[name] = ended - began
        stated = run.ending.duration_s
        apart = min((abs(stated - seconds) for seconds in took.values()), default=0.0)  # by the finer of the two
        if apart > _CLOCK_STEP_S and not self.study.site.simulated:
            found = ", ".join(f"{seconds:.2f} {name}" for name, seconds in took.items())
            self._differs(run, left.file, "how long the run took, s", round(stated, 3), found)

    # what the run was given

    def _given_again(self, workload: Workload, run: Run) -> None:
        trial = self.history.trials[run.trial]
        executor: Executor = catalog.part("executors", self.study.site.batch)(self.study.site)
        with tempfile.TemporaryDirectory(prefix="ridgeline-verify-") as home:
            folder = Path(home) / RUNS / run.folder.name
            try:
                job = self._prepared(workload, trial, folder)
                text = executor.script(replace(job, on_nodes=self.history.pinned_to.get(run.number, ())))
            except (RidgelineError, ExpressionError, ValueError, LookupError, OSError) as error:
                self._cannot_check(run, _SCRIPT, f"cannot be written again here ({error})")
                return
            if not self._declared(run, _SCRIPT):
                self._script(run, job.command, text)
            self._inputs(run, folder)

    def _prepared(self, workload: Workload, trial: Trial, folder: Path) -> Job:
        folder.mkdir(parents=True)
        if self.study.builds is not None:
            key = Recipe(self.study.builds, self.study.folder, self.study.job).key(trial.settings)
            build = folder.parents[1] / "builds" / key
            build.mkdir(parents=True)
            for path in sorted((self.history.root / "builds" / key).glob("*")):
                (build / path.name).symlink_to(path.resolve())
            trial = replace(trial, build=build)
        return self.study.completed(workload.prepare(trial, folder), trial.settings)

    def _script(self, run: Run, command: str, text: str) -> None:
        """run.sh, and the environment it exports; the file `env` only mentions secrets, which run.sh fetches."""
        what = "the script of this setting"
        try:
            there = read_text(run.folder / _SCRIPT)
        except NotRegularError as error:
            self._differs(run, _SCRIPT, what, "a file", error.strerror)
            return
        except OSError:
            return  # said elsewhere
        if (env := state_file(run.folder, _ENV)) is not None:
            exports = "".join(line for line in env.text.splitlines(keepends=True) if not line.startswith("#"))
            if exports not in there:
                self._differs(run, env.file, "the environment", exports, f"{_SCRIPT} exports another")
        lines = zip_longest(_acts(there), _acts(text), fillvalue="ends here")
        apart = next(((stated, derived) for stated, derived in lines if stated != derived), None)
        if apart is not None and self._same_release:
            self._differs(run, _SCRIPT, what, *apart)
        elif apart is not None and command not in there:
            self._cannot_check(run, _SCRIPT, "another release wrote it; this one would start the command differently")

    @property
    def _same_release(self) -> bool:
        return {receipt.get("ridgeline") for receipt in self.found.receipts} == {__version__}

    def _inputs(self, run: Run, prepared: Path) -> None:
        for path in sorted(prepared.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.name == PREDICTED:
                continue
            name = path.relative_to(prepared).as_posix()
            there = run.folder / name
            if not there.is_file() or read_regular(there) == read_regular(path):
                continue
            stated, derived = (_PREDICTED.sub("", anywhere(text_of(file))) for file in (there, path))
            if stated == derived:
                continue
            if self._by_the_run_itself(run, there):
                self._cannot_check(run, name, "was changed while the run was running")
            elif self._same_release:
                text = "is not what the setting comes to"
                self._differs(run, name, "a file the run was given", "as the setting has it", text)
            else:
                self._cannot_check(run, name, "another release wrote it, and would write it otherwise")

    def _by_the_run_itself(self, run: Run, path: Path) -> bool:
        """As far as dates tell: in a folder that was copied without them, a copied source may have been changed."""
        began_s, ended_s = run.ending.started_s - _DATES_S, run.ending.ended_s + _DATES_S
        last = state_file(run.folder, EXIT_FILE)
        if last is not None and began_s <= last.changed_s <= ended_s:
            return run.ending.started_s <= path.stat().st_mtime <= ended_s
        return any(path.name == source.name for source in (self.history.root / "sources").rglob("*"))

    # what the raw files say

    def _read_again(self, workload: Workload, run: Run, baseline: Mapping[str, object]) -> None:
        bare = Run(run.number, run.trial, run.attempt, run.folder, run.resources, run.ending)
        reading = reading_of(workload, bare, self.study)
        self._measurements(run, reading)
        for name, stated in run.texts.items():
            found = reading.texts.get(name, _ABSENT)
            if stated != found and HIDDEN not in stated and not self._some_gap(workload, run):
                self._differs(run, "", name, stated, found)
        assert run.outcome is not None
        if run.outcome.kind in (Kind.CANCELLED, Kind.STOPPED_EARLY):
            return  # by a person, or by what it had written until then: nothing that can be read again
        trial = self.history.trials[run.trial]
        judged = judge(bare, reading, workload, self.study, trial.settings, baseline)
        if run.outcome.was is not None:  # journals of earlier versions blamed the setting
            judged = without_blame(judged, self.study, self.history, trial, run.number)
        if _same_outcome(run.outcome, judged):
            self.found.outcomes += 1
        elif not self._some_gap(workload, run):
            self._differs(run, "", "the outcome", str(run.outcome), str(judged))

    def _measurements(self, run: Run, reading: Reading) -> None:
        again = {m.metric: m for m in reading.measurements}
        for stated in run.measurements:
            found = again.get(stated.metric)
            one: Any = stated.value
            other: Any = _ABSENT if found is None else found.value
            if found is not None and same(one, other):
                definition = metric_named(stated.metric)
                units = {found.unit, *(definition.former_units if definition else ())}
                if stated.unit in units and stated.origin == found.origin:
                    self.found.numbers += 1
                    continue
                one, other = measurement_line(stated), measurement_line(found)
            if not self._gap(run, stated.source):
                file = JOURNAL if stated.source in _OF_THE_RUN else f"{self._relative(run.folder)}/{stated.source}"
                self.found.differs(file, stated.metric, one, other, run.number)

    # what does not match, or is not there to be checked

    def _differs(self, run: Run, name: str, what: str, stated: Any, found: Any) -> None:
        self.found.differs(self._relative(run.folder / name), what, stated, found, run.number)

    def _cannot_check(self, run: Run, name: str, why: str) -> None:
        self.found.cannot_check(self._relative(run.folder / name), why, run.number)

    def _some_gap(self, workload: Workload, run: Run) -> bool:
        """Whether a file that the outcome may rest on is gone or trimmed."""
        names = dict.fromkeys((*workload.logs, *(m.source for m in run.measurements)))
        gaps = [name for name in names if self._gap(run, name)]  # all of them, since each is noted
        return bool(gaps)

    def _gap(self, run: Run, name: str) -> bool:
        """Whether this file of a run, or with no name its folder, cannot tell; it is then noted."""
        if name in _OF_THE_RUN and name:
            return False
        if self._declared(run, name):
            self._cannot_check(run, name, f"trimmed, as {_TRIMMED} says")
            return True
        if name and not (run.folder / name).exists():
            self._cannot_check(run, name, "is gone")
            return True
        return False

    def _declared(self, run: Run, name: str) -> bool:
        paths = {self._relative(run.folder), self._relative(run.folder / name)}
        return any(fnmatch(path, pattern) for path in paths for pattern in self.trimmed)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.history.root).as_posix()


def _same_outcome(stated: Outcome, judged: Outcome) -> bool:
    """Apart from the wording. What was hidden where the secret was known is unknown elsewhere; the line is the same."""
    one, other = outcome_line(stated).get("evidence"), outcome_line(judged).get("evidence")
    if one and other and HIDDEN in str(one[2]):
        one, other = one[:2], other[:2]
    return stated.kind is judged.kind and one == other and reworded(stated.reason, judged.reason)


def _unknown_run_folders(history: History) -> Iterator[str]:
    """Run folders in which something was started, but of which the journal knows nothing."""
    known = {run.folder for run in history.runs.values()} | {run.folder for run in history.open_runs.values()}
    for folder in sorted((history.root / RUNS).glob("*")):
        # a controller killed right after it made a folder leaves it empty of these
        begun = any((folder / name).exists() for name in (_SCRIPT, RESULT_FILE, EXIT_FILE))
        if begun and folder not in known and BY_HAND not in folder.name:
            yield folder.relative_to(history.root).as_posix()


# fields, also nested ones, that hold text for people, and what of it no release changes
_TEXTS = {**dict.fromkeys(("headline", "notes", "why", "reason", "disqualified", "failed"), _NUMBERS), "paste": _WORDS}


def _check_verdict(
    question: CampaignQuestion, study: CheckedStudy, history: History, events: Sequence[Event], found: Verification
) -> None:
    at = next((i for i in reversed(range(len(events))) if events[i]["event"] == "verdict"), None)
    if at is None or history.verdict is None:
        return
    if isinstance(question, FormerQuestion):
        why = f"the verdict is of a campaign of kind {question.kind}, which this release cannot run"
        found.cannot_check(JOURNAL, why)
        return
    before = History.replay(history.root, events[:at])
    try:
        again, ended = _derived(question, study, before, float(events[at]["at"])), "the campaign was not over"
    except RidgelineError as error:
        again, ended = None, f"the campaign ended with: {error}"
    if again is None:
        found.differs(JOURNAL, "the verdict", history.verdict.headline, ended)
        return
    found.verdict = True
    for name, stated, other in differences(history.verdict.as_line(), again.as_line()):
        if isinstance(stated, str) and isinstance(other, str) and anywhere(stated) == anywhere(other):
            continue
        kept = next((_TEXTS[part] for part in re.split(r"[.\[]", name) if part in _TEXTS), None)
        if kept is not None and reworded(stated, other, kept, tuple(_numbers_in(again.details))):
            found.cannot_check(JOURNAL, f"the verdict's {name} is worded differently today: {stated!r}, now {other!r}")
        else:
            found.differs(JOURNAL, f"the verdict's {name}", stated, other)
            found.verdict = False


def _derived(question: CampaignQuestion, study: CheckedStudy, before: History, now_s: float) -> VerdictLine | None:
    """What the campaign concludes from this history at this moment; None: it would first plan a confirmation."""
    ledger = Ledger(study.study.budget, before, clock=lambda: now_s, slots=study.study.site.jobs_at_once)
    agenda = question.agenda(study, before, ledger)
    agenda.next()  # as the campaign does: an agenda learns here that the budget has no room for what it wants
    concluded = agenda.conclude()
    if isinstance(concluded, ConfirmationPlan):
        return None
    details = dict(concluded.details())
    if concluded.recommended is not None:
        details["paste"] = pasted(study.study, study.workload, concluded.recommended)
    plain: dict[str, Any] = json.loads(json.dumps(details))  # as it would lie on disk
    return VerdictLine(str(concluded.conclusion), concluded.headline, plain)


def verify_folder(path: Path) -> Verification:
    """Never takes the lock and changes nothing. Errors only where there is no study folder or no readable study."""
    folder = StudyFolder.open(path)
    found = Verification(str(path))
    try:
        events = list(read_events(folder.journal_path))
        history = History.replay(path.resolve(), events)
        question = question_of(history)
    except StoreError as error:
        found.differs(JOURNAL, "the journal", "a whole campaign", str(error))
        return found
    found.receipts = tuple(event["receipt"] for event in events if event["event"] == "opened" and "receipt" in event)
    file = to_be_read(folder.load(), history)
    _agreement(file, history, found)
    file = as_asked(file, question)
    _journal(file.study, history, folder.journal_path, found)
    workload = _workload(file.study, found)
    ended = {event["run"]: event for event in events if event["event"] == "ended"}
    # what whoever made the folder smaller says is gone
    lines = (line.partition("#")[0].strip() for line in text_of(path / _TRIMMED).splitlines())
    _RunCheck(file.study, history, workload, ended, tuple(filter(None, lines)), found).all_runs()
    if file.study.task is not None:
        _check_compliance(file.study, folder.path.resolve(), workload, found)
    if workload is not None:
        _check_verdict(question, CheckedStudy(file, workload), history, events, found)
    today = judged_today(question.kind, file.study, history).verdict
    if history.verdict is not None and today is not None and (why := today.details.get(NOT_PROVABLE)):
        found.differs(JOURNAL, "the verdict, by today's rules", history.verdict.headline, f"not provable: {why}")
        found.verdict = False
    return found


def _check_compliance(study: Study, root: Path, workload: Workload | None, found: Verification) -> None:
    """The record of the task's rules, made again; and its signature."""
    file = root / COMPLIANCE_FILE
    if not file.is_file():
        found.cannot_check(COMPLIANCE_FILE, "is not there: it is written when the campaign has its verdict")
        return
    try:
        stated = json.loads(text_of(file))
        signature = signature_of(stated)
    except (ValueError, AttributeError) as error:
        found.differs(COMPLIANCE_FILE, "the record of the task's rules", "as it was written", str(error))
        return
    if stated.get("signature") != signature:
        found.differs(COMPLIANCE_FILE, "its signature", stated.get("signature", _ABSENT), signature)
    again = compliance(study, root, workload)
    if unread := stated.get("applied", {}).keys() - again["applied"].keys():
        # the log was trimmed, or its reader is not on this machine: the rest is still compared
        why = f"what the engine applied in {', '.join(sorted(unread))} can't be read here"
        found.cannot_check(COMPLIANCE_FILE, why)
    for name, one, other in differences(stated, again):
        if name != "signature" and not (unread and name.startswith(("applied", "rules"))):
            found.differs(COMPLIANCE_FILE, name, one, other)
    if stated.get("signature") == signature == again["signature"]:
        found.signature = signature


def _agreement(file: StudyFile, history: History, found: Verification) -> None:
    try:
        require_same_question(file, history.asked)
    except StoreError as error:
        found.differs(STUDY, "the question", "as it was when the campaign began", str(error))
    try:
        require_consistent(file.study, history)
    except StoreError as error:
        found.differs(JOURNAL, "the journal", "a whole campaign", str(error))


def _workload(study: Study, found: Verification) -> Workload | None:
    try:
        workload: Workload = catalog.part("workloads", study.workload.kind)(study)
    except RidgelineError as error:
        found.cannot_check(STUDY, f"the workload {study.workload.kind} cannot be used here ({error})")
        return None
    return workload


def _journal(study: Study, history: History, journal: Path, found: Verification) -> None:
    """What the journal says of itself: no gaps, no loose ends, settings that follow from their points."""
    numbers = {*history.runs, *history.open_runs}
    for number in sorted(set(range(1, history.last_run_number + 1)) - numbers):
        found.differs(JOURNAL, "the numbers of the runs", "one after the other", "this one is missing", number)
    for name in _unknown_run_folders(history):
        found.differs(name, "a run's folder", "every run is in the journal", "this one is not")
    for trial in history.trials.values():
        if trial.stage is Stage.SHORT:
            continue  # of an earlier release, with less to do than its point says
        try:
            settings = study.space.settings(trial.point)
        except (ExpressionError, ValueError, LookupError) as error:
            settings = {"settings": str(error)}
        for name, stated, other in differences(trial.settings, settings):
            found.differs(JOURNAL, f"trial {trial.number}: {name}, against its point", stated, other)
    tried = [dict(trial.point) for trial in history.trials.values()]
    for point in (dict(point) for confirmed in history.confirmations for point in confirmed.candidates):
        if point not in tried:
            found.differs(JOURNAL, "a setting under confirmation", point, "none of the trials has it")
    _loose_ends(history, journal, found)


def _loose_ends(history: History, journal: Path, found: Verification) -> None:
    for run in history.open_runs.values():
        if history.verdict is not None:
            found.differs(JOURNAL, "the end of a run before the verdict", "every run ended", _ABSENT, run.number)
        elif (run.folder / RESULT_FILE).exists():
            why = "has a result that the journal does not know yet; `ridgeline resume` settles it"
            found.cannot_check(run.folder.relative_to(history.root).as_posix(), why, run.number)
    for trial in history.trials.values():
        if history.verdict is not None and history.final_run(trial) is None:
            found.differs(JOURNAL, "runs before the verdict", f"trial {trial.number} was started", "it has no run")
    if not journal.read_bytes().endswith(b"\n"):
        found.cannot_check(JOURNAL, "its last line is torn: a controller is writing it, or was killed there")
