"""Findings with the lines that show them, for a terminal."""

from __future__ import annotations

from ridgeline.analyzers.base import Diagnosis
from ridgeline.records.finding import Finding


def diagnosis_text(diagnosis: Diagnosis) -> str:
    head = f"{diagnosis.path} ({', '.join(diagnosis.kinds)})"
    if not diagnosis.findings:
        return f"{head}: nothing to report"
    return "\n\n".join([head, *map(_finding, diagnosis.findings)])


def _finding(finding: Finding) -> str:
    shown = [f"      {e.line_number}: {e.text}" for e in finding.evidence]
    return "\n".join([f"  {finding.severity}: {finding.claim}", *shown, f"    -> {finding.advice}"])
