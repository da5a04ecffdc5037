"""Who is taken on, who is sent back and what is forgotten first, step by step: engines whose steps take a second."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.serving.engines.behaviour import Drafting
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import Applied
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.twin.mixed import MixedEngine
from ridgeline.serving.twin.priors import NEW_TOKEN_SHARE
from ridgeline.serving.twin.request import Request
from ridgeline.serving.twin.scheduler import RETRACT_STEPS, RETRY_STEPS, Engine, PolledEngine
from ridgeline.serving.twin.server.roles import abort


def engine(
    kind: type[Engine] = Engine, pool: int = 10_000, rounds: list[tuple[Any, ...]] | None = None, **settings: Any
) -> Engine:
    """A prefill round takes as many seconds as it has tokens, a decode step one. `rounds` gets what was asked of each:
    tokens, pairs of tokens that attend to each other, sequences, and the largest piece."""

    def prefill_s(*asked: Any) -> float:
        if rounds is not None:
            rounds.append(asked)
        return float(asked[0])

    plain = {
        "backend": "fa3", "running_limit": 100, "graph_max_bs": 8, "prefill_graph": False, "chunk_tokens": 1000,
        "max_prefill_tokens": 10_000, "conservativeness": 1.0, "radix_cache": False, "accept_length": 1.0,
        "drafting": Drafting(), "page_size": 1,
    }  # fmt: skip
    times: Any = SimpleNamespace(
        applied=Applied(**{**plain, **settings}),
        layout=Layout(),
        held=None,
        decode_line=lambda batch, context: (1.0, 0.0, 0.0),
        decode_s=lambda batch, context: 1.0,
        prefill_s=prefill_s,
        mixed_s=lambda tokens, pairs, sequences, largest, batch, context: float(tokens),
    )
    return kind("one", times, pool)


def request(number: int, prompt: int, answer: int, text: Text | None = None, stays: bool = False) -> Request:
    arrival = Arrival(number, 0.0, prompt, answer, text, answer_stays=stays)
    return Request(arrival, 0.0, prompt)


def sent(of: Engine, *requests: Request) -> list[Request]:
    for one in requests:
        of.submit(one, 0.0)
    return list(requests)


def numbers(requests: Any) -> list[int]:
    return [one.arrival.number for one in requests]


def running(of: Engine) -> set[int]:
    return {number for _, number, _ in of.running}


def test_prompts_are_taken_on_in_the_order_they_came_as_far_as_the_chunk_goes() -> None:
    one = engine()
    sent(one, request(1, 400, 50), request(2, 900, 50), request(3, 100, 50))
    assert one.load == 3 and not one.idle
    one.advance(1e9)
    assert running(one) == {1} and numbers(one.chunked) == [2] and one.clock == 1000.0
    assert one.used_tokens == 1000 and one.prefill_s == 1000.0
    one.advance(1e9)
    assert running(one) == {1, 2, 3} and one.clock == 1400.0 and one.used_tokens == 1400
    assert not one.chunked and not one.waiting


def test_the_batch_has_no_more_than_its_limit_and_the_round_no_more_than_its_inputs() -> None:
    few = engine(running_limit=2)
    sent(few, *(request(n, 10, 5) for n in (1, 2, 3)))
    few.advance(1e9)
    assert running(few) == {1, 2} and numbers(few.waiting) == [3]
    short = engine(max_prefill_tokens=20)
    sent(short, *(request(n, 10, 5) for n in (1, 2, 3)))
    short.advance(1e9)
    assert running(short) == {1, 2}, "twenty tokens are two prompts"


def test_answers_keep_room_free_and_who_finds_none_waits_for_an_ending() -> None:
    """Of an answer under way 70% of what is left are kept free, of one that begins all of it, and the prompt."""
    for pool, both in ((402, True), (401, False)):
        one = engine(pool=pool)
        sent(one, request(1, 100, 101), request(2, 100, 100))
        one.advance(1e9)
        assert running(one) == ({1, 2} if both else {1}), "201 for the first, and 200 must be less than the rest"
    for pool, both in ((371, True), (370, False)):
        one = engine(pool=pool)
        sent(one, request(1, 100, 101))
        one.advance(1e9)
        assert one._reserved() == pytest.approx(100 * NEW_TOKEN_SHARE)
        (second,) = sent(one, request(2, 100, 100))
        one.advance(one.clock + 1)
        assert running(one) == ({1, 2} if both else {1}), "100 used, 70 kept"
        assert second.worker == "one" and numbers(one.waiting) == ([] if both else [2])


def test_of_a_long_answer_no_more_than_4096_tokens_are_kept_free() -> None:
    """100 used and 0.7 x 4096 kept; the second needs 100 and 4096, not 100 and 8000."""
    for pool, both in ((7164, True), (7163, False)):
        one = engine(pool=pool)
        sent(one, request(1, 100, 20_000))
        one.advance(1e9)
        assert one._reserved() == pytest.approx(4096 * NEW_TOKEN_SHARE)
        sent(one, request(2, 100, 8000))
        one.advance(one.clock + 1)
        assert running(one) == ({1, 2} if both else {1})


def test_with_nothing_else_to_do_any_request_is_taken_on() -> None:
    one = engine(pool=150)
    sent(one, request(1, 100, 1000))
    one.advance(1e9)
    assert running(one) == {1}


def test_who_waits_for_room_is_tried_again_after_a_few_steps() -> None:
    one = engine(pool=300)
    sent(one, request(1, 100, 101))
    one.advance(1e9)
    sent(one, request(2, 200, 100))
    one.advance(1e9)
    assert one.blocked_by_kv is False and one.step_number == RETRY_STEPS
    alone = engine(pool=300)
    sent(alone, request(1, 100, 101))
    alone.advance(1e9)
    alone.advance(1e9)
    assert alone.step_number == 100 and alone.idle, "nobody waits, so that all steps to the next ending are one event"


def full(kind: type[Engine], **settings: Any) -> Engine:
    """Three who joined at step 0 with prompts of 100, 300 and 200, and one at step 10 with one of 150."""
    one = engine(kind, pool=10_000, conservativeness=0.0, **settings)
    for number, prompt in ((1, 100), (2, 300), (3, 200)):
        sent(one, request(number, prompt, 500))
    one.advance(1e9)
    one.advance(one.clock + 10)
    sent(one, request(4, 150, 500))
    one.advance(one.clock + 1)
    assert running(one) == {1, 2, 3, 4}
    return one


@pytest.mark.parametrize("steps", [1, 20], ids=["the next step", "up to sglang 0.5.1"])
@pytest.mark.parametrize(
    ("kind", "order"),
    [(Engine, [4, 2, 3]), (MixedEngine, [4, 3, 2])],
    ids=["sglang: the shortest answer, then the longest prompt", "vllm: the latest"],
)
def test_a_full_pool_sends_back_one_after_the_other(kind: type[Engine], order: list[int], steps: int) -> None:
    for gone in (1, 2, 3):
        one = full(kind, retract_steps=steps)
        held = {r.arrival.number: r.held + one.step_number - r.joined_step for _, _, r in one.running}
        stay = 4 - gone
        # so little room that, but for what these bring back, the steps of those who stay do not fit
        brought = sum(held[number] for number in order[:gone])
        one.pool_tokens = int(one.used_tokens) - brought + stay * steps
        one._retract()
        assert running(one) == {1, 2, 3, 4} - set(order[:gone]), gone
        assert one.retractions == gone and one._free_tokens == stay * steps
        assert one.used_tokens == sum(held[number] for number in running(one))
        waiting = numbers(one.waiting)
        assert waiting == (order[:gone] if kind is Engine else order[:gone][::-1]), "vllm takes them on first again"
        assert one.finish_sum == sum(finish for finish, _, _ in one.running)


def test_one_is_always_kept_and_who_was_sent_back_computes_all_it_had() -> None:
    one = full(Engine)
    made = {r.arrival.number: one.step_number - r.joined_step + 1 for _, _, r in one.running}
    one.pool_tokens = 0
    one._retract()
    assert running(one) == {1}, "the one with the shortest prompt of those with the longest answers"
    for back in one.waiting:
        number = back.arrival.number
        assert back.generated == made[number]
        assert back.todo == back.arrival.input_tokens + made[number] and back.held == back.cached == 0
    expected = (made[1] + RETRACT_STEPS) / 500
    assert one.share == pytest.approx(expected), "what is kept free follows from what was made"


def test_an_answer_that_was_sent_back_before_counts_with_all_it_has() -> None:
    """A request that came back late has a long answer all the same, and stays."""
    one = full(Engine)
    last = next(r for _, number, r in one.running if number == 4)
    last.generated = 100
    one.pool_tokens = int(one.used_tokens)
    one._retract()
    assert 4 in running(one) and 2 not in running(one)


def test_a_mixed_step_brings_everybody_a_token_and_cuts_prompts_to_what_is_left() -> None:
    one = engine(MixedEngine, chunk_tokens=100)
    sent(one, request(1, 50, 500), request(2, 120, 500), request(3, 10, 500))
    one.advance(1e9)
    assert running(one) == {1} and numbers(one.chunked) == [2] and one.used_tokens == 100
    one.advance(1e9)
    assert running(one) == {1, 2, 3} and one.step_number == 1
    assert one.used_tokens == 100 + 70 + 10 + 1, "a token of the first, the rest of the second, all of the third"
    assert one.clock == 100.0 + 80.0


def test_a_prompt_half_way_that_loses_its_room_is_the_next_again() -> None:
    one = engine(MixedEngine, pool=200, chunk_tokens=100)
    sent(one, request(1, 50, 500), request(2, 140, 500), request(3, 10, 500))
    one.advance(1e9)
    assert numbers(one.chunked) == [2]
    one.pool_tokens = 150
    one._admit()
    assert numbers(one.waiting) == [2, 3] and one.retractions == 1
    assert one.waiting[0].todo == 140 and one.used_tokens == 50


@pytest.mark.parametrize(
    ("pool", "cached", "gone_s", "again"), [(260, True, 49, 51), (220, True, 69, 71), (260, False, 49, 131)]
)
def test_who_is_preempted_computes_only_what_others_took_of_its_room(
    pool: int, cached: bool, gone_s: int, again: int
) -> None:
    """By hand: two prompts of 100 fill a pool of 260 after 30 steps. The second has 130 tokens there and a token that
    nobody has computed; it waits until the first has ended with 180, 49 steps later, which leaves it 80 of its 130. A
    pool of 220 is full after 10 steps; of 110 tokens 40 are left."""
    rounds: list[tuple[Any, ...]] = []
    one = engine(MixedEngine, pool, rounds, radix_cache=cached, finds_sent_back=True, whole_prompts=True)
    first, second = sent(one, request(1, 100, 80), request(2, 100, 80))
    ended = []
    while not one.idle:
        ended += numbers(one.advance(1e9))
        assert one.used_tokens <= pool
    assert ended == [1, 2] and one.retractions == 1
    assert [tokens for tokens, *_ in rounds] == [200, again]
    assert first.end_s == 200 + 79
    assert max(gap for gap, _ in second.record().gaps_s) == gone_s + again
    assert one.cache is None or one.cache.locked_tokens == one.in_cache_tokens == 0


def test_a_pool_that_is_asked_for_more_than_it_holds_is_no_storm() -> None:
    """Ten requests hold it, thirty want it: each ending takes one on, and sends back at most one."""
    rounds: list[tuple[Any, ...]] = []
    one = engine(MixedEngine, 11_000, rounds, radix_cache=True, finds_sent_back=True, chunk_tokens=800)
    sent(one, *(request(n, 1000, 100) for n in range(30)))
    while not one.idle:
        one.advance(1e9)
    computed = sum(tokens for tokens, *_ in rounds)
    assert 0 < one.retractions <= 30 and computed < 1.1 * 30 * 1000


def test_an_engine_that_looks_seldom_finds_who_came_in_the_rhythm_of_its_looks() -> None:
    one = engine(PolledEngine, recv_interval=10)
    sent(one, request(1, 10, 200))
    one.advance(1e9)
    one.advance(one.clock + 3)
    assert one.step_number == 3
    sent(one, request(2, 10, 5))
    assert one.load == 2 and len(one.inbox) == 1 and not one.idle  # type: ignore[attr-defined]
    while 2 not in running(one):
        one.advance(1e9)
        assert one.step_number <= 10
    assert one.step_number == 10


@pytest.mark.parametrize("accept_length", [1.0, 2.0])
@pytest.mark.parametrize("kind", [Engine, MixedEngine, PolledEngine])
@pytest.mark.parametrize("seed", range(4))
def test_after_every_event_the_books_agree_with_who_is_there(
    kind: type[Engine], seed: int, accept_length: float
) -> None:
    """Counted anew from the requests: room in use, load, steps to come, and what was sent back; some users go away."""
    draw = random.Random(seed)
    given = {"recv_interval": 5} if kind is PolledEngine else {}
    one = engine(kind, pool=300, chunk_tokens=60, conservativeness=0.0, accept_length=accept_length, **given)
    todo = [request(n, draw.randint(1, 90), draw.randint(1, 150)) for n in range(1, 41)]
    lengths = {r.arrival.number: r.arrival.output_tokens for r in todo}
    ended, aborted, sent_back = list[int](), list[int](), 0
    for turn in range(5_000):
        if todo and draw.random() < 0.3:
            one.submit(todo.pop(), one.clock)
        if turn % 40 == 39 and one.running:
            gone = draw.choice(one.running)[2]
            abort(one, gone)
            aborted.append(gone.arrival.number)
        before = one.retractions
        ended += numbers(one.advance(one.clock + draw.choice([1, 3, 1e9])))
        sent_back += one.retractions > before
        inside = [r for _, _, r in one.running]
        decoded = sum((one.step_number - r.joined_step) * accept_length for r in inside)
        held = sum(r.held for r in (*inside, *one.chunked, *one.waiting))
        inbox: list[Any] = list(getattr(one, "inbox", []))
        assert one.used_tokens == pytest.approx(held + decoded)
        assert one.used_tokens <= one.pool_tokens or len(inside) + len(one.chunked) == 1
        assert one.finish_sum == sum(finish for finish, _, _ in one.running)
        assert one.load == len(one.running) + len(one.chunked) + len(one.waiting) + len(inbox)
        assert all(r.held == 0 for r in one.waiting)
        if not todo and one.idle:
            break
    assert sent_back and aborted, "what this is about happened"
    assert sorted(ended + aborted) == sorted(lengths)
    assert (one.used_tokens, one.load, one.finish_sum) == (0, 0, 0)


# what is computed, and when it is over


def test_a_prompt_in_pieces_attends_to_all_that_came_before() -> None:
    rounds: list[tuple[Any, ...]] = []
    one = engine(rounds=rounds, chunk_tokens=100)
    sent(one, request(1, 150, 5), request(2, 30, 5))
    one.advance(1e9)
    one.advance(1e9)
    # a token attends to itself and to every one before it
    whole = 150 * 151 / 2
    assert rounds[0] == (100, 100 * 101 / 2, 1, 100)
    assert rounds[1] == (80, whole - 100 * 101 / 2 + 30 * 31 / 2, 2, 50)


def test_who_was_sent_back_attends_to_the_answer_it_had_too() -> None:
    rounds: list[tuple[Any, ...]] = []
    one = engine(rounds=rounds)
    (back,) = sent(one, request(1, 100, 50))
    back.generated, back.todo = 20, 120
    one.advance(1e9)
    assert rounds == [(120, 120 * 121 / 2, 1, 120)]


def test_an_answer_of_one_token_is_over_with_its_prompt() -> None:
    one = engine()
    (short, longer) = sent(one, request(1, 100, 1), request(2, 50, 3))
    assert numbers(one.advance(1e9)) == [1] and short.end_s == short.first_s == 150.0
    assert one.load == 1 and one.used_tokens == 50 and running(one) == {2}
    assert numbers(one.advance(1e9)) == [2] and longer.end_s == 152.0 and longer.generated == 3
    assert one.idle and one.used_tokens == 0 and one.load == 0 and one.finish_sum == 0


def test_who_came_back_for_its_last_token_waited_one_long_gap_for_it() -> None:
    one = engine()
    (first, other) = sent(one, request(1, 100, 10), request(2, 100, 500))
    one.advance(1e9)
    one.advance(one.clock + 8)
    assert one.clock == 208.0 and one.step_number == 8
    entry = next(entry for entry in one.running if entry[1] == 1)
    one.running.remove(entry)
    one._give_up(first, entry[0])
    assert first.generated == 9 and first.todo == 109 and first.last_token_s == 208.0
    (done,) = one.advance(1e9)
    assert done is first and first.end_s == 208.0 + 109.0
    record = first.record()
    assert sum(count for _, count in record.gaps_s) == 9
    assert sum(gap * count for gap, count in record.gaps_s) == pytest.approx(first.end_s - 200.0)
    assert max(gap for gap, _ in record.gaps_s) == pytest.approx(109.0)
    assert running(one) == {2} and other.end_s is None


def test_answers_end_in_the_order_of_their_lengths() -> None:
    one = engine()
    sent(one, request(1, 10, 30), request(2, 10, 10), request(3, 10, 20), request(4, 10, 20))
    ended = []
    while not one.idle:
        ended += [(done.arrival.number, done.end_s) for done in one.advance(1e9)]
    assert ended == [(2, 49.0), (3, 59.0), (4, 59.0), (1, 69.0)], "a token with the prompt, the others a second each"
    assert one.finish_sum == 0 and one.used_tokens == 0


def test_a_run_of_steps_ends_before_the_pool_is_overdrawn() -> None:
    one = engine()
    sent(one, request(1, 50, 500), request(2, 50, 500))
    one.advance(1e9)
    one.pool_tokens = 200
    one.advance(1e9)
    assert one.step_number == 50 and one.used_tokens == 200, "all of it, and no more"
    one.advance(1e9)
    assert one.retractions == 1 and len(one.running) == 1


def test_a_full_batch_does_not_look_for_room_again_and_again() -> None:
    one = engine(running_limit=1)
    sent(one, request(1, 10, 101), request(2, 10, 5))
    one.advance(1e9)
    one.advance(1e9)
    assert one.step_number == 100, "nobody can be taken on before the first is over"
    idle = engine()
    idle.submit(request(1, 10, 5), 7.0)
    assert idle.clock == 7.0, "an idle engine begins when it is asked"
    idle.submit(request(2, 10, 5), 9.0)
    assert idle.clock == 7.0, "one with work goes on where it is"


# what is cached


def test_what_is_cached_is_not_computed_again_and_holds_its_room() -> None:
    one, chat, other = engine(radix_cache=True, chunk_tokens=4000), Text(1), Text(2)
    sent(one, request(1, 1000, 3, chat))
    one.advance(1e9)
    one.advance(1e9)
    assert one.idle and one.used_tokens == 0 and one._free_tokens == one.pool_tokens
    before = one.clock
    again, first = sent(one, request(2, 1010, 50, chat), request(3, 500, 50, other))
    one.advance(1e9)
    assert (again.cached, first.cached) == (1000, 0)
    assert one.clock - before == 10 + 500
    assert one.used_tokens == 1510 and one._free_tokens == one.pool_tokens - 1510


def test_what_two_read_is_there_once_and_stays_until_both_are_over() -> None:
    one, opening = engine(radix_cache=True, pool=2000, chunk_tokens=4000), Text(1)
    sent(one, request(1, 800, 100, opening))
    one.advance(1e9)
    (second,) = sent(one, request(2, 1000, 5, Text(2, opening, 700)))
    one.advance(one.clock + 1)
    assert second.cached == 700 and running(one) == {1, 2}
    assert one.used_tokens == 800 + 1000, "each attends to all it has"
    assert one._free_tokens == 2000 - 800 - 300, "but the pool holds the common part once"
    while 2 in running(one):
        one.advance(one.clock + 1)
    assert one.cache is not None and one.cache.locked_tokens == 800
    one.cache.clear()
    assert one.cache.tokens == 800, "nobody may forget what the first still reads"


def test_an_answer_is_found_where_the_user_sends_it_back_and_else_only_in_the_way() -> None:
    for stays, found in ((True, 1000 + 100), (False, 1000)):
        one, chat = engine(radix_cache=True, chunk_tokens=4000), Text(1)
        sent(one, request(1, 1000, 100, chat, stays))
        while not one.idle:
            one.advance(1e9)
        assert one.cache is not None and one.cache.tokens == 1100, "the engine keeps both"
        (following,) = sent(one, request(2, 1300, 5, chat, stays))
        one.advance(1e9)
        assert following.cached == found


def test_a_prompt_that_finds_no_room_makes_the_cache_forget_and_waits_for_who_runs() -> None:
    one = engine(radix_cache=True, pool=2000, chunk_tokens=4000)
    sent(one, request(1, 1500, 5, Text(1)))
    while not one.idle:
        one.advance(1e9)
    sent(one, request(2, 900, 200, Text(2)))
    one.advance(1e9)
    assert one.cache is not None and one.cache.tokens == 2000, "the end of the first went, not all of it"
    assert one.cache.matched(Text(9, None, 0), 10) == 0
    (third,) = sent(one, request(3, 1200, 5, Text(3)))
    one.advance(one.clock + 1)
    assert third.worker == "one" and numbers(one.waiting) == [3], "what runs is never forgotten"
    while not one.idle:
        one.advance(1e9)
    assert third.end_s is not None and one._free_tokens == 2000


@pytest.mark.parametrize("kind", [Engine, MixedEngine])
@pytest.mark.parametrize("seed", range(4))
def test_pool_and_cache_agree_after_every_event(kind: type[Engine], seed: int) -> None:
    """Many prompts that branch off each other in a small pool: nothing is held twice, lost, or forgotten while read."""
    draw = random.Random(seed)
    one = engine(kind, radix_cache=True, pool=1200, chunk_tokens=200, conservativeness=0.0)
    texts = [Text(0)]
    for name in range(1, 12):
        texts.append(Text(name, draw.choice(texts), draw.randint(0, 300)))
    todo = [
        request(n, draw.randint(1, 600), draw.randint(1, 200), draw.choice([*texts, None]), draw.random() < 0.5)
        for n in range(60)
    ]
    hits = ended = 0
    for turn in range(5_000):
        if todo and draw.random() < 0.3:
            one.submit(todo.pop(), one.clock)
        if turn % 50 == 49 and (there := [*(r for _, _, r in one.running), *one.chunked, *one.waiting]):
            abort(one, draw.choice(there))
            ended += 1
        done = one.advance(one.clock + draw.choice([1, 3, 1e9]))
        ended += len(done)
        hits += sum(r.first_cached or 0 for r in done)
        assert one.cache is not None
        inside = [*(r for _, _, r in one.running), *one.chunked]
        assert one.in_cache_tokens == sum(r.in_cache for r in inside)
        assert one.cache.locked_tokens <= one.in_cache_tokens
        assert one.cache.idle_tokens <= max(0, one._free_tokens)
        for each in inside:
            if each.arrival.text is not None and each.in_cache > 1:
                assert one.cache.matched(each.arrival.text, each.in_cache + 1) == each.in_cache
        if not todo and one.idle:
            break
    assert ended == 60 and hits > 0 and one.retractions > 0
    assert one.used_tokens == 0 and one.cache.locked_tokens == 0 and one._free_tokens == 1200
