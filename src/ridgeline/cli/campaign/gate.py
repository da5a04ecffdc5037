from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.campaign.kinds.gate import GateQuestion, ReferenceFile
    from ridgeline.records.answer import Answer
    from ridgeline.records.study import Study


def gate(
    what: Annotated[
        list[str], typer.Argument(metavar="STUDY | -- COMMAND…", help="The study file; or a command, after two dashes.")
    ],
    against: Annotated[
        Path | None, typer.Option(help="Reference file to commit; NAME.gate.json in this folder by default.")
    ] = None,
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
    runs: Annotated[int | None, typer.Option(min=12, help="Most runs; 100, of a reference 300.")] = None,
    machine: Annotated[
        str, typer.Option(help="A name for machines that are alike, instead of the host's: runners of one pool.")
    ] = "",
    junit: Annotated[Path | None, typer.Option(help="JUnit file to write.")] = None,
    gitlab: Annotated[Path | None, typer.Option(help="GitLab Code Quality file to write.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Markdown summary to write.")] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="File of all gates so far, to which this one is added; a page with changes beside it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Study folder to write; studies/NAME-gate by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Is a program slower than its committed reference? Runs it until that is decided, either way.

    In GitHub Actions it also prints an annotation and adds to the job's summary. A gate that was stopped goes on when
    it is called again.

    Exit code 0: not slower. 6: slower. 7: cannot judge (another machine, too few runs). 1: the program failed.

    Example: ridgeline gate study.yaml --against solver.gate.json --update
    """
    from dataclasses import replace

    from ridgeline.campaign.assembly import assemble_again
    from ridgeline.campaign.check import check_study
    from ridgeline.campaign.kinds.gate import (
        CANNOT_JUDGE,
        MOST_RUNS,
        MOST_STORED,
        GateQuestion,
        ReferenceFile,
        machine_of,
    )
    from ridgeline.campaign.point_text import parse_point
    from ridgeline.campaign.status import read_status
    from ridgeline.cli.campaign.live import drive
    from ridgeline.cli.campaign.one_command import is_study, study_of_commands
    from ridgeline.errors import CannotJudge, InputError
    from ridgeline.records.answer import Answer, Reference

    if is_study(what):
        found = check_study(Path(what[0]))
    else:
        import shlex

        if at != "baseline":
            raise InputError("--at is a setting of a study file; a command has none")
        found = study_of_commands([what[0] if len(what) == 1 else shlex.join(what)])
    study = found.study
    point = dict(parse_point(found, at, study.baseline))
    path = against or Path(f"{study.name}.gate.json")
    here = machine_of(study, machine)
    files = _Outputs(study, path, junit, gitlab, markdown, history, here)
    stored = ReferenceFile.to_be_replaced(path) if update else ReferenceFile.read(path)
    default = stored or GateQuestion(point)
    rates = GateQuestion(
        point,
        slower=default.slower if slower is None else slower / 100,
        false_alarm=default.false_alarm if false_alarms is None else false_alarms / 100,
        power=default.power if power is None else power / 100,
    )
    if update or stored is None:
        question = replace(rates, most_runs=runs or MOST_STORED)
        folder, new = assemble_again(found, out, f"{study.name}-reference", question)
        drive(folder, new, as_json)
        _store(folder.path, question, here, stored, path, quiet=as_json)
        files.remember(read_status(folder.path).answer)
        return
    try:
        stored.require_same(path, study, point, here)
    except CannotJudge as error:
        files.write(Answer("gate", CANNOT_JUDGE, str(error), Reference("the reference", point, None), None), 0.0)
        raise
    nodes = list(stored.machine.get("nodes", []))
    question = replace(rates, stored=list(stored.values), most_runs=runs or MOST_RUNS, nodes=nodes)
    folder, new = assemble_again(found, out, f"{study.name}-gate", question)
    try:
        drive(folder, new, as_json)
    finally:
        now = read_status(folder.path)
        if now.history.verdict is not None:
            files.write(now.answer, now.history.wall_s)
            files.remember(now.answer)


def _store(
    folder: Path,
    question: GateQuestion,
    machine: dict[str, object],
    old: ReferenceFile | None,
    path: Path,
    quiet: bool,
) -> None:
    from datetime import UTC, datetime

    from ridgeline.campaign.kinds.gate import measured_reference
    from ridgeline.campaign.status import read_status

    now = read_status(folder)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    measured_reference(question, now.study, now.history, machine, old, at).write(path)
    if not quiet:
        print(f"  wrote {path}: commit it")


class _Outputs:
    """The files that a CI system reads, and what GitHub reads from standard output."""

    def __init__(
        self,
        study: Study,
        reference: Path,
        junit: Path | None,
        gitlab: Path | None,
        markdown: Path | None,
        history: Path | None,
        machine: dict[str, object],
    ) -> None:
        self._study, self._reference = study, reference
        self._junit, self._gitlab, self._markdown = junit, gitlab, markdown
        self._history, self._machine = history, machine

    def remember(self, answer: Answer) -> None:
        """Add this gate to the history, and write its page."""
        values = [value for value in answer.facts.get("gate", {}).get("values", ()) if value > 0]
        if self._history is None or not values:
            return
        from datetime import UTC, datetime

        from ridgeline.cli.text.gate import commit_here
        from ridgeline.report.gates import gate_sections
        from ridgeline.report.html import Folders
        from ridgeline.report.page import whole_page, write_page
        from ridgeline.study.gate_history import PastGate, add_gate, past_gates

        goal, at = self._study.goal, datetime.now(UTC).isoformat(timespec="seconds")
        gate = PastGate(
            self._study.name,
            at,
            answer.conclusion or "",
            tuple(values),
            goal.metric,
            goal.direction,
            self._machine,
            answer.unit,
            commit_here(),
        )
        page = self._history.with_suffix(".html")
        if page == self._history:
            page = self._history.with_name(f"{self._history.name}.html")
        if self._history.exists():
            past_gates(self._history)  # what is not a history stays as it is
        add_gate(self._history, gate)
        shown = gate_sections(past_gates(self._history))
        write_page(whole_page(f"{self._study.name}: gates", self._study.question, shown, Folders(Path(), None)), page)

    def write(self, answer: Answer, seconds: float) -> None:
        import os

        from ridgeline.cli.text.gate import github_line, gitlab_text, junit_text, markdown_text
        from ridgeline.files import write_whole

        name, reference = self._study.name, self._reference.as_posix()
        summary = markdown_text(name, self._study.goal.metric, answer)
        if self._junit is not None:
            write_whole(self._junit, junit_text(name, answer, seconds))
        if self._gitlab is not None:
            write_whole(self._gitlab, gitlab_text(name, answer, reference))
        if self._markdown is not None:
            write_whole(self._markdown, summary)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(github_line(name, answer, reference))
            if page := os.environ.get("GITHUB_STEP_SUMMARY"):
                with Path(page).open("a") as file:
                    file.write(summary)
