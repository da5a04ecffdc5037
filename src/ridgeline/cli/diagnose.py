"""ridgeline diagnose FILE…: what logs and profiles mean, with the lines that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ridgeline import catalog
from ridgeline.analyzers.base import Analyzer
from ridgeline.analyzers.base import diagnose as diagnose_file
from ridgeline.cli.text.diagnosis import diagnosis_text
from ridgeline.errors import InputError


def diagnose(
    files: Annotated[list[Path], typer.Argument(help="Logs, outputs or profiles, of the kinds named above.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what logs and profiles mean: findings, the lines that show them, and what to do.

    Knows logs of SGLang, vLLM and NCCL, outputs of NWChem, profiles of mpiP, IPM, VTune, perf and nsys, the footers of
    PBS sites and the bindings that launchers report. A file may hold several of these.
    """
    analyzers: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.names("analyzers")]
    diagnoses = [diagnose_file(path, analyzers) for path in files]
    if as_json:
        print(json.dumps({"files": [d.as_json() for d in diagnoses]}, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(diagnosis_text(d) for d in diagnoses if d.kinds))
    strange = [d.path for d in diagnoses if not d.kinds]
    if strange:
        known = "\n".join(f"  {a.kind:<14}{a.what}" for a in analyzers)
        names = ", ".join(map(str, strange))
        raise InputError(f"{names}: not recognised. Known kinds of file:\n{known}")
