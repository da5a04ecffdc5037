"""A service's journal as `watch` shows it: read by the same replay as `deploy` and `keep`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ridgeline.report.live.service import WatchedService
from ridgeline.report.live.snapshot import State


def shown(path: Path, *events: dict[str, Any]) -> list[str]:
    (path / "members").mkdir(exist_ok=True)
    lines = [json.dumps({"at": 100.0 + n, **event}) for n, event in enumerate(events)]
    (path / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return [run.title for run in WatchedService(path).snapshot().running]


def start(name: str, generation: int = 1, ready: bool = True) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"event": "planned", "member": name, "generation": generation}]
    found.append({"event": "submitted", "member": name, "ticket": "1"})
    return [*found, {"event": "ready", "member": name, "url": ""}] if ready else found


def test_each_member_is_shown_as_the_journal_has_it(tmp_path: Path) -> None:
    one = {"member": "server-0"}
    assert shown(tmp_path, *start("server-0", ready=False)) == ["server-0: starting"]
    assert shown(tmp_path, *start("server-0")) == ["server-0: ready"]
    mend = {"event": "mend", "why": "hung", **one}
    assert shown(tmp_path, *start("server-0"), mend) == ["server-0: being restarted"]
    assert shown(tmp_path, *start("server-0"), {"event": "leaving", **one}) == ["server-0: leaving"]
    assert shown(tmp_path, *start("server-0"), {"event": "drained", **one}) == ["server-0: drained"]
    assert shown(tmp_path, *start("server-0"), {"event": "ended", "reason": "x", **one}) == ["server-0: ended"]
    again = [*start("server-0"), mend, *start("server-0", 2)]
    assert shown(tmp_path, *again) == ["server-0: ready"]
    snapshot = WatchedService(tmp_path).snapshot()
    assert snapshot.running[0].setting == "start 2, restarted once"
    assert snapshot.headline == "1 of 1 members ready"


def test_one_whose_place_another_has_taken_is_gone_and_a_service_is_down_when_all_ended(tmp_path: Path) -> None:
    one, ended = {"member": "server-0"}, {"event": "ended", "member": "server-0", "reason": "cancelled"}
    begun = [*start("server-0"), {"event": "replacing", "by": "server-0-b", **one}]
    assert shown(tmp_path, *begun) == ["server-0: ready, being replaced"]
    over = [*begun, *start("server-0-b"), {"event": "replaced", "by": "server-0-b", "until": 1.0, **one}]
    assert shown(tmp_path, *over) == ["server-0: leaving", "server-0-b: ready"]
    assert shown(tmp_path, *over, ended, {"event": "retired", **one}) == ["server-0-b: ready"]
    shown(tmp_path, *start("server-0"), {"event": "going-down"})
    assert WatchedService(tmp_path).snapshot().state == State.RUNNING
    shown(tmp_path, *start("server-0"), {"event": "going-down"}, ended, {"event": "down"})
    assert WatchedService(tmp_path).snapshot().state == State.STOPPED
