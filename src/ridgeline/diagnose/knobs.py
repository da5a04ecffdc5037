"""Advice as knobs of a study: the YAML to paste."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ridgeline import catalog
from ridgeline.records.expression import Value
from ridgeline.records.finding import Finding, KnobToTry


def knobs_yaml(findings: Iterable[Finding]) -> str:
    """`space` and `baseline` of a study, one document for each program; empty where no finding names a knob.

    A knob that several findings name has the values of all of them.
    """
    programs: dict[str, dict[str, list[tuple[KnobToTry, Finding]]]] = {}
    for finding in findings:
        for tried in finding.knobs:
            programs.setdefault(tried.program, {}).setdefault(tried.name, []).append((tried, finding))
    return "---\n".join(_document(program, knobs) for program, knobs in programs.items())


def _study_kinds(program: str) -> tuple[str, ...]:
    """The kinds of workload whose studies take this program's knobs."""
    named = [kind for kind in catalog.names("workloads") if kind == program or kind.startswith(f"{program}-")]
    return tuple(named or catalog.names_of_family("workloads", program) or [program])


def _document(program: str, knobs: Mapping[str, Sequence[tuple[KnobToTry, Finding]]]) -> str:
    kinds = " or ".join(_study_kinds(program))
    lines = [f"# study of kind {kinds}: add to its space and baseline", "space:"]
    for name, tried in knobs.items():
        values = sorted(dict.fromkeys(v for t, _ in tried for v in t.values), key=_in_order)
        for _, finding in tried:
            lines.append(f"  # {_one_line(finding.claim)}")
        lines.append(f"  {name}: [{', '.join(map(_scalar, values))}]")
    lines.append("baseline:")
    lines += [f"  {name}: {_scalar(tried[0][0].current)}" for name, tried in knobs.items()]
    return "\n".join(lines) + "\n"


def _in_order(value: Value) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _one_line(claim: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in claim)
    return text if len(text) <= 76 else text[:75] + "…"


def _scalar(value: Value) -> str:
    """JSON's way to write a number, a truth or a text is one of YAML's too."""
    return json.dumps(value, ensure_ascii=False)
