"""Shipped sites, the check of one, and what a campaign found of its nodes, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ridgeline.executors.site_check import CheckStep
from ridgeline.records.site import Site
from ridgeline.report.insights import node_text
from ridgeline.stats.nodes import FEWEST_RUNS, NodeEffect
from ridgeline.stats.wording import MetricText, count

_COPY_ONE = "Copy a site beside your study, fill it in, and try it: ridgeline site check my-cluster.yaml"


def sites_text(sites: Sequence[tuple[Site, Path]], batch: Mapping[str, str]) -> str:
    """`batch` names the batch systems there are, each with the package it comes from."""
    shown = [name if package == "ridgeline" else f"{name} (from {package})" for name, package in batch.items()]
    rows = (f"{site.name:20} {site.batch:6} {path}" for site, path in sites)
    return "\n".join([*rows, "", f"`batch` in a site file may be {', '.join(shown)}.", _COPY_ONE])


def site_head(site: Site) -> str:
    return f"site {site.name} ({site.batch}{', queue ' + site.queue if site.queue else ''})"


def step_text(step: CheckStep) -> str:
    return f"  {step.name:10} {'ok     ' if step.ok else 'FAILED '} {step.detail}"


def node_lines(effects: Sequence[NodeEffect], goal: MetricText, sentinel_every: int) -> Iterable[str]:
    """Nodes unlike their peers first, then those like them, then those that cannot be judged."""
    if not effects:
        yield "can't judge: no good run recorded its node"
        return
    if len(effects) == 1:
        only = effects[0]
        yield f"can't judge: all {only.runs} good runs were on {only.node}, and a node is judged by its peers"
        return
    unlike = [effect for effect in effects if effect.verdict in ("slow", "fast")]
    usual = [effect for effect in effects if effect.verdict == "usual"]
    unknown = [effect for effect in effects if effect.verdict == "undecided"]
    yield from (f"{node_text(effect, goal)}: {effect.evidence}" for effect in unlike)
    if usual:
        if not unlike:
            yield f"no node is shown to be slower or faster than its peers ({count(len(usual), 'node')} judged)"
        yield from (f"  {effect}: {effect.evidence}" for effect in usual)
    for group in dict.fromkeys(tuple(sorted((e.node, *e.together))) for e in unknown if e.together):
        yield (
            f"can't separate {' from '.join(group)}: all runs that count used {'both' if len(group) == 2 else 'all'}; "
            "a job on one of them and another node would show it"
        )
    if alone := [effect for effect in unknown if not effect.together]:
        names = ", ".join(f"{effect.node} ({count(effect.runs, 'run')})" for effect in alone)
        yield f"can't judge: {names}; {_missing(alone, sentinel_every)}"


def _missing(unknown: Sequence[NodeEffect], sentinel_every: int) -> str:
    if any(effect.runs < FEWEST_RUNS for effect in unknown):
        return f"a node is judged by {FEWEST_RUNS} runs there and {FEWEST_RUNS} elsewhere"
    if not sentinel_every:
        return "settings hardly repeat; let sentinel_every in the study's search stage be above 0"
    return "too few runs of the same setting on different nodes"
