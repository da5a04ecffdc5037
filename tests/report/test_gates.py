"""The page of a gate's history: changes of the level are marked, days that differ a little are not."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.records.exhibit import TextTable
from ridgeline.report.figures.shapes import PlotFigure
from ridgeline.report.gates import gate_sections
from ridgeline.report.parts import Paragraph
from ridgeline.study.gate_history import PastGate, add_gate, past_gates


def gate(at: int, level: float, random_: random.Random, day: float = 0.0, machine: str = "a") -> PastGate:
    today = random_.gauss(0, day)
    values = tuple(level * (1 + today + random_.gauss(0, 0.005)) for _ in range(12))
    date = f"2026-01-{at:02d}T00:00:00"
    return PastGate("solver", date, "not-slower", values, "wall_s", "minimize", {"name": machine}, "s")


def changes(gates: list[PastGate]) -> list[tuple[str, ...]]:
    part = gate_sections(gates)[1].parts[0]
    return list(part.rows) if isinstance(part, TextTable) else []


def test_every_change_of_the_level_is_named_and_no_other() -> None:
    rng = random.Random(1)
    levels = [10.0] * 6 + [10.5] * 6 + [10.0] * 6 + [11.0] * 6
    found = changes([gate(at, level, rng) for at, level in enumerate(levels, 1)])
    assert [(before[:10], after[:10]) for before, after, *_ in found] == [
        ("2026-01-06", "2026-01-07"),
        ("2026-01-12", "2026-01-13"),
        ("2026-01-18", "2026-01-19"),
    ]
    assert [row[2][0] for row in found] == ["+", "-", "+"]


def test_the_page_says_first_what_the_last_change_was() -> None:
    rng = random.Random(1)
    risen = gate_sections([gate(at, 10.0 if at < 7 else 11.0, rng) for at in range(1, 13)])
    first = risen[0].parts[0]
    assert isinstance(first, Paragraph) and re.fullmatch(r"1\d\.\d% slower since 2026-01-07", first.text), first
    steady = gate_sections([gate(at, 10.0, rng) for at in range(1, 7)])
    assert steady[0].parts[0] == Paragraph("No change of speed in 6 gates", "headline")
    slow = gate_sections(
        [*(gate(at, 10.0, rng) for at in range(1, 3)), replace(gate(3, 11.0, rng), conclusion="slower")]
    )
    said = slow[0].parts[0]
    assert isinstance(said, Paragraph) and said.text.startswith("The last gate was slower than its reference")
    keys = [section.key for section in risen]
    assert not [p for s in risen for p in s.parts if isinstance(p, PlotFigure) and p.key in keys], "anchors are unique"


def test_gates_are_counted_in_whole_numbers() -> None:
    rng = random.Random(1)
    shown = gate_sections([gate(at, 10.0, rng) for at in range(1, 5)])
    (figure,) = [part for part in shown[0].parts if isinstance(part, PlotFigure)]
    assert [text for _, text in figure.x.ticks] == ["1", "2", "3", "4"]


def test_days_that_differ_are_no_changes() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        assert changes([gate(at, 10.0, rng, day=0.01) for at in range(1, 21)]) == []


def test_other_machines_are_left_out_and_said() -> None:
    rng = random.Random(1)
    gates = [gate(1, 5.0, rng, machine="b"), *(gate(at, 10.0, rng) for at in range(2, 6))]
    assert changes(gates) == []
    assert "1 gate of other machines" in str(gate_sections(gates)[0])
    with pytest.raises(InputError, match="no gate yet"):
        gate_sections([])


def test_a_line_that_was_cut_off_costs_that_line_only(tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "past.jsonl"
    add_gate(path, gate(1, 10.0, rng))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    add_gate(path, gate(2, 10.0, rng))
    assert [past.at[:10] for past in past_gates(path)] == ["2026-01-01", "2026-01-02"]


def test_adding_gives_all_gates_and_leaves_other_files_alone(tmp_path: Path) -> None:
    rng, path, notes = random.Random(1), tmp_path / "past.jsonl", tmp_path / "notes.txt"
    first, second = gate(1, 10.0, rng), gate(2, 10.0, rng)
    assert [add_gate(path, first), add_gate(path, second)] == [[first], [first, second]]
    notes.write_text("mine\n")
    with pytest.raises(InputError, match="holds no gate"):
        add_gate(notes, first)
    assert notes.read_text() == "mine\n"
