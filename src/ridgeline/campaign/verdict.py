"""What every kind of campaign says when it is over, and the answer that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ridgeline.records.answer import Answer, Candidate, Reference
from ridgeline.records.space import Point
from ridgeline.store.events import VerdictLine


class CampaignVerdict(Protocol):
    """A frozen record of its kind of campaign. `details` is what the journal keeps beside the two fields."""

    @property
    def conclusion(self) -> str: ...

    @property
    def headline(self) -> str: ...

    @property
    def recommended(self) -> Point | None:
        """The setting to use from now on, where there is one."""
        ...

    def details(self) -> Mapping[str, Any]: ...


def answer_of(
    kind: str,
    verdict: VerdictLine | None,
    reference: Reference,
    candidate: Candidate | None,
    facts: Mapping[str, Any],
    offers: bool = True,
) -> Answer:
    """The answer of a campaign that may not be over."""
    if verdict is None:
        return Answer(kind, None, "no verdict yet", reference, candidate, facts, offers)
    paste = str(verdict.details.get("paste", ""))
    return Answer(kind, verdict.conclusion, verdict.headline, reference, candidate, facts, offers, paste)
