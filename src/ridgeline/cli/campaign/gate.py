"""`ridgeline ci gate`: measures a reference, or runs until a program is slower than its reference or is not."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline import files as ridgeline_files
from ridgeline.campaign import asked as campaign_asked
from ridgeline.campaign import check, status
from ridgeline.campaign.kinds import gate as kinds_gate
from ridgeline.cli.campaign import live, one_command
from ridgeline.cli.options import takes
from ridgeline.errors import CannotJudge, InputError
from ridgeline.records import answer as records_answer
from ridgeline.report import gates
from ridgeline.stats import wording
from ridgeline.study import gate_history

if TYPE_CHECKING:
    from ridgeline.campaign.asked import Gate
    from ridgeline.campaign.assembly import Asked
    from ridgeline.campaign.check import CheckedStudy
    from ridgeline.campaign.point_text import Setting
    from ridgeline.records.answer import Answer


@dataclass(frozen=True)
class GateArguments:
    """The program, what it is held against, and the files that were asked for."""

    what: Annotated[
        list[str], typer.Argument(metavar="STUDY | -- COMMAND…", help="The study file; or a command, after two dashes.")
    ]
    against: Annotated[
        Path | None, typer.Option(help="Reference file to commit; NAME.gate.json in this folder by default.")
    ] = None
    against_command: Annotated[
        str,
        typer.Option(
            metavar="OLD", help="Run this old command in turn with the new one instead; needs no reference file."
        ),
    ] = ""
    against_setting: Annotated[
        str, typer.Option(metavar="SETTING", help="The same for a study: run this setting of it in turn with --at.")
    ] = ""
    update: Annotated[bool, typer.Option("--update", help="Measure the reference and write the file.")] = False
    at: Annotated[str, typer.Option(help="Setting of a study: 'knob=value,knob=value', or 'baseline'.")] = "baseline"
    slower: Annotated[
        float | None, typer.Option(min=0.1, max=100, help="Slowdown to find, in percent; 3, or as the reference says.")
    ] = None
    false_alarms: Annotated[
        float | None, typer.Option(min=0.01, max=20, help="False alarms in 100 gates; 1, or as the reference says.")
    ] = None
    power: Annotated[
        float | None,
        typer.Option(min=50, max=99.9, help="Percent of such slowdowns that are found; 90, or as the reference says."),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(min=12, help="At most so many runs, of each in turn; default: 100, 300 for a reference."),
    ] = None
    machine: Annotated[
        str, typer.Option(help="A name shared by machines that are alike, such as the runners of a pool.")
    ] = ""
    junit: Annotated[Path | None, typer.Option(help="JUnit file to write.")] = None
    gitlab: Annotated[Path | None, typer.Option(help="GitLab Code Quality file to write.")] = None
    markdown: Annotated[Path | None, typer.Option(help="Markdown summary to write.")] = None
    history: Annotated[
        Path | None,
        typer.Option(help="File to append this gate to; a page of all gates and their changes goes beside it."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-gate by default.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False


@takes(GateArguments)
def gate(asked: GateArguments) -> None:
    """Is a program slower than it was? Runs it until that is decided, either way.

    Against an old build in turn with the new one (--against-command './old in.txt' -- ./new in.txt), which a machine
    that is busy or slow today does not mislead; or against a committed reference, on that machine in that state.

    In GitHub Actions it also prints an annotation and adds to the job's summary. Run it again to continue after a
    stop.

    Exit code 0: not slower. 6: slower. 7: cannot judge (another machine, one that is busier or changed meanwhile, too
    few runs). 1: the program failed.

    Example: ridgeline ci gate --against-command './old in.txt' -- ./new in.txt
    """
    found, setting, old = _programs(asked)
    rates = (asked.slower, asked.false_alarms, asked.power)
    less, alarms, power = (None if rate is None else rate / 100 for rate in rates)
    gate = campaign_asked.Gate(
        found, setting, old, asked.against, less, alarms, power, asked.runs, asked.machine, asked.out
    )
    if old is None:
        _gate_by_reference(gate, asked)
    elif asked.against is not None or asked.update:
        raise InputError("--against-command and --against-setting need no reference; leave out --against and --update")
    else:
        first = Path(asked.what[0])
        _judge(gate, gate.in_turn(), asked, first if first.is_file() else Path(f"{found.study.name}.gate"))


def _programs(asked: GateArguments) -> tuple[CheckedStudy, Setting, Setting | None]:
    """The study, the setting of the program that is to be run, and that of the old one, where it is run as well."""
    what, old, old_setting = asked.what, asked.against_command, asked.against_setting
    if one_command.is_study(what):
        if old:
            raise InputError(
                "--against-command takes two commands (--against-command OLD -- NEW); of a study make the program a "
                "knob and run --at program=new --against-setting program=old"
            )
        return check.check_study(Path(what[0])), asked.at, old_setting or None
    if old_setting:
        raise InputError("--against-setting is of a study file; for commands use --against-command OLD -- NEW")
    if asked.at != "baseline":
        raise InputError("--at is a setting of a study file; a command has none")
    new = what[0] if len(what) == 1 else shlex.join(what)
    if new == old:
        raise InputError("both commands are the same; name the old build with --against-command")
    found = one_command.study_of_commands([new, *([old] if old else [])])
    return found, {one_command.KNOB: new}, {one_command.KNOB: old} if old else None


def _gate_by_reference(gate: Gate, files: GateArguments) -> None:
    if files.update:
        asked = gate.measuring()
        live.drive(*asked, files.as_json)
        gate.write_reference(asked.folder)
        if not files.as_json:
            print(f"  wrote {gate.path}: commit it")
        _remember(gate, files, status.read_status(asked.folder.path).answer)
        return
    stored = kinds_gate.ReferenceFile.read(gate.path)
    try:
        asked = gate.judged(stored)
    except CannotJudge as error:
        reference = records_answer.Reference("the reference", gate.question(stored).point, None)
        conclusion = records_answer.Conclusion.CANNOT_JUDGE
        answer = records_answer.Answer("gate", conclusion, str(error), reference, None)
        _write(gate, files, gate.path, answer, 0.0)
        raise
    _judge(gate, asked, files, gate.path)


def _judge(gate: Gate, asked: Asked, files: GateArguments, shown: Path) -> None:
    """Run until it is decided, and write what CI systems read."""
    try:
        live.drive(*asked, files.as_json)
    finally:
        now = status.read_status(asked.folder.path)
        if now.history.verdict is not None:
            _write(gate, files, shown, now.answer, now.history.wall_s)
            _remember(gate, files, now.answer)


def _remember(gate: Gate, files: GateArguments, answer: Answer) -> None:
    """Add this gate to the history, and write the history's page."""
    study = gate.found.study
    values = [value for value in answer.facts.get("gate", {}).get("values", ()) if value > 0]
    if files.history is None or not values:
        return
    past = gate_history.PastGate(
        study=study.name,
        at=campaign_asked.now_text(),
        conclusion=answer.conclusion or "",
        values=tuple(values),
        metric=study.goal.metric,
        direction=study.goal.direction,
        machine=gate.machine,
        unit=answer.unit,
        commit=_commit_here(),
    )
    gates.write_gate_history(gate_history.add_gate(files.history, past), study, files.history)


def _write(gate: Gate, files: GateArguments, shown: Path, answer: Answer, seconds: float) -> None:
    """What CI systems read, and what GitHub reads from standard output."""
    name, reference = gate.found.study.name, shown.as_posix()
    summary = _markdown_text(name, gate.found.study.goal.metric, answer)
    if files.junit is not None:
        ridgeline_files.write_whole(files.junit, _junit_text(name, answer, seconds))
    if files.gitlab is not None:
        ridgeline_files.write_whole(files.gitlab, _gitlab_text(name, answer, reference))
    if files.markdown is not None:
        ridgeline_files.write_whole(files.markdown, summary)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print(_github_line(name, answer, reference))
        if page := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(page).open("a") as file:
                file.write(summary)


# what CI systems show of a conclusion: its title, GitHub's level, GitLab's severity
_SHOWN = {
    "not-slower": ("not slower", "notice", ""),
    "slower": ("slower", "error", "major"),
    "cannot-judge": ("cannot judge", "warning", "info"),
    "measured": ("reference measured", "notice", ""),
}
_FAILED = ("did not pass", "error", "major")


def _shown(answer: Answer) -> tuple[str, str, str]:
    return _SHOWN.get(answer.conclusion or "", _FAILED)


def _junit_text(name: str, answer: Answer, seconds: float) -> str:
    """One test case: slower and failed runs fail it, what cannot be judged is skipped."""
    from xml.etree import ElementTree  # slow to load, and most gates write no such file

    skipped = answer.conclusion == "cannot-judge"
    failed = bool(answer.lacks) and not skipped
    counts = {"tests": "1", "failures": str(int(failed)), "errors": "0", "skipped": str(int(skipped))}
    took = {"time": f"{seconds:.3f}"}
    suite = ElementTree.Element("testsuite", {"name": "ridgeline ci gate", **counts, **took})
    case = ElementTree.SubElement(suite, "testcase", {"classname": "ridgeline.gate", "name": name, **took})
    if skipped or failed:
        why = ElementTree.SubElement(case, "skipped" if skipped else "failure", message=answer.headline)
        why.text = answer.headline if failed else None
    ElementTree.SubElement(case, "system-out").text = answer.headline
    ElementTree.indent(suite)
    # written by hand: the library would name the encoding of the locale, and the file is UTF-8
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _github_line(name: str, answer: Answer, reference: str) -> str:
    """A workflow command; GitHub shows it at the reference file."""
    said, level, _ = _shown(answer)
    title = f"{name}: {said}"
    return f"::{level} file={_property(reference)},title={_property(title)}::{_data(answer.headline)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _gitlab_text(name: str, answer: Answer, reference: str) -> str:
    """A Code Quality report: GitLab shows its entries in the merge request; empty where there is nothing to act on."""
    entry = {
        "description": f"{name}: {answer.headline}",
        "check_name": "ridgeline-gate",
        "fingerprint": hashlib.sha256(f"{name} {answer.conclusion}".encode()).hexdigest(),
        "severity": _shown(answer)[2],
        "location": {"path": reference, "lines": {"begin": 1}},
    }
    return json.dumps([entry] if answer.lacks else [], indent=1) + "\n"


def _markdown_text(name: str, metric: str, answer: Answer) -> str:
    """A heading, a table of one row, and the whole sentence below."""
    facts: Mapping[str, Any] = answer.facts.get("gate", {})
    before, now = answer.reference.value, None if answer.candidate is None else answer.candidate.value
    change = low = "–"
    if facts.get("change") is not None and facts.get("runs"):
        change, low = wording.percent(facts["change"]), wording.percent_range(facts["low"], facts["high"])
    values = ["–" if value is None else wording.metric_text(value) for value in (before, now)]
    row = (metric, *values, change, low, str(facts.get("runs", 0)))
    return (
        f"### {name}: {_shown(answer)[0]}\n\n"
        "| metric | reference | now | slower by | 95% | runs |\n|---|---|---|---|---|---|\n"
        f"| {' | '.join(row)} |\n\n{answer.headline}\n"
    )


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
