"""ridgeline diagnose FILE…: what logs and profiles mean, with the lines that show it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ridgeline import catalog
from ridgeline.cli.terminal import clean_line, uncleaned
from ridgeline.cli.text.table import aligned, cut
from ridgeline.diagnose import base
from ridgeline.diagnose import comparison as diagnose_comparison
from ridgeline.diagnose import knobs as diagnose_knobs
from ridgeline.errors import InputError, ReadError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ridgeline.diagnose.base import Analyzer, Diagnosis
    from ridgeline.diagnose.comparison import FindingChange, LogComparison
    from ridgeline.records.finding import Finding

WIDTH = 80
_QUOTE_LINES = 3
_WAIT_S = 0.5  # until there is a bar that shows how far a long file has been read


def diagnose(
    files: Annotated[
        list[Path], typer.Argument(help="Logs, outputs or profiles, of the kinds named above; or a folder of them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_knobs: Annotated[
        bool, typer.Option("--as-knobs", help="Print the advice as YAML: knobs for a study's space and baseline.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what changed from the first of two files to the second.")
    ] = False,
) -> None:
    """Explain logs and profiles: findings, the lines that show them, and what to do about them.

    Knows logs and outputs of the programs that are tuned here; profiles of nsys (its CSV), the PyTorch
    profiler, mpiP, IPM, VTune and perf; the bindings that launchers report; and what shells, launchers, Slurm, the
    kernel and programs of any kind print when a run fails. A file may hold several of these, be gzipped, and be of any
    length. Of a folder, such as a run's, those of its files are read that are of these kinds.

    Example: ridgeline diagnose server.log
    """
    analyzers: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.names("analyzers")]
    if compare:
        _compare(files, analyzers, as_json, as_knobs)
        return
    diagnoses = [found for path in files for found in _all_diagnosed(path, analyzers)]
    if as_knobs:
        print(
            diagnose_knobs.knobs_yaml([f for d in diagnoses for f in d.findings]) or "# no finding names a knob to try"
        )
    elif as_json:
        print(json.dumps({"files": [d.as_json() for d in diagnoses]}, indent=2))
    else:
        print("\n\n".join(_diagnosis_text(d) for d in diagnoses if d.kinds))
    _complain(diagnoses, analyzers)


def _compare(files: list[Path], analyzers: list[Analyzer], as_json: bool, as_knobs: bool) -> None:
    if len(files) != 2 or as_knobs:
        raise InputError("--compare takes two files, and no --as-knobs: ridgeline diagnose --compare A.log B.log")
    first, second = files
    with reading_bar(first) as one, reading_bar(second) as other:
        comparison = diagnose_comparison.compare_files(first, second, analyzers, (one, other))
    print(json.dumps(comparison.as_json(), indent=2) if as_json else _comparison_text(comparison))


def _all_diagnosed(path: Path, analyzers: list[Analyzer]) -> list[Diagnosis]:
    """Of a file, or of those files in a folder that are of a known kind."""
    if not path.is_dir():
        return [_diagnosed(path, analyzers)]
    found = [_diagnosed(each, analyzers) for each in sorted(path.iterdir()) if each.is_file() and not each.is_symlink()]
    if known := [each for each in found if each.kinds]:
        return known
    runs = sorted(each for each in path.glob("runs/*") if each.is_dir())
    meant = f"name one of its runs, for example {runs[0]}" if runs else "name a file or a folder that holds some"
    raise InputError(f"{path}: no file in this folder is a log, an output or a profile of a known kind; {meant}")


def _diagnosed(path: Path, analyzers: list[Analyzer]) -> Diagnosis:
    with reading_bar(path) as bar:
        return base.diagnose(path, analyzers, bar)


def _complain(diagnoses: list[Diagnosis], analyzers: list[Analyzer]) -> None:
    """Exit code 2 for files of no known kind, 4 for those of a known kind in which nothing could be read."""
    strange = [f"{d.path} (empty)" if not d.path.stat().st_size else str(d.path) for d in diagnoses if not d.kinds]
    if strange:
        width = max(len(a.kind) for a in analyzers)
        known = "\n".join(f"  {a.kind:<{width}}  {a.what}" for a in analyzers)
        raise InputError(f"{', '.join(strange)}: not recognised. Known kinds of file:\n{known}")
    unread = [note for d in diagnoses if not d.findings for note in d.notes]
    if unread:
        raise ReadError("; ".join(unread))


@contextmanager
def reading_bar(path: Path, to: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """What to call with the bytes read so far. It shows itself only to people, and only when they would wait."""
    stream, began_s, running = uncleaned(to or sys.stderr), time.monotonic(), ExitStack()
    bar: Progress | None = None

    def show(done: int) -> None:
        nonlocal bar
        if bar is None:
            if not stream.isatty() or time.monotonic() - began_s < _WAIT_S:
                return
            from rich import console, progress  # slow to load, and few files are so long

            columns = (progress.BarColumn(24), progress.DownloadColumn(), progress.TransferSpeedColumn())
            name = cut(clean_line(path.name), 20)
            bar = progress.Progress(name, *columns, console=console.Console(file=stream), transient=True)
            running.enter_context(bar)
            bar.add_task("", total=path.stat().st_size)
        bar.update(bar.task_ids[0], completed=done)

    with running:
        yield show


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    head = f"{diagnosis.path} ({', '.join(diagnosis.kinds)})"
    notes = [_wrapped(f"  note: {note}", "    ") for note in diagnosis.notes]
    if not diagnosis.findings:
        return "\n".join([*notes, f"{head}: nothing to report"])
    return "\n\n".join([_wrapped(head, "  "), *notes, *map(_finding, diagnosis.findings)])


def _finding(finding: Finding) -> str:
    lines = [_wrapped(f"  {finding.severity}: {finding.claim}", "    ")]
    lines += [_quote(f"{e.line_number}: {e.text}") for e in finding.evidence]
    if finding.share is not None or finding.severity == "advice":
        lines.append(f"    at stake: {_stake(finding)}")
    lines.append(_wrapped(f"    -> {finding.advice}", "       "))
    if finding.knobs:
        knobs = ", ".join(
            f"{k.name} {_values(tuple(v for v in k.values if v != k.current))} instead of {_values((k.current,))}"
            for k in finding.knobs
        )
        lines.append(_wrapped(f"    try: {knobs}", "       "))
    return "\n".join(lines)


def _stake(finding: Finding) -> str:
    return "not known" if finding.share is None else f"up to {finding.share:.0%} of the time"


def _values(values: tuple[object, ...]) -> str:
    return " or ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)


def _quote(text: str) -> str:
    """As far as it fits into three lines: the rest is in the file, at the number in front."""
    lines = wrap(_printable(text), WIDTH, initial_indent="      ", subsequent_indent="        ", break_on_hyphens=False)
    if len(lines) > _QUOTE_LINES:
        lines = lines[:_QUOTE_LINES]
        lines[-1] = lines[-1][: WIDTH - 2] + " …"
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    start = " " * (len(text) - len(text.lstrip()))
    plain = _printable(text.strip())
    return "\n".join(wrap(plain, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False))


def _printable(text: str) -> str:
    """A log can hold codes that would move the cursor or rename the window."""
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "\ufffd" for c in text)


def _comparison_text(comparison: LogComparison) -> str:
    first, second = comparison.first, comparison.second
    heads = [_wrapped(f"{letter} {d.path} ({', '.join(d.kinds)})", "  ") for letter, d in (("A", first), ("B", second))]
    parts = ["\n".join(heads), *(_wrapped(f"  note: {note}", "    ") for note in (*first.notes, *second.notes))]
    if comparison.settings:
        rows = [(name, _short(a), _short(b)) for name, a, b in comparison.settings]
        parts.append(_columns(("settings that differ", "A", "B"), rows))
    if moved := [f.cells for f in comparison.figures if f.first or f.second]:
        parts.append(_columns(("figures", "A", "B", "change"), moved))
    parts += _finding_changes(comparison.findings)
    if len(parts) == 1:
        parts.append("nothing changed that shows in the logs")
    return "\n\n".join(parts)


def _finding_changes(changes: tuple[FindingChange, ...]) -> list[str]:
    only: dict[str, list[str]] = {"only in B:": [], "only in A:": [], "in both, as in B:": []}
    for before, after in ((change.first, change.second) for change in changes):
        if before and after:
            was = f" (A: {_stake(before)})" if before.share != after.share else ""
            only["in both, as in B:"].append(_line(after, was))
        elif after:
            only["only in B:"].append(_line(after))
        elif before:
            only["only in A:"].append(_line(before))
    return ["\n".join([title, *lines]) for title, lines in only.items() if lines]


def _line(finding: Finding, more: str = "") -> str:
    stake = "" if finding.share is None else f"; at stake: {_stake(finding)}"
    return _wrapped(f"  {finding.severity}: {finding.claim}{stake}{more}", "    ")


def _short(value: object) -> str:
    return cut(_printable("–" if value is None else str(value)), 18)


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(aligned([(cut(name, 32), *cells) for name, *cells in (head, *rows)], left=(0,)))
