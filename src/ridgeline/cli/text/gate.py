"""A gate's verdict as CI systems read it: JUnit, annotations of GitHub and GitLab, and a Markdown summary."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ridgeline.records.answer import Answer
from ridgeline.stats.wording import metric_text, percent, percent_range

_TITLES = {
    "not-slower": "not slower",
    "slower": "slower",
    "cannot-judge": "cannot judge",
    "measured": "reference measured",
}
_LEVELS = {"not-slower": "notice", "measured": "notice", "cannot-judge": "warning"}
_SEVERITIES = {"cannot-judge": "info"}


def junit_text(name: str, answer: Answer, seconds: float) -> str:
    """One test case: slower and failed runs fail it, what cannot be judged is skipped."""
    inside = ""
    if answer.conclusion == "cannot-judge":
        inside = f"<skipped message={quoteattr(answer.headline)}/>"
    elif answer.lacks:
        inside = f"<failure message={quoteattr(answer.headline)}>{escape(answer.headline)}</failure>"
    failures, skipped = inside.startswith("<failure"), inside.startswith("<skipped")
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="ridgeline gate" tests="1" failures="{int(failures)}" errors="0" skipped="{int(skipped)}" '
        f'time="{seconds:.3f}">\n'
        f'  <testcase classname="ridgeline.gate" name={quoteattr(name)} time="{seconds:.3f}">{inside}\n'
        f"    <system-out>{escape(answer.headline)}</system-out>\n"
        "  </testcase>\n"
        "</testsuite>\n"
    )


def github_line(name: str, answer: Answer, reference: str) -> str:
    """A workflow command; GitHub shows it at the reference file."""
    level = _LEVELS.get(answer.conclusion or "", "error")
    title = f"{name}: {_title(answer)}"
    return f"::{level} file={_property(reference)},title={_property(title)}::{_data(answer.headline)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab_text(name: str, answer: Answer, reference: str) -> str:
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


def markdown_text(name: str, metric: str, answer: Answer) -> str:
    """A heading, a table of one row, and the whole sentence below."""
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


def commit_here() -> str:
    """What is measured, by the CI system or by git in this folder; empty where neither knows."""
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT"):
        if found := os.environ.get(name):
            return found
    try:
        said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
