"""A grant that studies and people share: reserved before, settled after, never overdrawn, and no line edited unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError, StoreError
from ridgeline.study.grant import create, read_grant, reserve, settle, top_up

STUDY = "/studies/mine"


def test_what_is_reserved_is_not_left_and_what_is_settled_is_spent(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    reserve(path, STUDY, 1, 4.0)
    state = read_grant(path)
    assert (state.total, state.spent, state.reserved, state.left) == (10.0, 0.0, 4.0, 6.0)
    settle(path, STUDY, 1, 1.5, "measured")
    state = read_grant(path)
    assert (state.spent, state.reserved, state.left) == (1.5, 0.0, 8.5)
    top_up(path, 5.0)
    assert read_grant(path).left == 13.5


def test_the_batch_system_has_the_last_word_on_what_a_run_cost(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    reserve(path, STUDY, 1, 4.0)
    settle(path, STUDY, 1, 1.5, "measured")
    settle(path, STUDY, 1, 1.75, "batch system")
    settle(path, STUDY, 1, 1.75, "batch system")
    state = read_grant(path)
    assert (state.spent, state.runs[STUDY, 1].source) == (1.75, "batch system")
    assert len(path.read_text().splitlines()) == 4, "the same again is not written again"


def test_service_units_are_a_rate_of_node_hours(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 1000.0, unit="SU", per_node_hour=128.0)
    reserve(path, STUDY, 1, 2.0)
    assert read_grant(path).left == 1000 - 256


def test_a_grant_is_not_overdrawn_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    reserve(path, "/studies/hers", 7, 7.0)
    with pytest.raises(SiteError) as refused:
        reserve(path, STUDY, 1, 4.0)
    text = str(refused.value)
    assert f"{path} has 3 of 10 node-hours left (0 spent, 7 reserved for runs under way)" in text
    assert "a run may take 4" in text
    assert f"ridgeline site grant top-up {path} AMOUNT" in text
    assert read_grant(path).left == 3.0


def test_a_run_is_reserved_once_however_often_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    for _ in range(3):
        reserve(path, STUDY, 1, 4.0)
    assert read_grant(path).reserved == 4.0


@pytest.mark.parametrize("act", ["amount", "removed", "swapped", "garbage"])
def test_a_line_edited_by_hand_is_refused_by_its_number(tmp_path: Path, act: str) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    for number in (1, 2, 3):
        reserve(path, STUDY, number, 1.0)
    lines = path.read_text().splitlines(keepends=True)
    if act == "amount":
        lines[2] = lines[2].replace('"amount":1.0', '"amount":0.1')
    elif act == "removed":
        del lines[2]
    elif act == "swapped":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines[2] = "one node-hour back, thanks\n"
    path.write_text("".join(lines))
    for use in (lambda: read_grant(path), lambda: reserve(path, STUDY, 9, 1.0), lambda: top_up(path, 1.0)):
        with pytest.raises(StoreError, match=r"grant\.jsonl:3: .* edited by hand"):
            use()


def test_a_line_that_was_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    reserve(path, STUDY, 1, 1.0)
    with path.open("a") as stream:
        stream.write('{"act":"reserve","amount":5')
    assert read_grant(path).left == 9.0
    reserve(path, STUDY, 2, 1.0)
    assert read_grant(path).left == 8.0
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_many_at_once_never_overdraw_it(tmp_path: Path) -> None:
    """Four processes take one node-hour each until it is gone: ten get one, however they meet."""
    path = tmp_path / "grant.jsonl"
    create(path, 10.0)
    program = (
        "import sys\nfrom pathlib import Path\nfrom ridgeline.errors import SiteError\n"
        "from ridgeline.study.grant import reserve\nwho, path = sys.argv[1], Path(sys.argv[2])\n"
        "for run in range(20):\n    try:\n        reserve(path, who, run, 1.0)\n    except SiteError:\n        break\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, f"/s{who}", str(path)]) for who in range(4)]
    assert [process.wait(600) for process in started] == [0] * 4
    state = read_grant(path)
    assert (state.left, len(state.runs)) == (0.0, 10)


def test_what_is_no_grant_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grant.jsonl"
    with pytest.raises(InputError, match="ridgeline site grant create"):
        read_grant(path)
    create(path, 1.0)
    with pytest.raises(InputError, match="top-up"):
        create(path, 1.0)
    with pytest.raises(InputError, match="above 0"):
        top_up(path, -1.0)
    os.truncate(path, 0)
    with pytest.raises(StoreError, match="empty"):
        read_grant(path)
