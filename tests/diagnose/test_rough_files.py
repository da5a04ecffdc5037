"""Files nobody would hand in on purpose: a note or a plain refusal, never a traceback, in bounded time and memory."""

from __future__ import annotations

import gzip
import random
import re
import resource
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.cli.diagnose import WIDTH, _diagnosis_text, reading_bar
from ridgeline.diagnose.base import Analyzer, diagnose, opened
from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import InputError, RidgelineError
from tests import command_line

SAMPLES = Path(__file__).parent.parent / "samples"
ANALYZERS: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]
KINDS = (
    *("batch", "bindings", "ipm", "mpip", "nccl", "nsys", "nwchem", "perf", "sglang"),
    *("torch-trace", "vllm", "vtune"),
)
FILES = [path for kind in KINDS for path in sorted((SAMPLES / kind).iterdir())]
LOG = SAMPLES / "sglang" / "offline-llama8b-h200-default.log"


def ridgeline(*arguments: object, memory_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    if not memory_bytes:
        return command_line.ridgeline("diagnose", *arguments)
    command = [sys.executable, "-m", "ridgeline", "diagnose", *map(str, arguments)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, preexec_fn=limit)


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("empty", b"", 2, "(empty): not recognised"),
        ("garbage", random.Random(1).randbytes(300_000), 2, "not recognised"),
        ("cut.log.gz", gzip.compress(LOG.read_bytes())[:-700], 0, "gzip data ends too early"),
        ("broken.log.gz", b"\x1f\x8b" + bytes(5000), 2, "not recognised"),
        ("cut.json", b'{"traceEvents": [\n{"ph": "X", "cat": "kernel", "na', 4, "ends in the middle"),
    ],
)
def test_a_file_that_is_damaged_gets_a_note(tmp_path: Path, name: str, content: bytes, code: int, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for options in ((), ("--json",), ("--as-knobs",)):
        done = ridgeline(*options, path)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        if options == ():
            assert said in " ".join((done.stdout + done.stderr).split())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("opening", "size"), [("", 1 << 26), ("[2026-11-15 10:00:00] Decode batch, #running-req: 1\n", 1 << 30)]
)
def test_a_gigabyte_on_one_line(tmp_path: Path, opening: str, size: int) -> None:
    path = tmp_path / "server.log"
    path.write_text(opening)
    with path.open("r+b") as file:
        file.truncate(size)  # a hole: no disk is used
    done = ridgeline(path, memory_bytes=3 << 30)
    assert done.returncode == (0 if opening else 2) and "Traceback" not in done.stderr, done.stderr
    lines = list(TextFile(path))
    assert len(lines) == (2 if opening else 1) and len(lines[-1]) == 1 << 20


def test_a_bomb_of_gzip_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(40 << 20)))
    assert max(map(len, TextFile(path).pieces())) <= 1 << 20
    assert sum(map(len, TextFile(path).pieces())) == 40 << 20


def test_gzip_files_joined_to_one_are_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n") + gzip.compress(b"three"))
    text = TextFile(path)
    assert list(text) == ["one", "two", "three"] and text.damage == ""


def test_markup_and_codes_in_a_line_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    nasty = "<script>alert(1)</script>\x1b]0;title\x07\x1b[2J\x9b31m"
    path.write_text(
        f"server_args=ServerArgs(model_path='/m')\ntorch.OutOfMemoryError: CUDA out of memory. {nasty}\n",
    )
    done = ridgeline(path)
    assert done.returncode == 0 and "<script>alert(1)</script>" in done.stdout
    assert not any(c in done.stdout for c in "\x1b\x07\x9b")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_is_printed_fits_into_80_columns(path: Path) -> None:
    known = diagnose(path, ANALYZERS)
    text = _diagnosis_text(known).replace(str(path), path.name)
    assert all(len(line) <= WIDTH for line in text.split("\n")), [x for x in text.split("\n") if len(x) > WIDTH]


@pytest.mark.parametrize("kind", KINDS)
def test_logs_with_random_damage_are_still_read(tmp_path: Path, kind: str) -> None:
    """Fixed seeds: bytes changed, stretches dropped and doubled, files joined; plain and gzipped."""
    texts = [path.read_bytes() for path in sorted((SAMPLES / kind).iterdir())]
    every = [path.read_bytes()[:4000] for path in FILES]
    for seed in range(25):
        pick = random.Random(f"{kind}-{seed}")
        text = bytearray(pick.choice(texts))
        for _ in range(pick.randrange(1, 12)):
            here = pick.randrange(max(1, len(text)))
            there = min(len(text), here + pick.randrange(400))
            how = pick.randrange(5)
            if how == 0:
                text[here:there] = b""
            elif how == 1:
                text[here:here] = text[here:there] * 3
            elif how == 2:
                text[here : here + 4] = pick.randbytes(pick.randrange(8))
            elif how == 3:
                text[here:here] = pick.choice(every)
            else:
                text[here:there] = text[here:there].replace(b"\n", b"").replace(b"1", b"9" * 40)
        path = tmp_path / f"{seed}.log"
        path.write_bytes(gzip.compress(bytes(text))[: -pick.randrange(1, 200)] if seed % 5 == 4 else bytes(text))
        known = diagnose(path, ANALYZERS)
        _diagnosis_text(known)
        for analyzer in ANALYZERS:
            if analyzer.kind in known.kinds and analyzer.portray:
                try:
                    analyzer.portray(TextFile(path))
                except RidgelineError:
                    pass


def test_the_bar_is_for_people_only_and_clears_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a-very-long-name-of-a-server-log.txt"
    path.write_bytes(bytes(100))

    class Screen(StringIO):
        def isatty(self) -> bool:
            return True

    now = [0.0]
    monkeypatch.setattr("ridgeline.cli.diagnose.time.monotonic", lambda: now[0])
    screen, file = Screen(), StringIO()
    for to in (screen, file):
        with reading_bar(path, to) as bar:
            for done in (10, 50, 90):
                now[0] += 0.4
                bar(done)
                assert (done > 10 and to is screen) == bool(to.getvalue()), "nothing in the first half second"
    assert file.getvalue() == ""
    assert "90/100 bytes" in screen.getvalue() and "a-very-long-name-of…" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K"), "the line is empty again"


def test_the_bar_follows_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG.read_bytes() * 60)
    seen: list[int] = []
    diagnose(path, ANALYZERS, seen.append)
    assert seen[-1] == path.stat().st_size


def test_the_files_of_a_folder_are_named_as_they_are_typed(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    with pytest.raises(InputError, match=re.escape(f"for example '{folder}'/*")):
        opened(folder)
