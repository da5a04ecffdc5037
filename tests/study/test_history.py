"""What a campaign has spent, as its journal says: builds on the site, and what the batch system says later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.study.history import History


def build(key: str, **more: Any) -> dict[str, Any]:
    line = {"at": 0.0, "event": "build", "key": key, "outcome": {"kind": "ok"}, "files": 1, "seconds": 99.0}
    return line | {"settings": {}} | more


def charged(ticket: str, seconds: float) -> dict[str, Any]:
    return {"at": 0.0, "event": "charged", "ticket": ticket, "seconds": seconds}


@pytest.mark.parametrize(
    ("lines", "by_variant", "node_s"),
    [
        ([build("a")], {}, 0.0),  # on this machine, which is not charged for
        ([build("a", ticket="1", node_s=360.0)], {"a": 360.0}, 360.0),
        ([build("a", ticket="1", node_s=360.0), build("a", ticket="2", node_s=100.0)], {"a": 460.0}, 460.0),
        ([build("a", ticket="1", node_s=0.0)], {"a": 0.0}, 0.0),
        ([build("a"), build("b", ticket="1", node_s=36.0)], {"b": 36.0}, 36.0),
        # the batch system's word replaces the part that was estimated, and nothing else
        ([build("a", ticket="1", node_s=300.0, estimated_s=100.0), charged("1", 160.0)], {"a": 360.0}, 360.0),
        ([build("a", ticket="1", node_s=300.0, estimated_s=100.0), charged("1", 40.0)], {"a": 240.0}, 240.0),
        (
            [
                build("a", ticket="1", node_s=300.0, estimated_s=100.0),
                build("b", ticket="2", node_s=50.0, estimated_s=50.0),
                charged("2", 70.0),
            ],
            {"a": 300.0, "b": 70.0},
            370.0,
        ),
    ],
)
def test_builds_on_the_site_are_paid_by_variant(
    lines: list[dict[str, Any]], by_variant: dict[str, float], node_s: float
) -> None:
    history = History(Path("study"))
    history.apply_all(lines)
    assert history.build_s == by_variant
    assert history.node_hours * 3600 == pytest.approx(node_s)
    answered = {line["ticket"] for line in lines if line["event"] == "charged"}
    asked = {line["ticket"] for line in lines if "estimated_s" in line}
    assert set(history.uncharged) == asked - answered


@pytest.mark.parametrize("ticket", ["2", ""])
def test_a_job_that_nobody_waits_for_is_charged_to_nobody(ticket: str) -> None:
    history = History(Path("study"))
    history.apply(build("a", ticket="1", node_s=300.0))
    with pytest.raises(LookupError):
        history.apply(charged(ticket, 10.0))
    assert history.node_hours * 3600 == pytest.approx(300.0)
