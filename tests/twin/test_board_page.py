"""The board says of each cell what its rows say: errors, bias, what the intervals hold, and a peer on the same rows."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.twin.board_page import BOARD, BoardRow, again, page, read, write

ROOT = BOARD.parents[2]


def row(
    model: str, number: int, measured: float, predicted: float, peer: float | None = None, **other: str
) -> BoardRow:
    told = {"set": "board", "figure": "TPOT", "engine": "vllm", "gpu": "h100"} | other
    names = (told["set"], f"{model}-{number}", told["figure"], told["engine"], model, told["gpu"])
    return BoardRow(*names, measured, predicted, predicted / 1.25, predicted * 1.25, peer)


def line(text: str, begin: str) -> list[str]:
    found = [part for part in text.splitlines() if part.startswith(f"| {begin}")]
    assert len(found) == 1, (begin, found)
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def test_a_cell_counts_its_own_rows_and_compares_a_peer_where_both_answer():
    rows = [
        row("good", 1, 10.0, 11.0), row("good", 2, 10.0, 9.6, peer=20.0), row("good", 3, 10.0, 10.8, peer=5.0),
        row("bad", 1, 10.0, 25.0), row("bad", 2, 10.0, 11.0), row("bad", 3, 20.0, 10.0),
        row("good", 1, 100.0, 150.0, figure="TTFT"),
    ]  # fmt: skip
    text, drawings = page(rows)
    assert line(text, "`vllm h100 good` | 3") == ["`vllm h100 good`", "3", "8% (+8%)", "100%", "2", "6%", "75%"]
    assert line(text, "`vllm h100 bad`") == ["`vllm h100 bad`", "3", "50% (+10%)", "33%", "", "", ""]
    assert text.index("`vllm h100 bad`") < text.index("`vllm h100 good`")  # worst first
    worst = text[text.index("## Worst rows") :]
    assert worst.index('"bad-1"') < worst.index('"bad-3"') < worst.index('"good-1"')
    assert line(worst, "10 | 25 ")[2:4] == ["20 to 31.2", "no"]
    assert set(drawings) == {"board-tpot.svg", "board-ttft.svg"}


def test_what_was_calibrated_stands_in_its_set_alone():
    rows = [
        row("m", 1, 10.0, 11.0),
        row("m", 2, 10.0, 30.0, set="own, calibrated"),
        row("m", 1, 10.0, 11.0, figure="TTFT"),
    ]
    text, _ = page(rows)
    tpot = text[: text.index("## TTFT")]
    assert line(tpot, "`vllm h100 m`")[1:3] == ["1", "10% (+10%)"]
    assert line(text, "own, calibrated")[1:3] == ["1", "200.0%, 200%, 0%"]
    assert '"m-2"' not in text


def test_a_rows_command_prints_its_prediction_as_the_board_has_it():
    """The command as it is pasted, of a set that is in the repository."""
    row = next(r for r in read(BOARD) if r.set == "colocated, priors alone")
    _, script, *words = shlex.split(again(row))
    ran = subprocess.run([sys.executable, script, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    start = f"{row.set}, {row.row}, {row.figure}: "
    (said,) = (line.removeprefix(start) for line in ran.stdout.splitlines() if line.startswith(start))
    assert said == (f"measured {row.measured:,.4g}, predicted {row.predicted:,.4g} ({row.low:,.3g} to {row.high:,.3g})")


def test_the_table_is_read_as_it_was_written(tmp_path: Path):
    rows = [row("m", 1, 10.0, 11.0, peer=4.0), row("m, x", 2, 10.0, 12.0)]
    write(rows, tmp_path / "board.csv")
    assert read(tmp_path / "board.csv") == rows


@pytest.mark.parametrize("figure", ["TPOT", "TTFT"])
def test_the_repositorys_table_is_in_one_unit(figure: str):
    """A row in seconds among those in ms once stood a thousand times too low."""
    mine = [r for r in read(BOARD) if r.figure == figure]
    assert len(mine) > 500
    assert min(r.measured for r in mine) > 1
    assert all(r.low <= r.predicted <= r.high for r in mine if r.set == "board")
