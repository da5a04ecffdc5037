"""One table of metrics: what every workload reports is in it, and no other module writes a unit for its names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ridgeline.records import measurement
from ridgeline.records.measurement import known_metrics, metrics_of, reported, unit_of
from ridgeline.serving.node.monitor import GpuSample, Sample, _summary

SRC = Path(__file__).resolve().parents[2] / "src" / "ridgeline"
METRICS = known_metrics()
TABLES = [SRC / place for place in ("records/measurement.py", "serving/metrics.py", "nwchem/output.py")]
UNITS = {row.unit for row in METRICS.values()} - {""}
# A rate's unit is nobody else's word: standing alone or at the end of a heading, it is a copy. Sentences may have it.
RATES = {unit for unit in UNITS if "/" in unit}
NAMED = {name: value for name, value in vars(measurement).items() if isinstance(value, str) and value in METRICS}
# These make measurements whose unit is not ours: the study's own, a journal's, a test's.
OTHERS_UNITS = {"workloads/command.py", "study/codec.py", "testing/__init__.py"}


def modules(words: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """Those in which one of the words stands, parsed: without one there is nothing to find in them."""
    word = re.compile("|".join(map(re.escape, words)))
    for path in sorted(SRC.rglob("*.py")):
        if path not in TABLES and word.search(text := path.read_text()):
            yield path.relative_to(SRC).as_posix(), ast.parse(text)


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _metric(node: ast.AST) -> str:
    """The metric that this is: by name (`"wall_s"`, `DOLLARS`), as a field (`run.wall_s`), or handed on (`f(CO2)`)."""
    if isinstance(node, ast.Call):
        return next(filter(None, map(_metric, node.args)), "")
    name = {ast.Attribute: "attr", ast.Name: "id"}.get(type(node))
    text = getattr(node, name) if name else _text(node)
    return NAMED.get(text, text if text in METRICS else "")


def headings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """A rate's unit, alone or at the end of a text that is no part of a sentence."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if (words := _text(node).split()) and id(node) not in inner and words[-1] in RATES:
            yield node.lineno, _text(node)  # type: ignore[attr-defined]


def spelled(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """A metric beside its unit: in a tuple, a list, a call or a mapping, or as `name: {…, unit: …}` in a text."""
    for node in ast.walk(tree):
        together: list[list[ast.expr]] = []
        if isinstance(node, ast.Tuple | ast.List):
            together = [node.elts]
        elif isinstance(node, ast.Call):
            together = [[*node.args, *(keyword.value for keyword in node.keywords)]]
        elif isinstance(node, ast.Dict):
            together = [[key, value] for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        for items in together:
            texts = [_text(item) for item in items]
            for metric, item in ((_metric(item), item) for item in items):
                unit = METRICS[metric].unit if metric else ""
                if unit and any(text == unit for text, other in zip(texts, items, strict=True) if other is not item):
                    yield item.lineno, f"{metric} {unit}"
            if len(texts) > 4 and all(texts):
                continue  # a list of names, one of which ("requests") is a unit elsewhere
            # `dollars` is a metric and its own unit: said once, it is no copy
            if any(a in METRICS and b in UNITS for at, a in enumerate(texts) for b in texts[:at] + texts[at + 1 :]):
                yield items[0].lineno, " ".join(filter(None, texts))
        for name in re.findall(r"(\w+): \{[^}]*unit: \w", _text(node)):
            if name in METRICS:
                yield node.lineno, _text(node)  # type: ignore[attr-defined]


def test_no_other_module_writes_a_unit_for_a_metric_of_the_table() -> None:
    found = [
        (path, *copy)
        for path, tree in modules([*METRICS, *NAMED, *RATES])
        for copy in (*spelled(tree), *headings(tree))
    ]
    assert [f"{path}:{line}: {what}" for path, line, what in found] == []


def test_whoever_asks_for_a_unit_asks_for_a_row() -> None:
    asked = {
        _text(argument)
        for _, tree in modules(["unit_of"])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "unit_of"
        for argument in node.args
    }
    assert "total_tok_s" in asked
    assert asked - {""} <= METRICS.keys()


def test_a_second_copy_would_be_found() -> None:
    for text in ('x = {"wall_s": "s"}', 'f("total_tok_s", 3, "tok/s")', 'y = ("kv_bytes", v, "bytes")'):
        assert list(spelled(ast.parse(text)))
    assert list(spelled(ast.parse('z = "  total_tok_s: {json: total_tok_s, unit: tok/s}"')))
    assert list(spelled(ast.parse('z = SummaryFigure("throughput", log.total_tok_s, "tok/s")')))
    assert list(spelled(ast.parse('z = ("cost", "g", priced(CO2))')))
    assert list(headings(ast.parse('z = ("at once", "out tok/s")')))
    assert not list(spelled(ast.parse('x = ("total_tok_s", "wall_s")')))
    assert not list(headings(ast.parse('x = f"{rate} requests/s"')))


def test_workloads_make_their_measurements_from_the_table() -> None:
    """So their units are the table's; only a study's own metrics and a journal's may carry others."""
    found = {
        path
        for path, tree in modules(["Measurement"])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Measurement"
    }
    assert found <= OTHERS_UNITS


def test_a_measurement_has_the_unit_of_its_row() -> None:
    assert reported("goodput", 3, "measured.json").unit == unit_of("goodput") == "requests/s"
    with pytest.raises(KeyError):
        reported("no_such_metric", 1.0, "stdout")
    assert unit_of("gflops") == ""  # a study's own


def test_everything_that_the_node_s_monitor_says_is_in_the_table() -> None:
    gpu = GpuSample(0.5, 1e9, 1400.0, 1500.0, 300.0, 1000.0, 60.0)
    seen = _summary([Sample(float(at), 0.1, 1e9, (gpu,)) for at in range(4)])
    assert seen.keys() <= set(metrics_of("serve"))


def test_every_row_says_what_it_means_in_one_sentence() -> None:
    for row in METRICS.values():
        assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", row.meaning), row.name
        assert row.makers, row.name


def test_a_second_goal_that_nothing_measures_is_a_problem_and_the_near_name_is_offered() -> None:
    from ridgeline.records.site import Prices, Site
    from ridgeline.records.space import Discrete, Space
    from ridgeline.records.study import Goal, Study, WorkloadChoice
    from ridgeline.workloads.base import metric_problems

    space = Space((Discrete("k", (1, 2), ordered=True),), {})
    goal = Goal("total_tok_s", "maximize")

    def said(second: str) -> list[str]:
        site = Site(prices=Prices(node_hour=2.0))
        choice = WorkloadChoice("x", {})
        study = Study("s", choice, space, goal, {"k": 1}, Path(), site=site, second_goal=Goal(second, "minimize"))
        return [f"{found.where}: {found.message}" for found in metric_problems(study, metrics_of("serve"))]

    assert said("ttft_p95_ms") == said("dollars_per_million_tokens") == []
    (wrong,) = said("ttft_95_ms")
    assert "ttft_p95_ms" in wrong
    assert "second_goal" in wrong


def test_editors_are_offered_the_metrics_in_the_direction_in_which_they_are_better() -> None:
    from ridgeline.study.schema import study_schema

    goal = study_schema({}, {}, {})["$defs"]["GoalForm"]["properties"]
    assert "total_tok_s" in goal["maximize"]["examples"]
    assert "ttft_p95_ms" in goal["minimize"]["examples"]
    assert "ttft_p95_ms" not in goal["maximize"]["examples"]


def test_the_reference_has_every_row() -> None:
    from scripts.reference_pages import pages

    page = pages()["metrics.md"]
    for row in METRICS.values():
        assert f"| `{row.name}` | {row.unit or '–'} | {row.better or '–'} | {row.meaning} | " in page
