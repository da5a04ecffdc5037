"""What a round or a step costs, promise by promise of docs/twin.md."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.traffic.traffic import Arrival, Fixed, Traffic
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.cluster import serve
from ridgeline.serving.twin.disaggregation import RESERVED_TOKENS, DecodeEngine, PrefillEngine
from ridgeline.serving.twin.operators import expert_rate, fullest_load, fullest_share, touched
from ridgeline.serving.twin.priors import DRAFT_AHEAD_S, DRAFT_PLAN_S
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.simulate import build, simulate, step_time
from ridgeline.serving.twin.steptime import StepTime
from tests.twin import deployments as make
from tests.twin.test_steptime import times_of

Round = tuple[int, float, int, int]


def whole_pairs(tokens: int) -> float:
    """Query-key pairs of a causal prompt."""
    return tokens * (tokens + 1) / 2


def rounds_of(deployment: Deployment, sent: Traffic, monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """Every prefill round that was charged: tokens, pairs, prompts, largest piece."""
    charged: list[Round] = []
    real = StepTime.prefill_s

    def spy(self: StepTime, tokens: int, pairs: float, sequences: int, largest: int) -> float:
        charged.append((tokens, pairs, sequences, largest))
        return real(self, tokens, pairs, sequences, largest)

    front, _, _ = build(deployment, Calibration(), sent)
    with monkeypatch.context() as patched:
        patched.setattr(StepTime, "prefill_s", spy)
        serve(front, sent.arrivals(), sent.concurrency)
    return charged


# -- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [512, 1000, 4096, 65_536])
@pytest.mark.parametrize("kind", ["engine", "prefill group"])
def test_chunks_of_a_prompt_cost_the_attention_pairs_of_the_whole(
    chunk: int, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """A later chunk attends to all that came before it."""
    engine, group = make.llama(chunked_prefill_size=chunk), make.split("P2D2", chunked_prefill_size=chunk)
    deployment = engine if kind == "engine" else group
    rounds = rounds_of(deployment, Traffic(Fixed(65_536, 2), 1), monkeypatch)
    assert len(rounds) >= 65_536 / chunk
    assert sum(tokens for tokens, *_ in rounds) == 65_536
    assert sum(pairs for _, pairs, *_ in rounds) == whole_pairs(65_536)
    assert rounds[-1][1] > 10 * rounds[0][1] or len(rounds) < 10


@pytest.mark.parametrize("deployment", [make.llama(chunked_prefill_size=2048), make.split("P2D2")])
def test_prompts_that_share_rounds_cost_their_own_pairs_each(deployment: Deployment, monkeypatch: pytest.MonkeyPatch):
    sent = Traffic(Fixed(3000, 4), 25)
    rounds = rounds_of(deployment, sent, monkeypatch)
    assert max(prompts for _, _, prompts, _ in rounds) > 1
    assert sum(pairs for _, pairs, *_ in rounds) == 25 * whole_pairs(3000)


@given(st.integers(1, 100_000), st.integers(1, 16))
@example(65_536, 16)
def test_chunks_take_as_long_as_the_whole_but_for_the_cost_of_starting_rounds(tokens: int, chunks: int):
    times = times_of(make.llama())
    chunks = min(chunks, tokens)
    cuts = [tokens * n // chunks for n in range(chunks + 1)]
    pieces = [(after - before, before) for before, after in pairwise(cuts)]
    cut_s = sum(times.prefill_s(size, size * (past + (size + 1) / 2), 1, size) for size, past in pieces)
    whole_s = times.prefill_s(tokens, whole_pairs(tokens), 1, tokens)
    assert whole_s <= cut_s * (1 + 1e-9)
    assert cut_s <= (whole_s + chunks * times.prefill_s(1, 1.0, 1, 1)) * (1 + 1e-9)


def test_a_long_prompt_in_chunks_shows_its_first_token_no_sooner_than_in_one():
    sent = Traffic(Fixed(64_000, 2), 1)
    in_one, in_many = (
        simulate(make.llama(chunked_prefill_size=size), sent).last_ttft_s or 0.0 for size in (64_000, 2000)
    )
    assert in_one <= in_many < 1.3 * in_one


def test_attention_over_a_long_prompt_is_not_free():
    """Twice the prompt has four times the pairs: 64k tokens take much more than twice the time of 32k."""
    short, long = (simulate(make.llama(), Traffic(Fixed(n, 2), 1)).last_ttft_s or 0.0 for n in (32_000, 64_000))
    assert long > 2.4 * short


# -- terms of a step -------------------------------------------------------------------------------------------------


def term(times: StepTime, name: str, batch: int = 64) -> float:
    return sum(t.seconds for t in times.explain_decode(batch, 64_000) if t.name.startswith(name))


def test_expert_ranks_wait_for_the_fullest_of_them():
    """More than an even share to compute and to read, where experts are spread by EP and only there."""
    spread, sliced = times_of(make.r1(tp=16, attn_dp=16, ep=16)), times_of(make.r1(tp=16))
    experts = spread.model.experts
    assert experts is not None
    gpu = spread.gpu
    mine = [m for m in spread.model.matrices if m.part == "experts"]
    held, flops = sum(m.nbytes for m in mine) / 16, sum(2 * m.rows * m.cols * len(m.layers) for m in mine) / 16
    # each expert that is asked at all computes whole tiles
    asked = touched(experts, 64)
    known = expert_rate(spread.model, gpu, spread.applied)
    rows = max(asked * known.tile, 64 * experts.per_token + asked * known.tile / 2)
    memory_s = held * asked / experts.count / (gpu.bandwidth_bytes_s * known.rate.memory)

    def both_s(columns: float, more: float = 1.0, read: float = 1.0) -> float:
        share = known.rate.peak * columns / (columns + known.ramp)
        return ((flops * rows / (gpu.flops["fp8"] * share) * more) ** 4 + (memory_s * read) ** 4) ** 0.25

    assert term(sliced, "experts") == pytest.approx(both_s(experts.width / 16), rel=1e-6)
    read = fullest_share(experts, asked, 16)
    more = fullest_load(experts, 64, 16)
    assert min(read, more) > 1.15
    assert term(spread, "experts") == pytest.approx(both_s(experts.width, more, read), rel=1e-6)


@pytest.mark.parametrize("batch", [1, 64, 256])
def test_sampling_passes_six_times_over_the_logits(batch: int):
    times = times_of(make.llama())
    once_s = batch * times.model.vocab * 4 / (times.gpu.bandwidth_bytes_s * 0.75)
    assert term(times, "sampling", batch) == pytest.approx(6 * once_s)
    (sampling,) = (t.seconds for t in times.explain_prefill(4096, 1e6, batch, 64) if t.name == "sampling")
    assert sampling == pytest.approx(6 * once_s)  # one row for each prompt, however long


def test_drafting_pays_for_its_phases_and_flashinfer_for_a_plan_of_every_pass():
    """Three phases whatever the depth; FlashInfer plans each drafted token, the verification and the last pass."""
    for drafts in (2, 4):
        ahead, planned = (
            times_of(make.llama(draft_tokens=drafts, accept_length=2.0, attention_backend=backend))
            for backend in ("fa3", "flashinfer")
        )
        assert term(ahead, "host between") == pytest.approx(3 * DRAFT_AHEAD_S)
        assert term(planned, "host between") == pytest.approx(3 * DRAFT_AHEAD_S + (drafts + 1) * DRAFT_PLAN_S)


def test_the_layer_that_drafts_is_in_16_bits_beside_fp4_weights():
    r1 = make.r1("b200", tp=8, nodes=1)
    fp4, fp8 = (
        times_of(replace(r1, model=r1.model.with_dtype(dtype), settings=EngineSettings(draft_tokens=3)))
        for dtype in ("fp4", "fp8")
    )
    assert term(fp4, "experts") < term(fp8, "experts")
    assert term(fp4, "draft model") > term(fp8, "draft model")


def test_sglangs_triton_verifies_each_head_by_itself_and_vllms_is_not_taken_to():
    def seen_s(**settings) -> float:
        return term(times_of(make.llama(draft_tokens=4, accept_length=2.0, **settings)), "attention over cached tokens")

    assert seen_s(attention_backend="triton") > 5 * seen_s(attention_backend="fa3")
    vllm = {"engine": "vllm", "version": (0, 32)}
    assert seen_s(attention_backend="triton", **vllm) < 2 * seen_s(attention_backend="fa3", **vllm)


def test_drafted_tokens_are_sampled_too():
    drafted = times_of(make.llama(draft_tokens=4, accept_length=2.0))
    assert term(drafted, "sampling") == pytest.approx(4 * term(times_of(make.llama()), "sampling"))


@pytest.mark.parametrize("host", [1.0, 2.0])
def test_attention_ranks_on_several_nodes_take_time_to_agree_and_nothing_hides_it(host: float):
    across = times_of(make.r1(tp=16, attn_dp=16, ep=16), host=host)
    rest = sum(t.seconds for t in across.explain_decode(64, 64_000) if "agree" not in t.name)
    assert across.decode_s(64, 64_000) - rest == pytest.approx(host * 18e-3)
    prompt = 4096, whole_pairs(4096), 1, 4096
    rest = sum(t.seconds for t in across.explain_prefill(*prompt) if "agree" not in t.name)
    assert across.prefill_s(*prompt) - rest == pytest.approx(host * 18e-3)


def test_ranks_of_one_node_and_ranks_without_attention_dp_need_no_agreement():
    for deployment in (make.r1(tp=8, nodes=1, attn_dp=8), make.r1(tp=16)):
        assert not term(times_of(deployment), "attention-DP ranks agree")


# -- promises of KV --------------------------------------------------------------------------------------------------


def arrival(number: int, prompt: int, answer: int) -> Arrival:
    return Arrival(number, 0.0, prompt, answer)


def request(number: int, prompt: int, answer: int) -> Request:
    return Request(arrival(number, prompt, answer), 0.0, prompt)


@given(st.integers(1, 4000), st.integers(3000, 60_000))
@example(1000, 10_000)
def test_a_decode_engine_promises_no_more_kv_than_it_has(prompt: int, pool: int):
    """Prompt and 512 tokens for each request held, set aside before the prompt is computed; the first always goes."""
    split = make.split("P2D2")
    assert split.layout.decode is not None and split.layout.prefill is not None
    times, _, _ = step_time(split, split.layout.decode, "decode", Calibration())
    prefill_times, _, prefill_pool = step_time(split, split.layout.prefill, "prefill", Calibration())
    engine, sender = DecodeEngine("d", times, pool), PrefillEngine("p", prefill_times, prefill_pool)
    for number in range(200):
        engine.bootstrapping.append((request(number, prompt, 5), 0.0, sender))
    taken = 0
    while engine.reserve() is not None:
        taken += 1
    fitting = pool // (prompt + RESERVED_TOKENS)
    assert taken == max(1, min(fitting, 200, engine.applied.running_limit))
    assert engine.promised_tokens == taken * prompt


def test_a_promise_is_kept_once_and_given_back():
    split = make.split("P2D2")
    assert split.layout.decode is not None
    times, _, _ = step_time(split, split.layout.decode, "decode", Calibration())
    engine = DecodeEngine("d", times, 10_000)
    asked = request(0, 3000, 1)
    engine.bootstrapping.append((asked, 0.0, None))  # type: ignore[arg-type]
    engine.load += 1
    assert engine.reserve() is not None
    assert (engine.expected, engine.promised_tokens, engine.used_tokens) == (1, 3000, 0)
    asked.generated = 1
    assert engine.receive(asked, 1.0) == [asked]
    assert (engine.expected, engine.promised_tokens, engine.used_tokens) == (0, 0, 0)


def admitted(engine: Engine, first: Request, second: Request) -> bool:
    """Whether `second` starts while `first` decodes."""
    engine.submit(first, 0.0)
    engine.advance(math.inf)
    engine.submit(second, engine.clock)
    engine.advance(engine.clock)
    return second.todo == 0


@pytest.mark.parametrize("conservativeness", [0.3, 1.0])
def test_a_request_is_admitted_only_beside_what_the_running_ones_may_still_write(conservativeness: float):
    """input + answer < free - share x what is left of running answers, to the token; the share starts at 0.7."""
    first, answer = (1000, 2001), 500
    share = 0.7 * conservativeness
    times, _, _ = step_time(
        make.llama(schedule_conservativeness=conservativeness), make.llama().layout, "both", Calibration()
    )
    room = 10_000 - 1000 - share * 2000
    most = math.ceil(room) - 1 - answer
    for prompt, fits in ((most, True), (most + 1, False)):
        engine = Engine("e", times, 10_000)
        assert admitted(engine, request(0, *first), request(1, prompt, answer)) is fits


def test_what_another_engine_was_promised_is_not_given_to_a_new_request():
    times, _, _ = step_time(make.llama(), make.llama().layout, "both", Calibration())
    for promised, fits in ((0.0, True), (4000.0, False)):
        engine = Engine("e", times, 10_000)
        engine.promised_tokens = promised
        assert admitted(engine, request(0, 1000, 10), request(1, 5000, 10)) is fits
