"""`ridgeline plan sessions`: how many sessions a layout holds within limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned, json_text
from ridgeline.errors import NothingFound
from ridgeline.serving.figures import sessions as figures
from ridgeline.serving.planner import sessions as planner_sessions
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.planner.sessions import SessionsAnswer

_SAME = (
    "model", "gpu", "engine", "traffic", "idle_cap_s", "start_within", "duration_s", "host_memory_gib",
    "routing", "fabric", "dtype", "kv_dtype", "calibration", "seed", "top",
)  # fmt: skip

_LAYOUT = ("tp", "pp", "dp", "ep", "attn_dp")


@dataclass(frozen=True)
class SessionsArguments(option.EngineArguments):
    """A layout, or GPUs to choose one for, and its sessions."""

    fabric: option.Fabric = None
    routing: Annotated[
        str, typer.Option(help="round-robin, least-load or cache-aware; all: compare them, for copies of an engine.")
    ] = "cache-aware"
    page_size: option.PageSize = 1
    eviction: option.Eviction = "lru"
    host_tier: option.HostTier = None
    host_memory_gib: Annotated[
        float | None,
        typer.Option("--host-memory", help="GiB of a node that KV may take on the host; default: 256 for each GPU."),
    ] = None
    traffic: option.TrafficText = "sessions:agent"
    idle_cap_s: option.IdleCap = None
    start_within: option.StartWithin = 0.7
    duration_s: Annotated[float, typer.Option("--duration", help="Seconds of each simulated run.")] = 1200.0
    slos: option.Slos = None
    calibration: option.CalibrationFile = None
    seed: Annotated[int, typer.Option(help="Seed of the sessions.")] = 0
    top: Annotated[int, typer.Option(help="How many layouts to compare where none is given.")] = 3

    def request(self, compared: bool) -> planner_sessions.SessionsRequest:
        """`compared`: no layout was given."""
        kept = option.host_tier(self.host_tier)
        return planner_sessions.SessionsRequest(
            layout=None if compared else self.layout(),
            settings=self.settings(page_size=self.page_size, eviction=self.eviction, **kept),
            nodes=1 if self.nodes is None else self.nodes,
            gpus_per_node=8 if self.gpus_per_node is None else self.gpus_per_node,
            slos=tuple(self.slos or ()),
            **{name: getattr(self, name) for name in _SAME},
        )


@option.takes(SessionsArguments)
def sessions(
    arguments: SessionsArguments, context: typer.Context, html: option.Html = None, as_json: option.AsJson = False
) -> None:
    """Find how many sessions a layout holds within limits, what ends it, and whether KV in host memory pays.

    Without --tp and the like, layouts for all GPUs are compared. Where --slo says nothing of TTFT or E2E, TTFT must not
    take off: p95 is at most five times that of one session alone on the fastest layout.

    Exit code 1: no number of sessions keeps the limits.

    Example: ridgeline plan sessions --model deepseek-r1 --gpu h200 --tp 8 --traffic sessions:agent --idle-cap 60
    --slo ttft_p95_ms=5000
    """
    sources = [context.get_parameter_source(name) for name in _LAYOUT]
    compared = all(source is None or source.name == "DEFAULT" for source in sources)
    answer = planner_sessions.plan_sessions(arguments.request(compared))
    print(json_text(answer.as_json()) if as_json else _text(answer), flush=True)
    if html is not None:
        with option.writing("--html", html):
            figures.write_figures(
                html, str(answer.best.deployment), answer.shown(), [figures.against_sessions(answer.best)]
            )
    if not answer.sessions:
        broken = ", ".join(answer.best.loads[0].broken)
        raise NothingFound(f"one session alone breaks {broken}; raise the limit, or use more or faster GPUs")


def _text(answer: SessionsAnswer) -> str:
    shown = answer.best.shown()
    others = [
        (f"{plan.deployment.layout} {plan.routing}".strip(), f"{plan.sessions:,} sessions", plan.why)
        for plan in answer.plans[1:]
    ]
    alike = len({str(plan.deployment.layout) for plan in answer.plans}) == 1
    head = f"  other {'routers' if alike else 'layouts'}"
    runs = sum(plan.simulations for plan in answer.plans)
    return "\n".join(
        [
            shown.title,
            "",
            *aligned([shown.head, *shown.rows], left=(7,)),
            "",
            *(f"  {note}" for note in shown.notes),
            *(["", head, *aligned(others, left=(0, 2))] if others else []),
            f"  {runs} runs simulated in {answer.cpu_s:.1f} CPU-s",
        ]
    )
