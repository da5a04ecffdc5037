"""What was read out of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["measured", "modelled"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number with its unit, the file it came from (relative to the run folder), and how it came about."""

    metric: str
    value: float
    unit: str = ""
    source: str = ""
    origin: Origin = "measured"

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.metric} from {self.source or 'a run'} is {self.value}, not a number we can rank")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a workload read from one run.

    `unverified` says what the program shows it did not apply as asked; `contaminated` says why the figures do not
    describe the setting (a cache warmed by the same prompts, for example). Either keeps the run out of the ranking.
    """

    measurements: tuple[Measurement, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    unverified: str = ""
    contaminated: str = ""
    wrong: str = ""  # what the workload itself found wrong with the result, as a guard would
    problem: str = ""  # why something that must be there could not be read
    remedy: str = ""  # what the study's author should change so that it can
    applied: Mapping[str, object] = field(default_factory=dict)  # arguments, as the program itself says it applied them

    @property
    def metrics(self) -> dict[str, float]:
        return {m.metric: m.value for m in self.measurements}


# Every metric that Ridgeline's own workloads make: its unit, which way is better, what it means, and who makes it.
#
# A metric's unit is written here and nowhere else: workloads make their measurements with `reported`, `check` knows
# from here which metrics a study may name, and editors and docs/reference/metrics.md list this table. Metrics that a
# study declares itself (`workload: metrics:`) carry the unit that the study gives them.

_Better = Literal["higher", "lower", ""]  # "": neither, it describes the run
# Who makes a metric. `offline` and `serve` are the two workloads of an engine; `prices` are a study's or its site's.
Maker = Literal["command", "nwchem", "offline", "serve", "twin", "prices"]

LATENCIES = {
    "ttft": "Time from sending a request to its first token",
    "itl": "Time between two tokens of an answer",
    "tpot": "Time for each token after the first, averaged over an answer",
    "e2e": "Time from sending a request to its last token",
}
QUANTILES = {
    "mean": "mean",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
TWIN_QUANTILES = ("p50", "p95", "p99")
ENERGY = "energy_hartree"
DOLLARS_PER_TOKENS = "dollars_per_million_tokens"
DOLLARS, JOULES, CO2 = "dollars", "joules", "co2_g"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One row. `former_units` are what earlier releases wrote into journals that are still read."""

    name: str
    unit: str
    better: _Better
    meaning: str
    makers: tuple[Maker, ...]
    former_units: tuple[str, ...] = ()


_Row = (
    tuple[str, str, _Better, str, tuple[Maker, ...]] | tuple[str, str, _Better, str, tuple[Maker, ...], tuple[str, ...]]
)
_ALL: tuple[Maker, ...] = ("command", "nwchem", "offline", "serve", "twin")
_ENGINE: tuple[Maker, ...] = ("offline", "serve")
_LLM: tuple[Maker, ...] = ("offline", "serve", "twin")
_PROGRAM: tuple[Maker, ...] = ("command", "nwchem")
_NWCHEM: tuple[Maker, ...] = ("nwchem",)
_ONCE_BARE = ("",)


def _latencies() -> Iterator[_Row]:
    for latency, meaning in LATENCIES.items():
        for quantile, said in QUANTILES.items():
            makers: tuple[Maker, ...] = ("serve", "twin") if quantile in TWIN_QUANTILES else ("serve",)
            yield f"{latency}_{quantile}_ms", "ms", "lower", f"{meaning}, {said}.", makers


_ROWS: tuple[_Row, ...] = (
    ("wall_s", "s", "lower", "Time that the run took, from its start to its end.", _ALL),
    (
        "cpu_s",
        "s",
        "lower",
        "CPU time of the command and what it waited for, on one node without `srun`; on PBS of the whole job.",
        _PROGRAM,
    ),
    ("max_rss_bytes", "bytes", "lower", "Most memory held at once, where the site reports it.", _PROGRAM),
    # throughput of an LLM
    ("total_tok_s", "tok/s", "higher", "Prompt and output tokens a second.", _LLM),
    ("output_tok_s", "tok/s", "higher", "Output tokens a second.", _LLM),
    ("input_tok_s", "tok/s", "higher", "Prompt tokens a second.", _LLM),
    ("requests_s", "requests/s", "higher", "Requests finished a second.", _LLM, ("s", "1/s")),
    ("duration_s", "s", "lower", "Time from the first request sent to the last one finished.", _LLM),
    ("successful_requests", "requests", "higher", "Requests that were answered in full.", _LLM, _ONCE_BARE),
    ("failed_requests", "requests", "lower", "Requests that failed or were cut off.", _LLM, _ONCE_BARE),
    ("input_tokens", "tokens", "", "Prompt tokens of all requests.", _LLM, _ONCE_BARE),
    ("output_tokens", "tokens", "", "Output tokens of all requests.", _LLM, _ONCE_BARE),
    # what the engine says of itself
    ("cached_token_share", "", "", "Share of the prompts' tokens that came from the prefix cache.", _LLM),
    ("kv_tokens", "tokens", "higher", "Tokens that all KV pools together can hold.", _LLM, _ONCE_BARE),
    ("kv_bytes", "bytes", "higher", "Memory of the KV pool on the GPU that has the largest.", _ENGINE),
    ("weights_bytes", "bytes", "lower", "Memory of the weights on the GPU that holds most.", _ENGINE),
    ("memory_after_load_bytes", "bytes", "higher", "GPU memory left after the weights, least of all GPUs.", _ENGINE),
    ("memory_to_spare_bytes", "bytes", "higher", "GPU memory left when ready, least of all GPUs.", _ENGINE),
    ("running_limit", "requests", "", "Most requests one attention group runs at once.", _ENGINE),
    ("graph_max_bs", "requests", "", "Largest decode batch that has a CUDA graph.", _ENGINE),
    ("graph_capture_s", "s", "lower", "Time spent on capturing CUDA graphs, longest of all GPUs.", _ENGINE),
    ("retractions", "requests", "lower", "Requests evicted from a full KV pool, to be redone.", _LLM, _ONCE_BARE),
    ("peak_running", "requests", "higher", "Most requests that were decoded at once.", _ENGINE),
    ("eager_decode_share", "", "lower", "Share of decode batches that ran without a CUDA graph.", _ENGINE),
    ("ready_s", "s", "lower", "Time from the engine's start until it serves.", _ENGINE),
    ("start_saved_s", "s", "higher", "Time until it serves that baked caches saved.", _ENGINE),
    # what the node's monitor sees
    ("joules_per_token", "J/token", "lower", "GPU energy for each token, prompt and output.", _ENGINE),
    ("energy_j", "J", "lower", "Energy of all watched GPUs during the measured load.", _ENGINE),
    ("power_mean_w", "W", "lower", "Power of all watched GPUs together, mean.", _ENGINE),
    ("power_peak_w", "W", "lower", "Power of all watched GPUs together, highest sample.", _ENGINE),
    ("gpu_util_mean", "", "higher", "Share of time in which a kernel ran, mean over GPUs.", _ENGINE),
    ("gpu_memory_peak_bytes", "bytes", "lower", "Most memory in use on one GPU.", _ENGINE),
    ("gpu_sm_mean_mhz", "MHz", "higher", "SM clock, mean over GPUs and time.", _ENGINE),
    ("gpu_sm_lowest_mhz", "MHz", "higher", "Mean SM clock of the GPU that was clocked lowest.", _ENGINE),
    ("gpu_temperature_peak_c", "C", "lower", "Highest temperature of any GPU.", _ENGINE, _ONCE_BARE),
    ("host_cpu_share", "", "lower", "Share of the node's cores that were busy.", _ENGINE),
    ("host_memory_peak_bytes", "bytes", "lower", "Most memory in use on the node.", _ENGINE),
    ("monitored_s", "s", "", "Time that the node's monitor covered.", _ENGINE),
    ("predicted_tok_s", "tok/s", "", "Tokens a second that the twin predicted before the run.", _ENGINE),
    ("twin_speed_low", "", "", "Of the twin: the real thing's speed over the predicted one, 90%: at least.", ("twin",)),
    ("twin_speed_high", "", "", "Of the twin: the real thing's speed over the predicted one, 90%: at most.", ("twin",)),
    # latencies of a served LLM
    *_latencies(),
    ("goodput", "requests/s", "higher", "Requests a second that met every limit of `slo`.", ("serve", "twin"),
     _ONCE_BARE),
    # questions of known answer, asked after the load
    ("accuracy", "", "higher", "Share of `questions` that were answered correctly.", ("serve",)),
    ("accuracy_change", "", "higher", "Accuracy gained against the baseline, on the same questions.", ("serve",)),
    ("answer_agreement", "", "higher", "Share of answers that are the baseline's, to the letter.", ("serve",)),
    ("questions_asked", "questions", "lower", "Questions that it took to decide.", ("serve",)),
    ("perplexity", "", "lower", "Perplexity of the study's text under the server's log probabilities.", ("serve",)),
    # what a run of any program costs
    (DOLLARS, "dollars", "lower", "Cost of the run: its node-hours and its energy, by `prices`.", ("prices",)),
    (JOULES, "J", "lower", "Energy of the run, by the `meters` of `prices` or from its `node_watts`.", ("prices",)),
    (CO2, "g", "lower", "CO2 of that energy, by the `co2_g_per_kwh` of `prices`.", ("prices",)),
    (DOLLARS_PER_TOKENS, "dollars", "lower", "Cost of a million tokens, by the node-hours of `prices`.", ("prices",)),
    # NWChem
    (ENERGY, "Ha", "", "Total energy of the theory asked for.", _NWCHEM),
    ("scf_energy_hartree", "Ha", "", "Hartree-Fock energy below a correlated method.", _NWCHEM),
    ("iterations", "", "lower", "Iterations of the self-consistent field.", _NWCHEM),
    ("iterative_s", "s", "lower", "Time in the last iterative solution, as NWChem prints it.", _NWCHEM),
    ("nwchem_cpu_s", "s", "lower", "CPU time of one rank in all tasks, as NWChem prints it.", _NWCHEM),
    ("nwchem_wall_s", "s", "lower", "Wall time of all tasks, as NWChem prints it.", _NWCHEM),
    ("heap_peak_bytes", "bytes", "lower", "Most heap in use on the reporting rank.", _NWCHEM),
    ("stack_peak_bytes", "bytes", "lower", "Most stack in use on the reporting rank.", _NWCHEM),
    ("ga_peak_bytes", "bytes", "lower", "Most memory in global arrays on the reporting rank.", _NWCHEM),
    ("memory_asked_bytes", "bytes", "lower", "Memory that the input asked for, for each rank.", _NWCHEM),
    ("integrals_cached_share", "", "higher", "Share of the integrals kept instead of computed anew.", _NWCHEM),
    ("ga_get_calls", "", "lower", "Calls of GA get on the reporting rank.", _NWCHEM),
    ("ga_acc_calls", "", "lower", "Calls of GA accumulate on the reporting rank.", _NWCHEM),
    ("ga_total_bytes", "bytes", "lower", "Bytes moved by global arrays, local ones included.", _NWCHEM),
    ("ga_remote_bytes", "bytes", "lower", "Bytes moved by global arrays between ranks.", _NWCHEM),
    ("density_error", "", "lower", "Integrated density less the number of electrons.", _NWCHEM),
    ("nproc", "", "", "Ranks that NWChem counts.", _NWCHEM),
)  # fmt: skip

METRICS = {row[0]: MetricDefinition(*row) for row in _ROWS}


def metrics_of(*makers: Maker) -> tuple[str, ...]:
    """Names of what these make, in the table's order."""
    return tuple(row.name for row in METRICS.values() if set(makers) & set(row.makers))


def unit_of(metric: str) -> str:
    """Empty where the table does not have the metric: one that a study or a plugin declares."""
    return METRICS[metric].unit if metric in METRICS else ""


def reported(metric: str, value: float, source: str, origin: Origin = "measured") -> Measurement:
    """A measurement of a metric of this table, in its unit."""
    return Measurement(metric, float(value), METRICS[metric].unit, source, origin)
