"""A campaign as metrics in Prometheus' text format: for a node exporter's textfile folder, or for a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Sample = tuple[Mapping[str, str], float | None]


def metrics_text(*campaigns: tuple[Mapping[str, Any], str]) -> str:
    """Of each what `ridgeline status --json` prints, and the goal's metric. What is not known has no sample.

    Prometheus wants what a name means once, before the values of all of them.
    """
    families: dict[tuple[str, str, str], list[Sample]] = {}
    for status, metric in campaigns:
        for name, kind, meaning, samples in _families(status, metric):
            families.setdefault((name, kind, meaning), []).extend(samples)
    return "".join(line for family, samples in families.items() for line in _family(*family, samples))


def _families(status: Mapping[str, Any], metric: str) -> Iterable[tuple[str, str, str, Iterable[Sample]]]:
    study = {"study": str(status["name"])}
    of_goal = {**study, "metric": metric, "unit": str(status["unit"])}
    budget, controller = status["budget"], status["controller"]
    best = (status.get("best") or {}).get(metric)
    over = status["verdict"] is not None or status["stopped"] is not None
    at_work = controller is not None and controller["presence"] != "gone"
    outcomes = [({**study, "outcome": kind}, count) for kind, count in status["outcomes"].items()]
    return [
        ("runs_total", "counter", "Runs that ended, by outcome.", outcomes),
        ("runs_under_way", "gauge", "Runs that have not ended.", [(study, len(status["running"]))]),
        ("search_trials", "gauge", "Search trials started.", [(study, status["trials"])]),
        ("node_hours_total", "counter", "Node-hours spent.", [(study, status["node_hours"])]),
        (
            "work_seconds_total",
            "counter",
            "Seconds during which a controller was running.",
            [(study, status["wall_s"])],
        ),
        ("budget_trials", "gauge", "Search trials the budget allows.", [(study, budget["trials"])]),
        ("budget_seconds", "gauge", "Seconds of work the budget allows.", [(study, budget["wall_s"])]),
        ("budget_node_hours", "gauge", "Node-hours the budget allows.", [(study, budget["node_hours"])]),
        ("baseline_value", "gauge", "The goal at the baseline.", [(of_goal, status["baseline"])]),
        ("best_value", "gauge", "The goal at the best setting so far.", [(of_goal, best)]),
        ("paused", "gauge", "1 while the campaign is paused.", [(study, status["paused"])]),
        ("controller_up", "gauge", "1 while a controller is running.", [(study, at_work and not over)]),
        ("finished", "gauge", "1 once there is a verdict.", [(study, status["verdict"] is not None)]),
    ]


def _family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> Iterable[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP ridgeline_{name} {meaning}\n# TYPE ridgeline_{name} {kind}\n"
    for labels, value in known:
        line = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"ridgeline_{name}{{{line}}} {float(value):.12g}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
