"""`ridgeline bench`: load a server and report what it did."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.text.table import aligned
from ridgeline.errors import InputError
from ridgeline.serving.figures import sessions as figures
from ridgeline.serving.load import bench as load_bench
from ridgeline.serving.load import edge as load_edge
from ridgeline.serving.load import session as load_session
from ridgeline.serving.verbs import options as option

if TYPE_CHECKING:
    from ridgeline.serving.load.bench import BenchResult
    from ridgeline.serving.load.edge import Edge, Probe
    from ridgeline.serving.load.goodput import FirstEstimate
    from ridgeline.serving.traffic.requests import Summary


@dataclass(frozen=True)
class BenchArguments:
    """Every option under the name that it has in `BenchOptions`."""

    url: Annotated[str, typer.Argument(help="Base URL (http://127.0.0.1:8000) or full endpoint of the server.")]
    # load
    concurrency: option.Concurrency = None
    rate_s: option.Rate = None
    burstiness: option.Burstiness = 1.0
    sessions: option.Sessions = None
    closed: option.Closed = False
    idle_cap_s: option.IdleCap = None
    start_within: option.StartWithin = 0.0
    cache_warmup: Annotated[
        bool,
        typer.Option("--cache-warmup", help="Send the first request of sessions begun in their middle unmeasured."),
    ] = False
    requests: Annotated[int | None, typer.Option(help="How many requests; default: 10 rounds, at least 100.")] = None
    duration_s: option.Duration = None
    warmup: Annotated[int, typer.Option(help="Requests sent first and not measured.")] = 0
    workers: Annotated[int, typer.Option(help="Processes that send the load.")] = 1
    # traffic
    traffic: Annotated[
        str | None,
        typer.Option(
            help="sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, uniform:800-1000:100-200, lognormal:IN:OUT, "
            "sessions:agent, or a trace file."
        ),
    ] = None
    input_tokens: Annotated[int, typer.Option(help="Prompt length without --traffic.")] = 128
    max_tokens: Annotated[int | None, typer.Option(help="Length limit of each answer; default: 128.")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for the full length (SGLang, vLLM).")] = False
    shared_prefix_tokens: Annotated[
        int, typer.Option("--shared-prefix", help="Tokens of a prefix that all prompts share.")
    ] = 0
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="JSON object of extra body fields, such as temperature.")
    ] = None
    stream: Annotated[bool, typer.Option(help="Stream tokens, or get each answer in one piece.")] = True
    seed: Annotated[int, typer.Option(help="Seed of lengths and arrival times.")] = 0
    # server
    model: Annotated[str | None, typer.Option(help="Model name; default: the first of /v1/models.")] = None
    api: Annotated[
        str | None, typer.Option(help="chat, completions or generate; default: as the URL says, else chat.")
    ] = None
    key: Annotated[str | None, typer.Option(envvar="RIDGELINE_API_KEY", help="API key, sent as a bearer token.")] = None
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="'NAME: VALUE'", help="Extra header; may be repeated.")
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option("--ca", help="PEM file of the CA that signed the server's certificate.")
    ] = None
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds without a byte after which a request fails.")
    ] = 120.0
    # question and answer
    slos: option.Slos = None
    out: Annotated[Path | None, typer.Option(help="File (or folder) for one JSON line per request.")] = None

    find_goodput: Annotated[
        bool, typer.Option("--find-goodput", help="Find the highest load (by default a rate) that meets --slo.")
    ] = False

    def options(self) -> load_session.BenchOptions:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {"headers": tuple(self.headers or ()), "slos": tuple(self.slos or ())}
        return load_session.BenchOptions(**{**given, **lists})


@option.takes(BenchArguments)
def bench(
    arguments: BenchArguments,
    hold_s: Annotated[
        float | None, typer.Option("--hold", help="Seconds for which --find-goodput's answer must hold; default: 60.")
    ] = None,
    within_s: Annotated[
        float | None,
        typer.Option("--within", help="Seconds that --find-goodput may take, holding included; default: 240."),
    ] = None,
    html: option.Html = None,
    as_json: option.AsJson = False,
) -> None:
    """Load a server and report latency, throughput and goodput, and whether the load generator itself kept up.

    A run whose own error could exceed 2% of a figure is marked void, with the reason. Exit code 3: nothing answered.
    7: --find-goodput did not find both a load that holds and one that does not, or did not hold its answer long enough.

    Example: ridgeline bench http://127.0.0.1:8000 --concurrency 16 --slo ttft_p95_ms=2000
    """
    if html is not None and arguments.find_goodput:
        raise InputError("--html draws one run, and --find-goodput makes many; leave one of them out")
    gc.set_threshold(50_000)  # little garbage is made here, and looking for it would cost more than the imports below

    session = load_session.run_session(
        load_session.plan_from(arguments.options()),
        goodput=load_edge.goodput_terms(arguments.find_goodput, hold_s, within_s, arguments.rate_s),
        progress=lambda part: print(_progress_text(part), file=sys.stderr, flush=True),
    )
    text = _result_text if isinstance(session.found, load_bench.BenchResult) else _edge_text
    print(json.dumps(session.document) if as_json else text(session.found))  # type: ignore[arg-type]
    if html is not None and isinstance(found := session.found, load_bench.BenchResult):
        with option.writing("--html", html):
            drawn = [*figures.figures([figures.SessionRun("", found.records)])]
            figures.write_figures(html, found.plan.endpoint.url, found.shown(), drawn)
    if session.exit_code:
        raise typer.Exit(session.exit_code)


def _progress_text(part: load_edge.Probe | FirstEstimate) -> str:
    """One line for each probe of a search."""
    if isinstance(part, load_edge.Probe):
        return _probe_text(part)
    return (
        f"  {part.concurrency} requests at once: about {part.requests_s:.4g} requests/s, {part.e2e_s:.3g} s each, "
        f"the worst latency at {part.share:.0%} of its limit"
    )


def _result_text(result: BenchResult) -> str:
    s, f, flow = result.summary, result.fidelity, result.flow
    drained, offered = "", list[str]()
    if flow is not None:  # a closed loop offers only as much as comes back
        drained = f", and {flow.drain_s:.1f} s to drain" if flow.drain_s >= 0.05 else ""
        rates = (("offered/s", flow.offered_s), ("completed/s", flow.completed_s), ("drained/s", flow.drained_s))
        offered = ["  " + "   ".join(f"{name} {rate:,.2f}" for name, rate in rates)]
        offered[0] += "   SATURATED" if flow.saturated else ""
    lines = [
        f"{result.plan.endpoint.url}   {result.model or 'model not named'}",
        f"{s.ok} of {s.requests} requests in {s.duration_s:.1f} s{drained}",
        "",
        *offered,
        f"  requests/s {s.requests_s:,.2f}   output tok/s {s.output_tok_s:,.0f}   input tok/s {s.input_tok_s:,.0f}",
        "",
        *aligned([("", "mean", "p50", "p90", "p95", "p99"), *_latencies(s)]),
    ]
    if s.slos:
        lines += ["", f"  goodput {s.goodput_s or 0.0:,.2f} requests/s within " + ", ".join(map(str, s.slos))]
        lines += [f"    {slo}: {'held' if s.holds(slo) else 'not held'}" for slo in s.slos]
    lines += _session_lines(result)
    lines += ["", *(f"  {note}" for note in result.notes)] if result.notes else []
    lag = f"{f.lag_ms.p99:.2f} ms" if f.lag_ms else "-"
    lines += [
        "",
        f"  the load generator itself: {f.cpu_ms_per_request:.2f} CPU-ms a request, {f.cpu_share:.0%} of a core, "
        f"send lag p99 {lag}, time stamps within {f.timestamp_error_ms:.2g} ms",
    ]
    if result.void:
        lines += ["", "VOID: " + ("\n      ".join(f.why))]
    return "\n".join(lines)


def _session_lines(result: BenchResult) -> list[str]:
    found = result.sessions
    if found is None:
        return []
    lines = ["", f"  sessions: {found.completed} of {found.begun} completed, {found.completed_s:,.3g} sessions/s"]
    if found.failed:
        lines[-1] += f"; {found.failed} failed, {found.unsent_requests} requests after that were not sent"
    if found.cut_off:
        lines[-1] += f"; {found.cut_off} cut off by the end of the run"
    if found.session_p50_s is not None and found.session_p95_s is not None:
        lines.append(f"  session time p50 {found.session_p50_s:,.1f} s, p95 {found.session_p95_s:,.1f} s")
    if found.kept_share is not None:
        kept = f"{found.kept} of {found.completed + found.failed} ({found.kept_share:.0%})"
        lines.append(
            f"  goodput in sessions: {kept} kept every limit at every turn, {found.kept_s or 0.0:,.3g} sessions/s"
        )
    for hits in result.cache_hits:
        lines.append(f"  prompt tokens from the server's cache: {hits.share:.1%} ({hits.source})")
    if not result.cache_hits:
        lines.append("  prompt tokens from the server's cache: not reported, neither in answers nor on /metrics")
    rows = [
        (each.turns, f"{each.requests:,}", *(f"{each.ttft_ms.quantile(q):,.2f}" for q in ("p50", "p95", "p99")))
        for each in found.ttft_by_turn
    ]
    return [*lines, "", *aligned([("TTFT ms by turn", "requests", "p50", "p95", "p99"), *rows])]


def _probe_text(probe: Probe) -> str:
    s = probe.steady
    seen = f"TTFT p95 {s.ttft_ms.p95:.1f} ms" if s.ttft_ms else "no TTFT"
    seen += f", ITL p95 {s.itl_ms.p95:.2f} ms" if s.itl_ms else ""
    explained = (load_edge.ProbeVerdict.VOID, load_edge.ProbeVerdict.FAILED, load_edge.ProbeVerdict.TOO_SHORT)
    verdict = f"{probe.verdict} ({probe.reason})" if probe.verdict in explained else str(probe.verdict)
    return (
        f"  {probe.load:.4g} {probe.unit} for {probe.window_s:.0f} s: {s.requests_s:.2f} requests/s done, {seen}: "
        f"{verdict}; {_so_far(probe)} ({probe.span.end_s:.0f} s)"
    )


def _so_far(probe: Probe) -> str:
    low, high = probe.so_far
    if low is not None and high is not None:
        return f"between {low:.4g} and {high:.4g} {probe.unit} so far"
    if low is None and high is None:
        return "nothing known so far"
    return f"at least {low:.4g} {probe.unit} so far" if low is not None else f"below {high:.4g} {probe.unit} so far"


def _edge_text(edge: Edge) -> str:
    unit = edge.unit
    least = "" if edge.fails is not None else "at least "
    above = f"{edge.fails:.4g} {unit} does not" if edge.fails is not None else "no load tried was too much"
    lines = [
        f"{least}{edge.holds:.4g} {unit} holds the SLO, held for {edge.held_for_s:.0f} s; {above}",
        f"goodput there {edge.goodput_s:.2f} requests/s; found in {edge.took_s:.0f} s with {len(edge.probes)} probes",
    ]
    if edge.knee is not None:
        lines.append(f"knee: TTFT p50 is twice its unloaded value at {edge.knee:.4g} {unit}")
    return "\n".join(lines + _left_open(edge))


def _left_open(edge: Edge) -> list[str]:
    """What the search could not find out, why, and which option helps."""
    lines = [edge.note] if edge.note else []
    if not edge.held:
        lines.append(f"it was to be held for {edge.asked_s:.0f} s: take it as a guess, or raise --within")
    elif edge.out_of_time:
        lines.append("time ran out before the edge was settled; more of it (--within) narrows the interval")
    if edge.unjudged is not None:
        lines.append(
            f"{edge.unjudged.load:.4g} {edge.unit} could not be judged, {edge.unjudged.runs} runs were void: "
            f"{edge.unjudged.why}"
        )
    if edge.void_probes:
        lines.append(f"{edge.void_probes} of {len(edge.probes)} probes were void and were sent again")
    return lines


def _latencies(s: Summary) -> list[tuple[str, ...]]:
    known = (("TTFT ms", s.ttft_ms), ("ITL ms", s.itl_ms), ("TPOT ms", s.tpot_ms), ("E2E ms", s.e2e_ms))
    rows = [(name, each.mean, each.p50, each.p90, each.p95, each.p99) for name, each in known if each is not None]
    return [(name, *(f"{value:,.2f}" for value in values)) for name, *values in rows]
