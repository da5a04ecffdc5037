"""Lines of files of any size and shape, against what Python's own split says of the whole text."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.diagnose.readers import lines as module
from ridgeline.diagnose.readers.batch_text import _ranges, read_bindings
from ridgeline.diagnose.readers.lines import TextFile, blocks_of, gib, number, plain, whole


@given(pieces=st.lists(st.binary(max_size=12), max_size=8))
def test_lines_are_the_same_however_the_file_comes_in_pieces(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    found = b"".join(module._blocks(pieces))
    assert found == (text if not text or text.endswith(b"\n") else text + b"\n")


@pytest.mark.parametrize("longest", [4, 5, 6])
@given(pieces=st.lists(st.text("ab\n", max_size=9), max_size=8))
def test_a_line_that_is_too_long_is_cut_and_the_others_stay(longest: int, pieces: list[str]) -> None:
    """Pieces are no longer than the longest line, as those of a file are; a line is cut once, at its beginning."""
    small = [piece[at : at + longest] for piece in pieces for at in range(0, len(piece), longest)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONGEST_LINE_BYTES", longest)
        found = b"".join(module._blocks(piece.encode() for piece in small)).decode()
    text = "".join(pieces)
    lines = text.split("\n")[: -1 if text.endswith("\n") or not text else None]
    assert [line[:longest] for line in found.split("\n")[:-1]] == [line[:longest] for line in lines]
    assert all(len(line) <= longest + longest for line in found.split("\n"))


def test_zipped_or_not_the_lines_are_the_same(tmp_path: Path) -> None:
    text = "first\r\nsecond\n\nlast without an end"
    expected = ["first", "second", "", "last without an end"]
    (tmp_path / "plain").write_bytes(text.encode())
    (tmp_path / "zipped").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "joined").write_bytes(gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0\0")
    for name in ("plain", "zipped", "joined"):
        file = TextFile(tmp_path / name)
        assert [*file] == [*file] == expected, "and again"
        assert file.damage == ""
        assert b"".join(blocks_of(file)) == b"".join(
            blocks_of(line + ("\r" if n == 0 else "") for n, line in enumerate(expected))
        )
    whole_zip = gzip.compress(text.encode())
    for torn in (whole_zip[:-9], whole_zip[:15]):
        (tmp_path / "torn").write_bytes(torn)
        file = TextFile(tmp_path / "torn")
        kept = [*file]
        assert "too early" in file.damage and text.startswith("\r\n".join(kept)[:4])


def test_the_ends_of_a_file_are_its_first_and_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"line {n}\n" for n in range(100))
    (tmp_path / "plain").write_text(text)
    (tmp_path / "zipped").write_bytes(gzip.compress(text.encode()))
    for name in ("plain", "zipped"):
        found = [line for line in TextFile(tmp_path / name).ends(3, 2) if line]
        assert found == ["line 0", "line 1", "line 2", "line 98", "line 99"]
    (tmp_path / "short").write_text("a\nb\n")
    assert [*TextFile(tmp_path / "short").ends(3, 2)] == ["a", "b"]
    seen: list[int] = []
    monkeypatch.setattr(module, "_PIECE_BYTES", 100)
    assert len([*TextFile(tmp_path / "plain", seen.append)]) == 100
    assert seen == [*range(100, len(text), 100), len(text)], "how much was read, as it is read"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.58D-02", 0.0158), ("2d3", 2000.0), ("-1e3", -1000.0), ("nan", None), ("inf", None), ("x", None), (None, None),
     ("1" * 40, float("1" * 40)), ("1" * 41, None)],
)  # fmt: skip
def test_numbers(text: str | None, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-3", -3), ("9" * 19, int("9" * 19)), ("9" * 20, None), ("1.0", None), (None, None)],
)
def test_whole_numbers(text: str | None, value: int | None) -> None:
    assert whole(text) == value


def test_gib_and_colours() -> None:
    assert gib("1.5") == 3 * 2**29 and gib("many") is None
    assert plain("\x1b[31mred\x1b[0m") == "red" and plain("none") == "none"


def test_ranges_of_cpus() -> None:
    assert _ranges("0-2,5") == {0, 1, 2, 5} and _ranges("3") == {3} and _ranges("4-2") == set()
    assert _ranges("8191") == {8191} and _ranges("8192") == set() and _ranges("x-2,-") == set()
    found = read_bindings(
        ["", "noise", "[n1:12] MCW rank 4 bound to socket 0[core 2[hwt 0-1]], socket 0[core 1[hwt 0]]"]
    )
    assert [(b.rank, b.host, b.cpus, b.line) for b in found] == [(4, "n1", (1, 2), 3)]
    (hydra,) = read_bindings(["process 3 binding: 0110"])
    assert (hydra.rank, hydra.host, hydra.cpus) == (3, None, (1, 2))
    (srun,) = read_bindings(["cpu-bind=MASK - n7, task  2  2 [123]: mask 0x15 set"])
    assert (srun.rank, srun.host, srun.cpus) == (2, "n7", (0, 2, 4))
