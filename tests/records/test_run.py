"""How long a run took, and what it cost."""

from __future__ import annotations

from pathlib import Path

from ridgeline.records.run import Cause, Ending, Resources, Run


def node_hours(ending: Ending, nodes: int = 1) -> float:
    return Run(1, 1, 1, Path("runs/1"), Resources(nodes=nodes), ending).node_hours


def test_an_unknown_start_is_no_time() -> None:
    """Half a million node-hours would end any budget."""
    cancelled = Ending(Cause.CANCELLED, started_s=0.0, ended_s=1_794_715_140.0)
    assert cancelled.duration_s == 0.0
    assert node_hours(cancelled, nodes=4) == 0.0


def test_a_date_that_was_set_does_not_change_how_long_it_took() -> None:
    back = Ending(Cause.EXITED, 0, started_s=5000.0, ended_s=1400.0, elapsed_s=1800.0)
    assert back.duration_s == 1800.0
    assert node_hours(back, nodes=2) == 1.0
    assert Ending(Cause.EXITED, 0, started_s=5000.0, ended_s=1400.0).duration_s == 0.0
    assert Ending(Cause.EXITED, 0, started_s=5000.0, ended_s=5060.0).duration_s == 60.0, "from before it was counted"
