"""A number that a pattern cuts out of a longer one is no metric: 1 out of `1,5` would win every comparison."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ridgeline.records.matching import LONGEST_TEXT_HERE
from ridgeline.workloads.extract import ByCsv, ByRegex, Metric, MetricMissing
from tests.command_line import ridgeline

_PLAIN = r"r ([0-9.]+)"


def _read(pattern: str, text: str) -> float | str:
    return Metric("r", ByRegex(re.compile(pattern, re.MULTILINE))).read(text)


@pytest.mark.parametrize(
    ("pattern", "text", "whole"),
    [
        (_PLAIN, "r 1,5", "1,5"),
        (_PLAIN, "r 1,5\n", "1,5"),
        (_PLAIN, "r 1,234", "1,234"),
        (_PLAIN, "r 1,234,567.5 GF", "1,234,567.5"),
        (_PLAIN, "r 1'234", "1'234"),
        (_PLAIN, "r 1\u202f234,5", "1\u202f234,5"),
        (_PLAIN, "r 5e3", "5e3"),
        (_PLAIN, "r 1.5e-05 s", "1.5e-05"),
        (_PLAIN, "r 1.5D-03", "1.5D-03"),
        (_PLAIN, "r 0x1F", "0x1F"),
        (r"r (\d+)", "r 1.5", "1.5"),
        (r"r (\d)", "r 15", "15"),
        (r"v(\d+\.\d+)", "v1.2.3", "1.2.3"),
        (r"r.*([0-9.]+)", "r 125.5", "125.5"),
        (r"([0-9.]+).*", "1,5 s", "1,5"),
        (r"([0-9.]+)$", "r -1.5", "-1.5"),
        (r"([0-9.]+)$", "r = 1e-05", "1e-05"),
        (r"r \S*?(\d+)$", "r 1,5", "1,5"),
    ],
)
def test_a_part_of_a_number_is_refused_with_the_whole(pattern: str, text: str, whole: str) -> None:
    for shown in (text, "x\n" * LONGEST_TEXT_HERE + text):
        with pytest.raises(MetricMissing, match=r"only a part of") as refused:
            _read(pattern, shown)
        assert repr(whole) in str(refused.value) and "stdout" in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        (_PLAIN, "r 1.5, then 2", 1.5),
        (_PLAIN, "r 1.5,", 1.5),
        (_PLAIN, "r 3.2GB/s", 3.2),
        (_PLAIN, "r 12ms", 12),
        (_PLAIN, "r 5e", 5),
        (_PLAIN, "r 1.5-2.0", 1.5),
        (_PLAIN, "r 10/20", 10),
        (_PLAIN, "r 12:30", 12),
        (_PLAIN, "r .5", 0.5),
        (_PLAIN, "r 1 234", 1),
        (r"r ([-0-9.eE+]+)", "r -1.5e-3", -0.0015),
        (r"r (\S+)", "r 1.5D-03", 0.0015),
        (r"([0-9.]+) GF", "gemm 4 12.5 GF", 12.5),
        (r"m([0-9.]+)s", "real 0m1.500s", 1.5),
        (r"(\d+)", "run-5", 5),
        # the pattern names what stands there
        (r"(\d+),\d+", "10,20", 10),
        (r"\d+,(\d+)", "10,20", 20),
        (r"v1\.(\d+)", "v1.2", 2),
        (r"r=-([0-9.]+)", "r=-1.5", 1.5),
        (r"gpu0(\d)", "gpu07", 7),
    ],
)
def test_what_stands_beside_a_whole_number_does_not_matter(pattern: str, text: str, value: float) -> None:
    assert _read(pattern, text) == value


def test_text_is_not_a_number_and_may_be_any_part() -> None:
    assert Metric("v", ByRegex(re.compile(r"v(\d+\.\d+)")), is_text=True).read("v1.2.3") == "1.2"


def test_a_decimal_comma_in_a_table_of_commas_is_noticed() -> None:
    metric = Metric("rate", ByCsv("rate"), "out.csv")
    assert metric.read("t,rate\n1.5,2.5\n") == 2.5
    assert metric.read("t,rate\n1.5,2.5,\n") == 2.5, "a comma at the end separates nothing"
    with pytest.raises(MetricMissing, match=r"rate: in out\.csv, a line has 4 cells \(1,5,2,5\), but the header 2"):
        metric.read("t,rate\n1,5,2,5\n")


def test_a_program_that_prints_a_comma_wins_nothing(tmp_path: Path) -> None:
    (tmp_path / "app.sh").write_text(
        'r=$1\nif [ "$r" -eq 2 ]; then echo "r 1,5"; else echo "r 2.0"; fi\necho "locale $LC_ALL"\n'
    )
    (tmp_path / "study.yaml").write_text(
        "version: 1\nname: comma\nworkload:\n  kind: command\n  run: sh app.sh {k}\n  files: [app.sh]\n"
        "  metrics: {r: {regex: 'r ([0-9.]+)'}}\nspace: {k: [1, 2]}\nbaseline: {k: 1}\ngoal: {minimize: r}\n"
        "budget: {trials: 1}\nstages: {baseline: {repeats: 1}}\n"
    )
    out = tmp_path / "out"
    done = ridgeline(
        "tune", str(tmp_path / "study.yaml"), "--out", str(out), env={**os.environ, "LC_ALL": "de_DE.UTF-8"}
    )
    assert "Confirmed" not in done.stdout
    said = (out / "journal.jsonl").read_text()
    assert "'1' is only a part of '1,5'" in said and "(1 wrong)" in said
    assert {file.read_text().splitlines()[-1] for file in out.glob("runs/*/stdout")} == {"locale C.UTF-8"}
