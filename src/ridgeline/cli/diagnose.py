"""ridgeline diagnose FILE…: what logs and profiles mean, with the lines that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ridgeline import catalog
from ridgeline.cli.terminal import json_escaped
from ridgeline.cli.text.diagnosis import comparison_text, diagnosis_text
from ridgeline.cli.text.reading_bar import ReadingBar
from ridgeline.diagnose.base import Analyzer, Diagnosis
from ridgeline.diagnose.base import diagnose as diagnose_file
from ridgeline.diagnose.comparison import compare_files
from ridgeline.diagnose.knobs import knobs_yaml
from ridgeline.errors import InputError, ReadError


def diagnose(
    files: Annotated[list[Path], typer.Argument(help="Logs, outputs or profiles, of the kinds named above.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_knobs: Annotated[
        bool, typer.Option("--as-knobs", help="Print the advice as YAML: knobs for a study's space and baseline.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Say what changed from the first of two files to the second.")
    ] = False,
) -> None:
    """Say what logs and profiles mean: findings, the lines that show them, and what to do.

    Knows logs of SGLang, vLLM and NCCL; outputs of NWChem; profiles of nsys (SQLite and CSV), the PyTorch profiler,
    mpiP, IPM, VTune and perf; nvidia-smi dmon; records of Slurm and PBS; the bindings that launchers report; and what
    shells, launchers, Slurm, the kernel and programs of any kind print when a run fails. A file may
    hold several of these, may be gzipped, and may be as long as it likes.
    """
    analyzers: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.names("analyzers")]
    if compare:
        _compare(files, analyzers, as_json, as_knobs)
        return
    diagnoses = [_diagnosed(path, analyzers) for path in files]
    if as_knobs:
        print(knobs_yaml([f for d in diagnoses for f in d.findings]) or "# no finding names a knob to try")
    elif as_json:
        print(json_escaped(json.dumps({"files": [d.as_json() for d in diagnoses]}, indent=2, ensure_ascii=False)))
    else:
        print("\n\n".join(diagnosis_text(d) for d in diagnoses if d.kinds))
    _complain(diagnoses, analyzers)


def _compare(files: list[Path], analyzers: list[Analyzer], as_json: bool, as_knobs: bool) -> None:
    if len(files) != 2 or as_knobs:
        raise InputError("--compare takes two files, and no --as-knobs: ridgeline diagnose --compare A.log B.log")
    for path in files:
        if not path.exists():
            raise InputError(f"{path}: no such file")
    bars = [ReadingBar(path) for path in files]
    comparison = compare_files(files[0], files[1], analyzers, (bars[0], bars[1]))
    for bar in bars:
        bar.close()
    document = json.dumps(comparison.as_json(), indent=2, ensure_ascii=False)
    print(json_escaped(document) if as_json else comparison_text(comparison))


def _diagnosed(path: Path, analyzers: list[Analyzer]) -> Diagnosis:
    bar = ReadingBar(path)
    try:
        return diagnose_file(path, analyzers, bar)
    finally:
        bar.close()


def _complain(diagnoses: list[Diagnosis], analyzers: list[Analyzer]) -> None:
    """Exit code 2 for files of no known kind, 4 for those of a known kind in which nothing could be read."""
    strange = [f"{d.path} (empty)" if not d.path.stat().st_size else str(d.path) for d in diagnoses if not d.kinds]
    if strange:
        known = "\n".join(f"  {a.kind:<14}{a.what}" for a in analyzers)
        raise InputError(f"{', '.join(strange)}: not recognised. Known kinds of file:\n{known}")
    unread = [note for d in diagnoses if not d.findings for note in d.notes]
    if unread:
        raise ReadError("; ".join(unread))
