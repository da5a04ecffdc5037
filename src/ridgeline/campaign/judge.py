"""From how a job ended and what it wrote to a typed outcome, with the line that decided."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ridgeline.diagnose.readers.failures import BY_SIGNAL, PROGRAM_REMEDY, failure_named
from ridgeline.errors import ReadError, did_you_mean
from ridgeline.files import NotRegularError, beginning_of, open_regular, text_of
from ridgeline.records.matching import TimeIsUp, TooSlow, cpu_limit
from ridgeline.records.measurement import COSTS, Reading
from ridgeline.records.outcome import Evidence, Kind, Outcome, Signature
from ridgeline.records.run import QUIET_FILE, Cause, Ending, Run, short_names, signal_name
from ridgeline.records.secrets import SECRETS_FOLDER, masked
from ridgeline.records.site import costs, unknown_cost
from ridgeline.records.space import point_key
from ridgeline.records.study import BREAKS, Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.stats.wording import count
from ridgeline.study.history import History
from ridgeline.study.state_files import state_text
from ridgeline.workloads.base import Workload

_LONGEST_LINE = 400
_LONGEST_SEARCHED_LINE = 4096
SEARCHED_BYTES = 4 << 20  # of each end of a log: the controller must not be away from other runs for minutes
GUARDED_TEXT_BYTES = 16 << 20
_MOST_KEPT_LINES = 10_000
SIGNATURES_S = 30.0  # of CPU time for all of them in all logs of a run; those of ours need a second
# what a shell says about a program that we ourselves ended
_SHELL_NOTICES = re.compile(r"(.*: line \d+: +\d+ )?(Killed|Terminated)\b")

# what the site itself says about the end; None: look at the program
_BY_CAUSE = {
    Cause.NODE_FAILED: Kind.NODE_FAULT,
    Cause.LOST: Kind.SITE_FAULT,
    Cause.CANCELLED: Kind.CANCELLED,
    Cause.NEVER_STARTS: Kind.REJECTED,
}
_ENDED_BY_US = (Cause.TIME_LIMIT, Cause.SILENCE, Cause.OUTPUT_LIMIT)
_BY_LIMIT = {
    Cause.TIME_LIMIT: (Kind.TIMEOUT, "ran into its wall limit"),
    Cause.SILENCE: (Kind.HANG, "wrote nothing for longer than the silence limit"),
    Cause.OUTPUT_LIMIT: (Kind.CRASH, ""),
    Cause.MEMORY_LIMIT: (Kind.OOM_RUN, "was ended for using more memory than it asked for"),
}
# how a shell says that it could not start a command
_CANNOT_START = {126: "a command could not be executed", 127: "a command was not found"}


def secret_values(names: Iterable[str]) -> tuple[str, ...]:
    """What the named secrets hold here, to be hidden wherever it turns up."""
    files = ((name, Path.home() / SECRETS_FOLDER / name) for name in names)
    return tuple(os.environ.get(name) or text_of(file).strip() for name, file in files)


def reading_of(workload: Workload, run: Run, study: Study) -> Reading:
    """What the workload read from a run, as it may be kept: without secrets, since a program may print anything; and
    what the run cost by the study's prices."""
    reading, values = workload.read(run), secret_values(study.site.secrets)
    found = costs(replace(run, measurements=reading.measurements), study.site)
    added = tuple(cost for name, cost in found.items() if name not in reading.metrics and name not in reading.texts)
    missing = (study.needed_metrics & set(COSTS)) - reading.metrics.keys() - found.keys()
    gaps = [unknown_cost(name, run, study.site) for name in sorted(missing)]
    problems, remedies = [why for why, _ in gaps], dict.fromkeys(remedy for _, remedy in gaps)
    return replace(
        reading,
        measurements=(*reading.measurements, *added),
        texts={name: masked(text, values) for name, text in reading.texts.items()},
        problem=masked("; ".join(filter(None, (reading.problem, *problems))), values),
        remedy=masked("; ".join(filter(None, (reading.remedy, *remedies))), values),
    )


def judge(
    run: Run,
    reading: Reading,
    workload: Workload,
    study: Study,
    settings: Mapping[str, object],
    reference: Mapping[str, object],
) -> Outcome:
    """The outcome of one run. `reference` holds the baseline's own values for guards that compare with it; empty before
    it has passed: its first run is held against itself."""
    ending, found = run.ending, None
    failed = ending.cause is not Cause.EXITED or bool(ending.exit_code) or ending.signal is not None
    wanted = [s for s in workload.signatures if _applies(s, ending, failed)]
    try:
        if ending.cause in _BY_CAUSE:
            found = Outcome(_BY_CAUSE[ending.cause], ending.reason or ending.cause.value)
        else:
            found = find_signature(run.folder, workload.logs, wanted, ended_by_us=ending.cause in _ENDED_BY_US)
    except TooSlow as error:
        found = Outcome(Kind.CRASH if failed else Kind.WRONG, f"could not classify the exit: {error}")
    if found is None and failed:
        found = _unexplained(ending, run.folder, workload.logs)
    elif found is None:
        found = _result(run, reading, study, settings, reference)
    if found.lacking:
        found = _blamed(found, run.folder, study, settings, bool(reference))
    values = secret_values(study.site.secrets)
    evidence = found.evidence and replace(found.evidence, text=masked(found.evidence.text, values))
    return replace(found, reason=masked(found.reason, values), evidence=evidence, remedy=masked(found.remedy, values))


def _applies(signature: Signature, ending: Ending, failed: bool) -> bool:
    if not failed:
        return signature.even_if_exit_0
    # a program that we ended says in its own words that it was killed; only a cause of the silence counts then
    return ending.cause is Cause.EXITED or not (signature.echo or signature.kind is Kind.CRASH)


def _blamed(
    found: Outcome, folder: Path, study: Study, settings: Mapping[str, object], baseline_passed: bool
) -> Outcome:
    """Who must act where the run needed something that was not there.

    Once the baseline has run with the same command, and no knob names what is missing, this node lacks what others
    have. Until then, or where there is only this machine, the study's author has to bring it.
    """
    what, _, name = found.lacking.partition(" ")
    by_setting = any(str(value) in name for value in settings.values())
    if baseline_passed and study.site.nodes > 1 and study.builds is None and not by_setting:
        why = f"{found.reason} on this node, though the baseline had it"
        return replace(found, kind=Kind.NODE_FAULT, reason=why, lacking="")
    if what == "program":
        return _without_program(found, name, folder, study)
    if what == "file" and (study.folder / name).exists():
        return replace(found, remedy=f"{name} is beside the study: add it to `workload: files`")
    if what == "file" and (meant := did_you_mean(name, _names_in(folder, study.folder), likeness=0.75)):
        return replace(found, remedy=f"{meant} Otherwise {found.remedy}")
    return found


def _without_program(found: Outcome, name: str, folder: Path, study: Study) -> Outcome:
    """Of a program that was not started, what of it there is. dash and Open MPI say the same of all three cases."""
    bare = name.rpartition("/")[2]
    here = folder / name
    beside = study.folder / bare
    if "/" in name and here.is_file():
        if not os.access(here, os.X_OK):
            where = beside if beside.is_file() else here
            return replace(found, reason=f"{name} may not be executed", remedy=f"run `chmod +x {where}`")
        with here.open("rb") as stream:
            first = stream.readline(200)
        interpreter = first[2:].decode(errors="replace").split()[:1] if first.startswith(b"#!") else []
        if interpreter and not Path(interpreter[0]).exists():
            reason = f"{name} is there, but its interpreter {interpreter[0]} is not"
            return replace(found, reason=reason, remedy=f"correct the first line of {bare}: #!{interpreter[0]}")
        return found
    if beside.is_file():
        remedy = f"{bare} is beside the study: add it to `workload: files` and start it as ./{bare}"
        return replace(found, remedy=remedy)
    known = [f"./{file}" for file in _names_in(folder, study.folder)] if "/" in name else _commands()
    meant = did_you_mean(name, known, likeness=0.75)
    return replace(found, remedy=f"{meant} Otherwise {PROGRAM_REMEDY}" if meant else PROGRAM_REMEDY)


def _names_in(*folders: Path) -> list[str]:
    files = (path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file())
    return sorted({path.name for path in files} - {"run.sh", "env", "stdout", "stderr", "exit"})


def _commands() -> list[str]:
    """The commands that can be typed here; those of a node may be others, so they are only ever suggested."""
    folders = [Path(name) for name in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(name).is_dir()]
    return sorted({path.name for folder in folders for path in folder.iterdir() if shutil.which(str(path))})


def _result(
    run: Run, reading: Reading, study: Study, settings: Mapping[str, object], reference: Mapping[str, object]
) -> Outcome:
    """The program says it is done: may what it measured count?"""
    own = {**reading.texts, **reading.metrics}
    values, baseline = {**settings, **own}, reference or own
    # a guard on something that could not be read has not failed: how it is read is what must be corrected
    for guard in study.guards:
        readable = not reading.problem or guard.names <= values.keys()
        if readable and (failure := guard.failure(values, baseline, lambda name: _text(run.folder / name))):
            return Outcome(Kind.WRONG, failure)
    if reading.wrong:
        return Outcome(Kind.WRONG, reading.wrong)
    remedy = reading.remedy or "correct how it is read, or what makes the program not write it"
    if reading.problem:
        return Outcome(Kind.WRONG, reading.problem, remedy=remedy)
    if study.goal.metric not in reading.metrics:
        said = f"{study.goal.metric}, the goal, was not found in what the run wrote"
        return Outcome(Kind.WRONG, said, remedy=remedy)
    if doubt := reading.unverified or reading.contaminated:
        return Outcome(Kind.UNVERIFIED, doubt)
    if study.task is not None and (broken := "; ".join(study.task.broken_by(run.ending, reading))):
        return Outcome(Kind.UNVERIFIED, f"{BREAKS}{broken}")
    return Outcome(Kind.OK)


def without_blame(outcome: Outcome, study: Study, history: History, trial: Trial, run: int) -> Outcome:
    """The outcome of run number `run` of this trial as it may be kept: not everything says something of the setting.

    A setting that has passed and now does not begin any more, or a baseline that has passed and fails in any way, shows
    that something around it has changed: a fault of ours or of the site's. What begins and fails under load may well
    be the setting: it works only sometimes.
    """
    # a hunt for an edge asks about the value it starts from as about any other
    reference = trial.key == point_key(study.baseline) and history.question.kind != "edge"
    if not outcome.kind.caused_by_setting or not (reference or outcome.never_began):
        return outcome
    if (passed := _passed_before(history, trial, run)) is None:
        return outcome
    text = f"{outcome.kind.value}; {outcome.reason}" if outcome.reason else outcome.kind.value
    why = f"the same setting passed in run {passed.number}, so it is not to blame: {text}"
    return replace(outcome, kind=Kind.SITE_FAULT, reason=why, advice=(), was=outcome.kind)


def _passed_before(history: History, trial: Trial, number: int) -> Run | None:
    """The first run that passed with the very settings of this trial; none counts for a run under a profiler."""
    if trial.stage is Stage.PROFILE:
        return None
    for run in history.runs.values():
        if run.number == number:
            return None
        other = history.trials[run.trial]
        if (
            run.outcome is not None
            and run.outcome.kind is Kind.OK
            and other.stage is not Stage.PROFILE
            and (other.stage is Stage.SHORT) is (trial.stage is Stage.SHORT)
            and other.settings == trial.settings
        ):
            return run
    return None


def misplaced(ending: Ending, nodes: int, on_nodes: Sequence[str]) -> str:
    """What is wrong with where a job ran, whatever ran it; empty where it was as asked, or where nobody says."""
    there = ", ".join(ending.nodes)
    if not ending.nodes:
        return ""
    if on_nodes and short_names(ending.nodes) != short_names(on_nodes):
        return f"it ran on {there}, but {', '.join(on_nodes)} was asked for"
    if len(short_names(ending.nodes)) != nodes:
        return f"it asked for {count(nodes, 'node')} and ran on {len(short_names(ending.nodes))} ({there})"
    return ""


def find_signature(
    folder: Path, logs: Sequence[str], signatures: Sequence[Signature], ended_by_us: bool = False
) -> Outcome | None:
    """The first signature of the table that stands in any log, with its first line. TooSlow names an endless one."""
    seen: dict[int, tuple[re.Match[str], Evidence]] = {}  # by its place in the table, the line that counts of each
    searched: set[str] = set()  # programs in a loop write the same line millions of times
    signature = None
    try:
        with cpu_limit(SIGNATURES_S):
            for name in logs if signatures else ():
                for number, line in _lines(folder / name):
                    if line in searched or (ended_by_us and _SHELL_NOTICES.match(line)):
                        continue
                    if len(searched) < _MOST_KEPT_LINES:
                        searched.add(line)
                    for rank, signature in enumerate(signatures):
                        if (rank not in seen or signature.last) and (match := signature.pattern.search(line)):
                            seen[rank] = match, _evidence(name, number, line)
                if 0 in seen:
                    break
    except TimeIsUp:
        raise TooSlow("" if signature is None else signature.pattern.pattern, SIGNATURES_S) from None
    if not seen:
        return None
    rank = min(seen)
    return signatures[rank].outcome(*seen[rank])


def _unexplained(ending: Ending, folder: Path, logs: Sequence[str]) -> Outcome:
    evidence = last_line(folder, logs, ended_by_us=ending.cause in _ENDED_BY_US)
    if ending.cause in _BY_LIMIT:
        kind, why = _BY_LIMIT[ending.cause]
        return Outcome(kind, ending.reason or why, evidence)
    if ending.signal is not None:
        hint = " (often the host ran out of memory)" if ending.signal == signal.SIGKILL else ""
        remedy = failure_named(BY_SIGNAL[ending.signal]).remedy if ending.signal in BY_SIGNAL else ""
        return Outcome(Kind.CRASH, f"died by {signal_name(ending.signal)}{hint}", evidence, remedy=remedy)
    if ending.exit_code in _CANNOT_START:
        why = f"exit code {ending.exit_code}: {_CANNOT_START[ending.exit_code]}"
        return Outcome(Kind.REJECTED, why, evidence, remedy=PROGRAM_REMEDY, lacking="command of `run`")
    return Outcome(Kind.CRASH, f"exit code {ending.exit_code}", evidence)


def last_line(
    folder: Path, logs: Sequence[str], ended_by_us: bool = False, matching: re.Pattern[str] | None = None
) -> Evidence | None:
    """The last thing the program said, on stderr if it said something there; or the last that matches.

    Of a run that fell silent it is the last thing before that, wherever it was said.
    """
    quiet = _quiet(folder)
    names = ("stderr", *(log for log in logs if log != "stderr"))
    for name in sorted(names, key=lambda log: -quiet[log][0] if log in quiet else 0.0):
        last = None
        for number, line in _lines(folder / name):
            notice = ended_by_us and _SHELL_NOTICES.match(line)
            if line.strip() and not notice and (matching is None or matching.search(line)):
                last = (number, line.strip())
        if last is not None:
            return _evidence(name, *last)
    return None


def first_line(
    folder: Path, logs: Sequence[str], pattern: re.Pattern[str], place: re.Pattern[str] | None = None
) -> Evidence | None:
    """The first line that matches; with the last line before it that matches `place`, where a log says so in two."""
    for name in logs:
        where = ""
        for number, line in _lines(folder / name):
            if pattern.search(line):
                return _evidence(name, number, line if re.search(r":\d+", line) else f"{where} {line}".strip())
            if place is not None and place.search(line):
                where = line
    return None


def _evidence(name: str, number: int, line: str) -> Evidence:
    # a program may have written anything, and the terminal on which this is shown obeys control characters
    shown = masked("".join(c if c.isprintable() else " " for c in line[: 2 * _LONGEST_LINE]))[:_LONGEST_LINE]
    return Evidence(name, number, shown)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a log, each cut to a length that can be searched; of a huge log its beginning and its end."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if path.name in (quiet := _quiet(path.parent)):
                size = min(size, quiet[path.name][1])  # the rest came of our own kill
            number = 0
            while stream.tell() < size:
                if number and size > 2 * SEARCHED_BYTES and SEARCHED_BYTES <= stream.tell() < size - SEARCHED_BYTES:
                    number += _skip(stream, size - SEARCHED_BYTES)
                number += 1
                yield number, _one_line(stream)
    except (FileNotFoundError, IsADirectoryError, NotRegularError):
        return


def _quiet(folder: Path) -> dict[str, tuple[float, int]]:
    """Date and size of each file when the run was ended for its silence; empty of all other runs."""
    try:
        lines = state_text(folder, QUIET_FILE).splitlines()
        return {name: (float(date), int(size)) for date, size, name in (line.split(" ", 2) for line in lines)}
    except ValueError:
        return {}


def _one_line(stream: BinaryIO) -> str:
    piece = line = stream.readline(_LONGEST_SEARCHED_LINE)
    while piece and not piece.endswith(b"\n"):
        piece = stream.readline(1 << 20)
    return line.decode(errors="replace").rstrip("\r\n")


def _skip(stream: BinaryIO, until: int) -> int:
    """Go on to the first line that starts after `until`; how many lines were passed."""
    passed = 0
    while (left := until - stream.tell()) > 0:
        passed += stream.read(min(left, 1 << 20)).count(b"\n")
    return passed + bool(stream.readline())


def _text(path: Path) -> str:
    """The text that a guard is held against, unzipped; ReadError where nobody can tell what the file says."""
    try:
        return beginning_of(path, GUARDED_TEXT_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return ""
    except OSError as error:
        raise ReadError(f"{path.name}: {error.strerror or error}") from None
