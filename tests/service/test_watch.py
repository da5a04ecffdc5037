"""What looks at servers mean: never one poll, never /health, always tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.serving.service.keep.watch import (
    COMPILES_S,
    HUNG_AFTER_S,
    SILENT_S,
    UNKNOWN_PACE_S,
    Concern,
    ServerPoll,
    Watch,
    poll_from,
)
from ridgeline.serving.service.service import server_of


def rows(*names_and_looks: tuple[str, list[ServerPoll]]) -> list[list[Concern]]:
    watch = Watch()
    count = max(len(polls) for _, polls in names_and_looks)
    return [watch.take({name: polls[n] for name, polls in names_and_looks}) for n in range(count)]


def decoding(n: int, running: float, tokens: float, **more: Any) -> ServerPoll:
    """A poll of a server none of whose requests is at its prompt."""
    return ServerPoll(2.0 * n, running, tokens, first_tokens=running, finished=0.0, **more)


def steady(tokens_s: float, running: float = 4, count: int = 20, kv_share: float = 0.3) -> list[ServerPoll]:
    return [decoding(n, running, tokens_s * 2.0 * n, kv_share=kv_share) for n in range(count)]


def test_servers_that_make_tokens_are_left_alone() -> None:
    assert not any(rows(("a", steady(100)), ("b", steady(80))))


def asked(at_s: float, made: float = 200, **more: Any) -> ServerPoll:
    """A look while two canaries wait; its processes stand still unless it says otherwise."""
    told: dict[str, Any] = {"asked": True, "confirmed": True, "cpu_s": 5.0, **more}
    return ServerPoll(at_s, told.pop("running", 4), made, **told)


def first_found(polls: list[ServerPoll]) -> tuple[float, Concern] | None:
    """How long after the first poll, and what."""
    for poll, concerns in zip(polls, rows(("a", polls)), strict=True):
        if concerns:
            return poll.at_s - polls[0].at_s, concerns[0]
    return None


def test_no_token_for_a_canary_and_processes_that_stand_still_are_a_hang() -> None:
    found = first_found([asked(2.0 * n) for n in range(20)])
    assert found is not None and found[0] == HUNG_AFTER_S
    evidence = "4 requests on it and no token for 10 s, not even for a canary; its processes stand still"
    assert found[1] == Concern("a", "hung", evidence, certain=True)


def test_a_hang_is_found_though_the_gauges_say_that_nothing_is_on_it() -> None:
    """vLLM's stand at 0 when its engine was stopped while it was idle."""
    stopped = [asked(2.0 * n, running=0, kv_share=0.0, stopped=True, on_gpus=True) for n in range(20)]
    found = first_found(stopped)
    assert found is not None and found[0] == HUNG_AFTER_S
    assert "one of its processes is stopped" in found[1].evidence


def test_a_server_that_compiles_kernels_is_not_hung_nor_is_one_that_waits_for_them() -> None:
    """Seen on an H200: nvcc built the kernels of sampling for 90 s, under a lock that other servers wait for."""
    compiling = [asked(2.0 * n, compiles=n < 50, on_gpus=True, pace_s=0.0001) for n in range(80)]
    found = first_found(compiling)
    assert found is not None and found[0] == 98 + HUNG_AFTER_S + 2, "only what came after counts"
    waits_for_the_lock = [asked(2.0 * n) for n in range(50)]
    assert not any(rows(("a", compiling[:50]), ("b", waits_for_the_lock)))


def test_compiling_is_no_excuse_for_ever_nor_for_a_stopped_process() -> None:
    for_ever = first_found([asked(10.0 * n, compiles=True) for n in range(100)])
    assert for_ever is not None and COMPILES_S <= for_ever[0] <= COMPILES_S + 2 * HUNG_AFTER_S
    stopped = first_found([asked(2.0 * n, compiles=True, stopped=True) for n in range(20)])
    assert stopped is not None and stopped[0] == HUNG_AFTER_S


def test_without_a_canary_that_waits_nothing_is_a_hang() -> None:
    assert not any(rows(("a", [ServerPoll(2.0 * n, 4, 200, cpu_s=5.0) for n in range(30)])))
    assert not any(rows(("a", [asked(2.0 * n, confirmed=False) for n in range(30)]))), "nor with one that does"


def test_whatever_the_engine_moves_is_a_sign_of_life() -> None:
    """vLLM's KV share moves with every piece of a prompt whose tokens it counts at the end."""
    pieces = [asked(2.0 * n, running=1, kv_share=0.01 * (n // 4)) for n in range(40)]
    assert not any(rows(("a", pieces)))
    answers = [asked(2.0 * n, answers=n // 4) for n in range(40)]
    assert not any(rows(("a", answers)))


def busy(pace_s: float | None, step_tokens: int, share: float = 1.0, count: int = 200) -> list[ServerPoll]:
    """An engine on CPUs that uses `share` of the core that it wants; no counter moves."""
    used, waits = 2.0 * share, 2.0 * (1 - share)
    return [
        asked(2.0 * n, running=0, cpu_s=used * n, waited_s=waits * n, pace_s=pace_s, step_tokens=step_tokens)
        for n in range(count)
    ]


def test_a_server_that_hangs_and_burns_cpu_is_found_as_soon_as_no_step_takes_so_long() -> None:
    quick = first_found(busy(0.0004, 2048))
    assert quick is not None and quick[0] == HUNG_AFTER_S, "0.8 s a step"
    assert "the longest step of this server is taken for" in quick[1].evidence
    assert not quick[1].certain, "it may be the only one: then for longer"
    slow = first_found(busy(0.004, 2048))
    assert slow is not None and slow[0] == 26, "8.2 s a step, three times"
    unknown = first_found(busy(None, 2048))
    assert unknown is not None and unknown[0] == UNKNOWN_PACE_S, "nobody knows how long it may take"


def test_a_server_whose_cores_are_taken_is_given_the_time_that_they_were_taken() -> None:
    """A prompt on a CPU: no counter moves, and the engine's process is at work as far as others let it."""
    starved = first_found(busy(0.004, 2048, share=0.25))
    assert starved is not None and starved[0] == pytest.approx(4 * 26, abs=6)
    still = [asked(2.0 * n, running=0, cpu_s=5.0, waited_s=2.0 * n, runnable=n % 5 > 0) for n in range(50)]
    assert not any(rows(("a", still))), "one that gets no core at all is not one that stands still"


def test_on_gpus_a_server_has_the_time_that_a_step_of_it_takes() -> None:
    def polls(pace_s: float | None, count: int = 200, **more: Any) -> list[ServerPoll]:
        return [asked(2.0 * n, on_gpus=True, pace_s=pace_s, step_tokens=8192, **more) for n in range(count)]

    quick, slow, unknown = (first_found(polls(pace_s)) for pace_s in (0.0001, 0.002, None))
    assert quick is not None and quick[0] == HUNG_AFTER_S, "0.8 s a step"
    assert slow is not None and slow[0] == 50, "16.4 s a step, three times"
    assert unknown is not None and unknown[0] == UNKNOWN_PACE_S
    assert not quick[1].certain
    assert rows(("a", polls(0.0001)))[-1][0].certain, "after three times as long it serves nobody"


def test_a_quiet_from_which_it_came_back_makes_it_a_slower_server() -> None:
    def look(n: int, made: float) -> ServerPoll:
        return asked(2.0 * n, made, on_gpus=True, pace_s=0.0001)

    polls = [look(n, 100) for n in range(5)] + [look(n, 200) for n in range(5, 30)]
    found = first_found(polls)
    assert found is not None and found[0] == 10 + 3 * 10, "it was quiet for 10 s once"


def test_an_idle_server_is_not_a_hung_one() -> None:
    assert not any(rows(("a", [ServerPoll(2.0 * n, 0, 500) for n in range(30)])))


def test_a_pause_that_ends_is_not_a_hang() -> None:
    polls = [ServerPoll(2.0 * n, 4, 100 * (n // 3)) for n in range(30)]
    assert not any(rows(("a", polls)))


def test_metrics_that_stay_away_say_nothing_by_themselves() -> None:
    away = [ServerPoll(0.0, 2, 10), *(ServerPoll(2.0 * n, asked=True, confirmed=True, cpu_s=1.0) for n in range(1, 8))]
    assert rows(("a", away))[-1][0].kind == "hung"
    at_work = [replace(poll, cpu_s=2.0 * n) for n, poll in enumerate(away)]
    assert not any(rows(("a", at_work))), "an engine in one process with its API answers nothing during a step"


def test_a_server_elsewhere_that_says_nothing_at_all_is_given_less_time() -> None:
    silent = [ServerPoll(2.0 * n, asked=True, confirmed=True, on_gpus=True) for n in range(40)]
    found = first_found(silent)
    assert found is not None and found[0] == SILENT_S
    counts = [replace(poll, running=0.0, tokens=5.0) for poll in silent]
    assert first_found(counts) is None, "one that goes on saying what it counts may be at its first prompt"


def test_a_router_whose_health_stays_away_is_hung() -> None:
    away = [ServerPoll(2.0 * n, role="router", asked=n > 2, confirmed=n > 2) for n in range(12)]
    found = rows(("router", away))
    assert not any(found[:7])
    assert found[-1][0].evidence.startswith("/health gave nothing for")


def test_a_job_that_is_over_at_two_looks_is_dead() -> None:
    over = ServerPoll(0.0, ended="exit code 1")
    assert rows(("a", [over, over])) == [[], [Concern("a", "dead", "exit code 1")]]
    assert not any(rows(("a", [over, ServerPoll(2.0, 1, 10), over, ServerPoll(6.0, 1, 20)])))


def test_slow_is_what_is_slower_than_its_like() -> None:
    found = rows(("a", steady(30)), ("b", steady(100)), ("c", steady(110)))
    assert {(c.member, c.kind) for concerns in found for c in concerns} == {("a", "slow")}
    assert not any(found[:6]), "not before there is enough to tell"
    assert found[6], "and then at once"
    assert rows(("a", steady(15)), ("b", steady(100)))[3], "sooner where it is very slow"
    fewer = steady(25, running=1)  # a quarter of the tokens for a quarter of the requests
    assert not any(rows(("a", fewer), ("b", steady(100))))
    crowded = steady(100, running=8)  # an eighth of the tokens for each, where all of them share one machine's cores
    assert not any(rows(("a", crowded), ("b", steady(100, running=1))))


def test_a_server_that_fell_silent_is_not_called_slow_before_it_is_called_hung() -> None:
    """Its pace over the last minute falls as well, and a slow server is given time that a hung one does not use."""
    fast = steady(50, running=1, count=30)
    silent = [*steady(50, running=1, count=10), *(asked(2.0 * n, 900.0, running=8) for n in range(10, 30))]
    kinds = [c.kind for concerns in rows(("a", silent), ("b", fast)) for c in concerns]
    assert set(kinds) == {"hung"}


def test_slow_is_judged_by_the_median_of_the_others() -> None:
    one_fast = [("b", steady(100)), ("c", steady(110)), ("d", steady(400))]
    assert not any(rows(("a", steady(50)), *one_fast)), "one very fast server does not make all others slow"
    one_slow = [("b", steady(20)), ("c", steady(100)), ("d", steady(110))]
    found = rows(("a", steady(30)), *one_slow)
    assert {c.member for concerns in found for c in concerns} == {"a", "b"}, "nor does a second slow one hide the first"
    evidence = next(c.evidence for c in found[-1] if c.member == "a")
    assert evidence == "7.5 tokens/s for each running request, others 25.0"


def test_what_is_slow_is_slow_at_any_time_of_the_clock() -> None:
    late = [[replace(poll, at_s=poll.at_s + 1e6) for poll in steady(tokens_s)] for tokens_s in (30, 100)]
    (concern,) = rows(("a", late[0]), ("b", late[1]))[-1]
    assert concern == Concern("a", "slow", "7.5 tokens/s for each running request, others 25.0")
    assert concern.needs_restart


def test_a_server_with_hardly_a_request_has_no_speed() -> None:
    bored = steady(1, running=0.5)
    assert not any(rows(("a", bored), ("b", steady(100))))
    assert not any(rows(("a", steady(10)), ("b", [decoding(n, 0.5, 500.0 * n) for n in range(20)])))


def test_looks_of_more_than_a_minute_ago_no_longer_count() -> None:
    """A server that was fast for long and crawls now is slow now."""
    tokens, polls = 0.0, []
    for n in range(80):
        tokens += 200.0 if n < 40 else 40.0
        polls.append(decoding(n, 4, tokens))
    found = rows(("a", polls), ("b", [decoding(n, 4, 200.0 * n) for n in range(80)]))
    first = next(n for n, concerns in enumerate(found) if concerns)
    assert 40 < first <= 46, "within twelve seconds"


def test_prompts_are_work_and_no_lack_of_tokens() -> None:
    """Two prompts of 8k on vLLM: its counters stand still for 40 s, and then it makes tokens again."""
    fast = steady(100, running=2, count=40)
    prompts = [ServerPoll(2.0 * n, 2, 10.0, first_tokens=4.0, finished=4.0) for n in range(20)]
    after = [ServerPoll(40.0 + 2.0 * n, 2, 12.0 + 200 * n, first_tokens=6.0, finished=4.0) for n in range(20)]
    assert not any(rows(("a", [*prompts, *after]), ("b", fast)))
    mixed = [ServerPoll(2.0 * n, 3, 2.0 * n, first_tokens=6.0, finished=4.0) for n in range(40)]
    assert not any(rows(("a", mixed), ("b", fast))), "nor are two that decode between the pieces of a third's prompt"
    done = [replace(poll, running=2.0) for poll in mixed]
    assert rows(("a", done), ("b", fast))[-1][0].kind == "slow", "but without a prompt the same is slow"


def test_answers_that_were_broken_off_hide_no_prompt_for_long() -> None:
    """vLLM counts their first token, and never their end."""
    fast = steady(100, running=2, count=60)
    aborted = [ServerPoll(2.0 * n, 2, 2.0 * n, first_tokens=9.0, finished=4.0) for n in range(20)]
    prompt = [ServerPoll(40 + 2.0 * n, 3, 40 + 2.0 * n, first_tokens=9.0, finished=4.0) for n in range(40)]
    found = rows(("a", [*aborted, *prompt]), ("b", fast))
    assert found[19][0].kind == "slow", "two run, and five seem to decode: three of these are over"
    assert not any(found[52:]), "a third one that comes is at its prompt"


def test_what_restarts_or_is_drained_is_not_judged() -> None:
    fast = steady(100, running=2, count=60)
    slow = steady(5, running=2, count=60)
    drained = [replace(poll, suspended=True) for poll in slow]
    assert not any(rows(("a", drained), ("b", fast)))
    anew = [*slow[:3], *(decoding(n, 2, 200.0 * (n - 3)) for n in range(3, 60))]
    found = rows(("a", anew), ("b", fast))
    assert not any(found), "counters that begin anew are no negative rate"
    ended = [replace(poll, ended="exit code 1") for poll in drained]
    assert rows(("a", ended), ("b", fast))[-1] == [Concern("a", "dead", "exit code 1")], "who is dead is dead"


def timed(each_s: float, all_s: float = 0.0, **more: Any) -> list[ServerPoll]:
    """A server whose canaries take so long for each request that runs, and in all."""
    took = [(6.0 * k, each_s, all_s or each_s) for k in range(12)]
    return [ServerPoll(6.0 * n, 0, 5.0, took=tuple(took[: n + 1]), **more) for n in range(12)]


def test_a_canary_that_takes_many_times_as_long_as_the_others_shows_a_slow_server_without_load() -> None:
    found = rows(("a", timed(2.0)), ("b", timed(0.2)), ("c", timed(0.25)))
    assert {c.member for concerns in found for c in concerns} == {"a"}
    assert not any(found[:2]), "not by two of them"
    assert found[2] == [Concern("a", "slow", "a canary takes 2.0 s, 0.23 s on the others")]
    assert not any(rows(("a", timed(0.9)), ("b", timed(0.2)))), "less than five times is no evidence"
    assert any(rows(("a", timed(1.0)), ("b", timed(0.2)))), "five times is"
    assert not any(rows(("a", timed(0.4)), ("b", timed(0.01)))), "nor what nobody notices"
    assert not any(rows(("a", timed(2.0)), ("b", timed(1.9)))), "a machine that is busy makes all of them late"
    assert not any(rows(("a", timed(2.0, role="prefill")), ("b", timed(0.2, role="decode"))))
    assert not any(rows(("a", timed(2.0)), ("b", timed(0.2, 2.0)))), "whose own took as long, beside nine others"
    assert not any(rows(("a", timed(0.2, 2.0)), ("b", timed(0.2)))), "nine others may have taken their share of it"


def test_a_lone_server_is_compared_with_its_own_past() -> None:
    good, late = [(6.0 * n, 0.2, 0.2) for n in range(8)], [(48 + 6.0 * n, 3.0, 3.0) for n in range(4)]
    polls = [ServerPoll(6.0 * n, 0, 5.0, took=tuple([*good, *late][: n + 1])) for n in range(12)]
    found = rows(("a", polls))
    assert not any(found[:10])
    assert found[10][0].evidence == "a canary takes 3.0 s, 0.20 s before"
    one = [*good, (48.0, 3.0, 3.0), (54.0, 0.2, 0.2), (60.0, 3.0, 3.0), (66.0, 3.0, 3.0)]
    assert not any(rows(("a", [replace(p, took=tuple(one[: n + 1])) for n, p in enumerate(polls)]))), "three in a row"


def test_servers_of_another_role_are_no_measure() -> None:
    prefill = [decoding(n, 4, 8.0 * n, role="prefill") for n in range(20)]
    decode = [decoding(n, 4, 200.0 * n, role="decode") for n in range(20)]
    assert not any(rows(("a", prefill), ("b", decode)))


def test_an_answer_whose_tokens_are_counted_at_its_end_is_no_hang() -> None:
    """SGLang's counter of tokens stands still for as long as its answers last; their gaps are counted meanwhile."""

    def page(gaps: int) -> str:
        return (
            "sglang:num_running_reqs 1\nsglang:generation_tokens_total 100\n"
            f'sglang:inter_token_latency_seconds_count{{model="m"}} {gaps}\n'
        )

    def look(n: int, gaps: int) -> ServerPoll:
        return replace(poll_from("sglang", "both", page(gaps), 2.0 * n), asked=True, confirmed=True, cpu_s=1.0)

    assert not any(rows(("a", [look(n, 50 * n) for n in range(20)])))
    assert rows(("a", [look(n, 50) for n in range(20)]))[-1][0].kind == "hung"


def test_a_page_of_metrics_says_what_runs_waits_and_fills_the_pool() -> None:
    page = (
        "sglang:num_running_reqs 3\nsglang:num_queue_reqs 5\nsglang:token_usage 0.25\n"
        "sglang:time_to_first_token_seconds_count 4\nsglang:inter_token_latency_seconds_count 96\n"
        "sglang:generation_tokens_total 90\nsglang:prompt_tokens_total 1000\n"
    )
    seen = poll_from("sglang", "decode", page, 7.0)
    assert (seen.at_s, seen.running, seen.waiting, seen.kv_share, seen.role) == (7.0, 3, 5, 0.25, "decode")
    assert seen.tokens == 100, "each answer's first token, and a gap for every other"
    assert seen.made == 1190, "prompts, too, are work"
    assert seen.on_it == 8
    vllm = "vllm:num_requests_running 2\nvllm:generation_tokens_total 40\nvllm:prompt_tokens_total 7\n"
    other = poll_from("vllm", "both", vllm, 0.0)
    assert (other.running, other.tokens, other.made, other.waiting) == (2, 40, 47, 0)


def test_what_waits_is_on_it_too() -> None:
    waiting = [asked(2.0 * n, running=0, waiting=3) for n in range(8)]
    assert rows(("a", waiting))[-1][0].evidence.startswith("3 requests on it and no token for 14 s")


def test_the_longest_step_is_the_engines_own() -> None:
    vllm, sglang = server_of("vllm"), server_of("sglang")
    assert vllm.step_tokens({}, on_gpus=False) == 2048
    assert vllm.step_tokens({"tp": 2}, on_gpus=False) == 4096
    assert vllm.step_tokens({}, on_gpus=True) == 8192
    assert vllm.step_tokens({"max_num_batched_tokens": 512}, on_gpus=False) == 512
    assert vllm.step_tokens({"max_num_batched_tokens": 512, "enable_chunked_prefill": False}, on_gpus=True) == 8192
    assert sglang.step_tokens({"chunked_prefill_size": 4096}, on_gpus=True) == 4096
    assert sglang.step_tokens({}, on_gpus=True) == 16384


def test_a_full_pool_is_noted_after_several_looks() -> None:
    full = steady(100, kv_share=0.97)
    found = rows(("a", full))
    assert [bool(concerns) for concerns in found[:4]] == [False, False, True, True]
    assert found[-1][0].kind == "kv-cliff"
    assert not found[-1][0].needs_restart


def test_a_pool_that_is_full_for_a_moment_is_left_alone() -> None:
    shares = [0.5, 0.5, 0.97, 0.5, 0.97, 0.97, 0.5, 0.97]
    polls = [ServerPoll(2.0 * n, 4, 100.0 * n, share) for n, share in enumerate(shares)]
    assert not any(rows(("a", polls)))
    assert not any(rows(("a", [ServerPoll(2.0 * n, 4, 100.0 * n) for n in range(9)]))), "nor one that is not stated"


def test_what_was_seen_before_a_restart_is_forgotten() -> None:
    watch = Watch()
    for n in range(4):
        watch.take({"a": ServerPoll(2.0 * n, 4, 100)})
    watch.forget("a")
    assert watch.take({"a": ServerPoll(8.0, 4, 100)}) == []
