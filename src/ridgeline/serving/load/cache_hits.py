"""How much of the prompts a server found in its prefix cache, as the server itself reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline import catalog
from ridgeline.records.json_form import JsonForm, also_in_json, digits
from ridgeline.serving.engines.base import engine_named, figures_of_page
from ridgeline.serving.load.discover import Server, asked
from ridgeline.serving.load.wire.endpoint import Endpoint
from ridgeline.serving.traffic.requests import RequestRecord


@dataclass(frozen=True, slots=True)
class CacheHits(JsonForm):
    """Tokens of prompts that came from the cache. `source` names where the server says so."""

    cached_tokens: int
    prompt_tokens: int
    source: str

    @property
    @also_in_json(to=digits(4))
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def hits_by_answers(records: Sequence[RequestRecord], reports: int) -> CacheHits | None:
    """By what answers say of their own prompts; None where no answer said anything.

    Engines leave the figure out where it is zero, so once some answers hold it the others had no hit.
    """
    good = [r for r in records if r.ok]
    prompts = sum(r.input_tokens if r.prompt_by_usage is None else r.prompt_by_usage for r in good)
    if not reports or not prompts:
        return None
    return CacheHits(sum(r.cached_tokens for r in good), prompts, f"usage of {reports} of {len(good)} answers")


def counters_of(endpoint: Endpoint, server: Server, timeout_s: float) -> Mapping[str, float]:
    """The counters of the server's caches so far, by their own names; empty where it shows none."""
    page = asked(endpoint, server.address, "/metrics", timeout_s).decode(errors="replace")
    figures = figures_of_page(page)
    # a counter that has never moved may have nothing but its type on the page
    return {name: figures.get(name, 0.0) for pair in _names() for name in pair if f"{name} " in page or name in figures}


def hits_by_counters(before: Mapping[str, float], after: Mapping[str, float]) -> CacheHits | None:
    """By how far the server's counters moved; None where it has none, or was started anew meanwhile."""
    for hits, queries in _names():
        if {hits, queries} <= before.keys() & after.keys():
            cached, prompts = (round(after[name] - before[name]) for name in (hits, queries))
            if prompts > 0 and 0 <= cached <= prompts:
                return CacheHits(cached, prompts, f"{hits} / {queries}")
    return None


def _names() -> list[tuple[str, str]]:
    """What engines call tokens found in the cache, and tokens of which these are a part."""
    engines = [engine_named(name).metrics for name in catalog.names("engines")]
    return [(m.cached_tokens, m.cache_queries or m.prompt_tokens) for m in engines if m.cached_tokens]
