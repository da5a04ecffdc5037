"""`ridgeline ci gate`: measures a reference, or runs until a program is slower than its reference or is not."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ridgeline.campaign.check import CheckedStudy
    from ridgeline.campaign.kinds.gate import GateQuestion, ReferenceFile
    from ridgeline.records.answer import Answer
    from ridgeline.records.space import Point


def gate(
    what: Annotated[
        list[str], typer.Argument(metavar="STUDY | -- COMMAND…", help="The study file; or a command, after two dashes.")
    ],
    against: Annotated[
        Path | None, typer.Option(help="Reference file to commit; NAME.gate.json in this folder by default.")
    ] = None,
    against_command: Annotated[
        str,
        typer.Option(
            metavar="OLD", help="Run this old command in turn with the new one instead; needs no reference file."
        ),
    ] = "",
    against_setting: Annotated[
        str, typer.Option(metavar="SETTING", help="The same for a study: run this setting of it in turn with --at.")
    ] = "",
    update: Annotated[bool, typer.Option("--update", help="Measure the reference and write the file.")] = False,
    at: Annotated[str, typer.Option(help="Setting of a study: 'knob=value,knob=value', or 'baseline'.")] = "baseline",
    slower: Annotated[
        float | None, typer.Option(min=0.1, max=100, help="Slowdown to find, in percent; 3, or as the reference says.")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(min=0.01, max=20, help="False alarms in 100 gates; 1, or as the reference says.")
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(min=50, max=99.9, help="Percent of such slowdowns that are found; 90, or as the reference says."),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=12, help="At most so many runs, of each in turn; default: 100, 300 for a reference."),
    ] = None,
    machine: Annotated[
        str, typer.Option(help="A name shared by machines that are alike, such as the runners of a pool.")
    ] = "",
    junit: Annotated[Path | None, typer.Option(help="JUnit file to write.")] = None,
    gitlab: Annotated[Path | None, typer.Option(help="GitLab Code Quality file to write.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Markdown summary to write.")] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="File to append this gate to; a page of all gates and their changes goes beside it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-gate by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Is a program slower than it was? Runs it until that is decided, either way.

    Against an old build in turn with the new one (--against-command './old in.txt' -- ./new in.txt), which a machine
    that is busy or slow today does not mislead; or against a committed reference, on that machine in that state.

    In GitHub Actions it also prints an annotation and adds to the job's summary. Run it again to continue after a
    stop.

    Exit code 0: not slower. 6: slower. 7: cannot judge (another machine, one that is busier or changed meanwhile, too
    few runs). 1: the program failed.

    Example: ridgeline ci gate --against-command './old in.txt' -- ./new in.txt
    """
    from ridgeline.campaign.kinds.gate import ReferenceFile, machine_of
    from ridgeline.errors import InputError

    if against_command or against_setting:
        if against is not None or update:
            raise InputError(
                "--against-command and --against-setting need no reference; leave out --against and --update"
            )
        found, point, old = _two_programs(what, at, against_command, against_setting)
        question = replace(_question(point, None, slower, false_alarms, power), old=old, **_given(most_runs=runs))
        shown = Path(what[0]) if Path(what[0]).is_file() else Path(f"{found.study.name}.gate")
        files = _Outputs(junit, gitlab, markdown, history)
        _Gate(found, question, shown, machine_of(found.study, machine), files, out, as_json).ask(question)
        return
    found, point = _program(what, at)
    path = against or Path(f"{found.study.name}.gate.json")
    stored = ReferenceFile.to_be_replaced(path) if update else ReferenceFile.read(path)
    question = _question(point, stored, slower, false_alarms, power)
    files = _Outputs(junit, gitlab, markdown, history)
    gate = _Gate(found, question, path, machine_of(found.study, machine), files, out, as_json)
    if update or stored is None:
        gate.measure(stored, runs)
    else:
        gate.judge(stored, runs)


def _program(what: list[str], at: str) -> tuple[CheckedStudy, Point]:
    """What is to be run, and at which setting."""
    import shlex

    from ridgeline.campaign.check import check_study
    from ridgeline.campaign.point_text import parse_point
    from ridgeline.cli.campaign.one_command import is_study, study_of_commands
    from ridgeline.errors import InputError

    if is_study(what):
        found = check_study(Path(what[0]))
    elif at != "baseline":
        raise InputError("--at is a setting of a study file; a command has none")
    else:
        found = study_of_commands([what[0] if len(what) == 1 else shlex.join(what)])
    return found, dict(parse_point(found, at, found.study.baseline))


def _two_programs(what: list[str], at: str, old_command: str, old_setting: str) -> tuple[CheckedStudy, Point, Point]:
    """The study, and the settings of the new program and the old one."""
    import shlex

    from ridgeline.campaign.point_text import parse_point
    from ridgeline.cli.campaign.one_command import KNOB, is_study, study_of_commands
    from ridgeline.errors import InputError

    if old_setting:
        if old_command or not is_study(what):
            raise InputError("--against-setting is of a study file; for commands use --against-command OLD -- NEW")
        found, point = _program(what, at)
        old = dict(parse_point(found, old_setting, found.study.baseline))
        if old == point:
            raise InputError("--at and --against-setting are the same setting; name the new one with --at")
        return found, point, old
    if is_study(what):
        raise InputError(
            "--against-command takes two commands (--against-command OLD -- NEW); of a study make the program a knob "
            "and run --at program=new --against-setting program=old"
        )
    if at != "baseline":
        raise InputError("--at is a setting of a study file; a command has none")
    new = what[0] if len(what) == 1 else shlex.join(what)
    if new == old_command:
        raise InputError("both commands are the same; name the old build with --against-command")
    found = study_of_commands([new, old_command])
    return found, {KNOB: new}, {KNOB: old_command}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _question(
    point: Point, stored: ReferenceFile | None, slower: float | None, false_alarms: float | None, power: float | None
) -> GateQuestion:
    """With the rates in percent that were given, else those of the reference."""
    from ridgeline.campaign.kinds.gate import GateQuestion

    default = stored or GateQuestion(point)
    return GateQuestion(
        point,
        slower=default.slower if slower is None else slower / 100,
        false_alarm=default.false_alarm if false_alarms is None else false_alarms / 100,
        power=default.power if power is None else power / 100,
    )


@dataclass(frozen=True)
class _Outputs:
    """The files that were asked for."""

    junit: Path | None
    gitlab: Path | None
    markdown: Path | None
    history: Path | None


@dataclass(frozen=True)
class _Gate:
    found: CheckedStudy
    question: GateQuestion
    reference: Path
    machine: dict[str, Any]
    files: _Outputs
    out: Path | None
    as_json: bool

    def measure(self, old: ReferenceFile | None, runs: int | None) -> None:
        """Run the program and write the reference, in the place of the old one."""
        from ridgeline.campaign.assembly import assemble_again
        from ridgeline.campaign.kinds.gate import MOST_STORED, measured_reference
        from ridgeline.campaign.status import read_status
        from ridgeline.cli.campaign.live import drive

        question = replace(self.question, most_runs=runs or MOST_STORED)
        folder, new = assemble_again(self.found, self.out, f"{self.found.study.name}-reference", question)
        drive(folder, new, self.as_json)
        now = read_status(folder.path)
        measured_reference(question, now.study, now.history, self.machine, old, _now()).write(self.reference)
        if not self.as_json:
            print(f"  wrote {self.reference}: commit it")
        self._remember(now.answer)

    def judge(self, stored: ReferenceFile, runs: int | None) -> None:
        """Run the program until it is slower than the reference or is not."""
        from ridgeline.campaign.kinds.gate import CANNOT_JUDGE
        from ridgeline.errors import CannotJudge
        from ridgeline.records.answer import Answer, Reference
        from ridgeline.stats.gate import MOST_RUNS

        study, point = self.found.study, self.question.point
        try:
            stored.require_same(self.reference, study, point, self.machine)
        except CannotJudge as error:
            self._write(Answer("gate", CANNOT_JUDGE, str(error), Reference("the reference", point, None), None), 0.0)
            raise
        nodes, state = list(stored.machine.get("nodes", [])), stored.measured.get("state")
        most = runs or MOST_RUNS
        self.ask(replace(self.question, stored=list(stored.values), most_runs=most, nodes=nodes, state=state))

    def ask(self, question: GateQuestion) -> None:
        """Run until it is decided, and write what CI systems read."""
        from ridgeline.campaign.assembly import assemble_again
        from ridgeline.campaign.status import read_status
        from ridgeline.cli.campaign.live import drive

        folder, new = assemble_again(self.found, self.out, f"{self.found.study.name}-gate", question)
        try:
            drive(folder, new, self.as_json)
        finally:
            now = read_status(folder.path)
            if now.history.verdict is not None:
                self._write(now.answer, now.history.wall_s)
                self._remember(now.answer)

    def _remember(self, answer: Answer) -> None:
        """Add this gate to the history, and write the history's page."""
        history, study = self.files.history, self.found.study
        values = [value for value in answer.facts.get("gate", {}).get("values", ()) if value > 0]
        if history is None or not values:
            return
        from ridgeline.report.gates import write_gate_history
        from ridgeline.study.gate_history import PastGate, add_gate

        conclusion, goal = answer.conclusion or "", (study.goal.metric, study.goal.direction)
        gate = PastGate(study.name, _now(), conclusion, tuple(values), *goal, self.machine, answer.unit, _commit_here())
        write_gate_history(add_gate(history, gate), study, history)

    def _write(self, answer: Answer, seconds: float) -> None:
        """What CI systems read, and what GitHub reads from standard output."""
        import os

        from ridgeline.files import write_whole

        name, reference = self.found.study.name, self.reference.as_posix()
        summary = _markdown_text(name, self.found.study.goal.metric, answer)
        if self.files.junit is not None:
            write_whole(self.files.junit, _junit_text(name, answer, seconds))
        if self.files.gitlab is not None:
            write_whole(self.files.gitlab, _gitlab_text(name, answer, reference))
        if self.files.markdown is not None:
            write_whole(self.files.markdown, summary)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(_github_line(name, answer, reference))
            if page := os.environ.get("GITHUB_STEP_SUMMARY"):
                with Path(page).open("a") as file:
                    file.write(summary)


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds")


_TITLES = {
    "not-slower": "not slower",
    "slower": "slower",
    "cannot-judge": "cannot judge",
    "measured": "reference measured",
}
_LEVELS = {"not-slower": "notice", "measured": "notice", "cannot-judge": "warning"}
_SEVERITIES = {"cannot-judge": "info"}


def _junit_text(name: str, answer: Answer, seconds: float) -> str:
    """One test case: slower and failed runs fail it, what cannot be judged is skipped."""
    from xml.sax.saxutils import escape, quoteattr  # it loads urllib and ssl

    inside = ""
    if answer.conclusion == "cannot-judge":
        inside = f"<skipped message={quoteattr(answer.headline)}/>"
    elif answer.lacks:
        inside = f"<failure message={quoteattr(answer.headline)}>{escape(answer.headline)}</failure>"
    failures, skipped = inside.startswith("<failure"), inside.startswith("<skipped")
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="ridgeline ci gate" tests="1" failures="{int(failures)}" errors="0" skipped="{int(skipped)}" '
        f'time="{seconds:.3f}">\n'
        f'  <testcase classname="ridgeline.gate" name={quoteattr(name)} time="{seconds:.3f}">{inside}\n'
        f"    <system-out>{escape(answer.headline)}</system-out>\n"
        "  </testcase>\n"
        "</testsuite>\n"
    )


def _github_line(name: str, answer: Answer, reference: str) -> str:
    """A workflow command; GitHub shows it at the reference file."""
    level = _LEVELS.get(answer.conclusion or "", "error")
    title = f"{name}: {_title(answer)}"
    return f"::{level} file={_property(reference)},title={_property(title)}::{_data(answer.headline)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _gitlab_text(name: str, answer: Answer, reference: str) -> str:
    """A Code Quality report: GitLab shows its entries in the merge request; empty where there is nothing to act on."""
    found = []
    if answer.lacks:
        found.append(
            {
                "description": f"{name}: {answer.headline}",
                "check_name": "ridgeline-gate",
                "fingerprint": hashlib.sha256(f"{name} {answer.conclusion}".encode()).hexdigest(),
                "severity": _SEVERITIES.get(answer.conclusion or "", "major"),
                "location": {"path": reference, "lines": {"begin": 1}},
            }
        )
    return json.dumps(found, indent=1) + "\n"


def _markdown_text(name: str, metric: str, answer: Answer) -> str:
    """A heading, a table of one row, and the whole sentence below."""
    from ridgeline.stats.wording import metric_text, percent, percent_range

    facts: Mapping[str, Any] = answer.facts.get("gate", {})
    before, now = answer.reference.value, None if answer.candidate is None else answer.candidate.value
    change = low = "–"
    if facts.get("change") is not None and facts.get("runs"):
        change, low = percent(facts["change"]), percent_range(facts["low"], facts["high"])
    values = ["–" if value is None else metric_text(value) for value in (before, now)]
    row = (metric, *values, change, low, str(facts.get("runs", 0)))
    return (
        f"### {name}: {_title(answer)}\n\n"
        "| metric | reference | now | slower by | 95% | runs |\n|---|---|---|---|---|---|\n"
        f"| {' | '.join(row)} |\n\n{answer.headline}\n"
    )


def _title(answer: Answer) -> str:
    return _TITLES.get(answer.conclusion or "", "did not pass")


def _commit_here() -> str:
    """What is measured, by the CI system or by git in this folder; empty where neither knows."""
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT"):
        if found := os.environ.get(name):
            return found
    try:
        said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
