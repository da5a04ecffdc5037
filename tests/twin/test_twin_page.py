"""docs/twin.md states the constants that the code uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.serving.engines.knobs import KNOBS
from ridgeline.serving.engines.layout import STATE_POOL_SHARE, WINDOW_POOL_SHARE
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.sglang.failures import BOOTSTRAP_LIMIT_S
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.twin import (
    calibration,
    collectives,
    disaggregation,
    fit,
    log_steps,
    priors,
    reach,
    scheduler,
)
from ridgeline.serving.twin.calibration import PRIOR_SPREAD

BOLDNESS = KNOBS["schedule_conservativeness"].attention_dp_factor
ROOT = Path(__file__).parents[2]
PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "twin.md").read_text())
TWIN = ROOT / "src" / "ridgeline" / "serving" / "twin"


@pytest.mark.parametrize(
    "text",
    [
        f"`DRAFT_PHASE_S` {priors.DRAFT_PHASE_S * 1e3:g} ms each",
        f"`DRAFT_PLAN_S` {priors.DRAFT_PLAN_S * 1e3:g} ms",
        f"x {priors.UNTUNED_SHARE:g} for 16-bit mixtures",
        f"{priors.SMALL_OP_S * 1e6:g} us for each small kernel: {priors.MIXING_SMALL} around attention, "
        f"{priors.FFN_SMALL} around an FFN, +{priors.MLA_SMALL} MLA, +{priors.INDEX_SMALL} indexer, "
        f"+{priors.STATE_SMALL} state, +{priors.MOE_SMALL} MoE",
        f"takes {collectives.GATHER_DELAYS:g} times that delay",
        f"bus = {collectives.BUS_SHARE_BETWEEN:g} min(link, rails)",
        f"a KV pool of {WINDOW_POOL_SHARE:g} as many tokens, states of linear layers {STATE_POOL_SHARE:g} of",
        f"+{priors.QUANTISE_SMALL} a layer where activations are quantised",
        f"log-normal, spread {priors.POPULARITY_SPREAD:g}",
        f"{SGLANG.costs.accept_s * 1e3:g} ms SGLang, {VLLM.costs.accept_s * 1e3:g} ms vLLM; "
        f"+{SGLANG.costs.ranks_accept_s * 1e3:g} and +{VLLM.costs.ranks_accept_s * 1e3:g} ms",
        f"{priors.TOKENISE_S * 1e6:g} us a prompt token",
        f"{SGLANG.costs.hand_over_s * 1e6:g} us a prompt token SGLang; vLLM {VLLM.costs.hand_over_s * 1e6:g} us, and "
        f"{VLLM.costs.computed_s * 1e6:g} us more of one that no cache has",
        f"{SGLANG.costs.stream_s * 1e6:g} us a stream and step",
        f"(2 x {calibration.UNCALIBRATED_SPREAD:g}^2",
        f"{reach.APART_SPREAD:g}^2 more (TTFT {reach.APART_TTFT_SPREAD:g}^2)",
        f"{priors.SAMPLING_PASSES} passes / (B {priors.ELEMENTWISE_MEMORY:g} m)",
        f"{priors.ELEMENTWISE_PASSES} passes over hidden",
        f"per layer {priors.LAYER_OPS}, +{priors.MLA_OPS} MLA, +{priors.MOE_OPS} MoE, +{priors.QUANTISE_OPS} FP8",
        f"+{priors.INDEX_OPS} indexer, +{priors.STATE_OPS} state",
        f"{priors.HOST_STEP_S * 1e3:g} ms a step and {SGLANG.costs.request_s * 1e6:g} us a request",
        f"without a CUDA graph {SGLANG.costs.launch_s * 1e6:g} us more (vLLM {VLLM.costs.launch_s * 1e6:g} us)",
        f"h x {priors.AGREE_S * 1e3:g} ms",
        f"bubble {priors.PIPELINE_BUBBLE:g}",
        f"{collectives.DELAY_BETWEEN_S * 1e6:g} us + 2 port latencies + {collectives.PROTOCOL_CHANGE_S * 1e6:g} us",
        f"{collectives.ALL_TO_ALL_DELAY_S * 1e6:g} us (+ {collectives.ALL_TO_ALL_COUNT_S * 1e6:g} us in normal mode)",
        f"{collectives.HAND_OVER_INSIDE_S * 1e3:g} ms inside a node",
        f"{priors.NEW_TOKEN_SHARE:g} x conservativeness (x {BOLDNESS:g} under attention DP)",
        f"{priors.FINAL_SHARE_OF_START:g} of that over {priors.DECAY_STEPS} decode steps",
        f"tokens made + {scheduler.RETRACT_STEPS} a request",
        f"or {scheduler.RETRY_STEPS} steps while",
        f"input + {disaggregation.RESERVED_TOKENS} (held + 1)",
        f"after {BOOTSTRAP_LIMIT_S:g} s",
        f"{disaggregation.HANDSHAKE_S * 1e3:g} ms of handshake",
        f"min({disaggregation.PORT_SHARE:g} port",
        f"max(page size, {disaggregation.RUN_TOKENS})",
        f"noise {log_steps.STEP_NOISE:.2f}, without a graph {log_steps.EAGER_NOISE:.2f}",
        f"noise {fit.RUN_NOISE:g}",
        f"never below {fit.LEAST_SPREAD:g}",
        ", ".join(f"{name.replace('_', ' ')} {spread:.2f}" for name, spread in PRIOR_SPREAD.items()),
        f"({reach.PREFILL_SPREAD:.2f} x share of time in prefill)",
        f"TTFT {reach.TTFT_SPREAD:g}^2 and ITL {reach.ITL_SPREAD:g}^2",
        f"may wait {reach.COMPILE_WAIT_S:g} s more",
    ],
)
def test_the_page_states_the_constant(text: str) -> None:
    assert text in PAGE


def test_the_page_names_every_module_with_a_formula() -> None:
    plain = {
        "__init__",
        "calibrate",
        "calibration",
        "deployment",
        "explain",
        "factors",
        "gaps",
        "metrics_pages",
        "prefixes",
        "simulate",
    }
    named = {path.stem for path in TWIN.glob("*.py") if f"`serving/twin/{path.name}`" in PAGE}
    assert {path.stem for path in TWIN.glob("*.py")} - named - plain - {"simulation_text"} == set()
