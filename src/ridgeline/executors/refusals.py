"""Why a submission was refused: the first rule whose pattern is found in what the batch system said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.executors.dialect import Blame, JobReply, Refusal
from ridgeline.records.site import Site


@dataclass(frozen=True)
class RefusalRule:
    """`advice` may name {said}, {queue} and {account}."""

    pattern: str
    blame: Blame
    advice: str = "{said}"


def judge(rules: Iterable[RefusalRule], program: str, answer: JobReply, site: Site) -> Refusal:
    said = _said(answer) or f"{program} ended with {answer.code} and said nothing"
    known = {"said": said, "queue": site.queue or "not set", "account": site.account or "not set"}
    for rule in rules:
        if re.search(rule.pattern, f"{answer.stdout}\n{answer.stderr}"):
            return Refusal(rule.blame, rule.advice.format(**known))
    return Refusal(Blame.SITE_FILE, f"{said}; ask the operator of the cluster, or correct the site file")


def _said(answer: JobReply) -> str:
    lines = [line.strip() for line in f"{answer.stderr}\n{answer.stdout}".splitlines() if line.strip()]
    return "; ".join(lines[-3:])
