"""Whatever mixture of prompts and pauses a healthy server shows, it is left alone; one at a tenth of the pace is found.

Engines in virtual time, that count as vLLM does: a prompt when all of it is done, a token when its step is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from ridgeline.serving.service.keep import canary
from ridgeline.serving.service.keep.canary import Canaries
from ridgeline.serving.service.keep.watch import Concern, ServerPoll, Watch
from ridgeline.serving.service.probe import TokenAnswer

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # minutes of virtual time each: too long to shrink
CANARY_TOKENS = 8
SEATS = 16  # requests that run at once


@dataclass
class Asked:
    arrives_s: float
    prompt: int
    output: int
    on_end: Callable[[float], None] = lambda at_s: None
    done: int = 0  # tokens of its prompt
    made: int = 0
    last_s: float = 0.0  # when its last token was made


Step = tuple[float, list[tuple[Asked, int]], list[Asked]]  # when it ends, pieces of prompts, who gets a token


@dataclass
class Engine:
    pace_s: float  # a token of a prompt
    step_s: float  # the rest of a step
    chunk: int
    to_come: list[Asked]
    kv_moves: bool = True  # with each piece of a prompt
    shared: bool = False
    slow_from_s: float = float("inf")  # from when on every step takes ten times as long
    now_s: float = 0.0
    on_it: list[Asked] = field(default_factory=list)
    first_tokens: int = 0
    finished: int = 0
    prompts: int = 0
    tokens: int = 0
    kv: int = 0
    gauge: int = 0  # requests on it, as vLLM says it: at the end of a step
    gaps: int = 0
    gaps_s: float = 0.0
    step: Step | None = None

    def run(self, until_s: float) -> None:
        """What a step makes is counted when it ends."""
        while self.now_s < until_s:
            if self.step is None:
                self.on_it += [asked for asked in self.to_come if asked.arrives_s <= self.now_s]
                self.to_come = [asked for asked in self.to_come if asked.arrives_s > self.now_s]
                if not self.on_it:
                    self.now_s = min([until_s, *(asked.arrives_s for asked in self.to_come)])
                    continue
                self.step = self._begin()
            if self.step[0] > until_s:
                self.on_it += [asked for asked in self.to_come if asked.arrives_s <= until_s]
                self.to_come = [asked for asked in self.to_come if asked.arrives_s > until_s]
                return
            self._end(*self.step)

    def _begin(self) -> Step:
        running, room, taken = self.on_it[:SEATS], self.chunk, list[tuple[Asked, int]]()
        for asked in running:
            if asked.done < asked.prompt and room > 0:
                piece = min(room, asked.prompt - asked.done)
                taken.append((asked, piece))
                room -= piece
        decoding = [asked for asked in running if asked.done == asked.prompt]
        took_s = self.step_s * (len(running) if self.shared else 1) + self.pace_s * sum(piece for _, piece in taken)
        took_s *= 10 if self.now_s >= self.slow_from_s else 1
        return self.now_s + took_s, taken, decoding

    def _end(self, at_s: float, taken: list[tuple[Asked, int]], decoding: list[Asked]) -> None:
        self.now_s, self.step = at_s, None
        for asked, piece in taken:
            asked.done += piece
            self.kv += piece if self.kv_moves or asked.done == asked.prompt else 0
            if asked.done == asked.prompt:
                self.prompts += asked.prompt
                self.first_tokens += 1
                self._made(asked)
        for asked in decoding:
            self._made(asked)
        self.gauge = len(self.on_it)

    def _made(self, asked: Asked) -> None:
        if asked.made:
            self.gaps += 1
            self.gaps_s += self.now_s - asked.last_s
        asked.made, asked.last_s = asked.made + 1, self.now_s
        self.tokens += 1
        if asked.made >= asked.output:
            self.on_it.remove(asked)
            self.finished += 1
            self.kv -= asked.prompt if self.kv_moves else 0
            asked.on_end(self.now_s)

    def poll(self, at_s: float) -> ServerPoll:
        return ServerPoll(
            at_s,
            running=float(min(SEATS, self.gauge)),
            waiting=float(max(0, self.gauge - SEATS)),
            tokens=float(self.tokens),
            progress=float(self.tokens + self.prompts + self.first_tokens),
            kv_share=self.kv / 1e6,
            prompts=float(self.prompts),
            gaps=(float(self.gaps), self.gaps_s),
            first_tokens=float(self.first_tokens),
            finished=float(self.finished),
            pace_s=self.pace_s,
            best_pace_s=self.pace_s,
            step_tokens=self.chunk,
            on_gpus=True,
        )


class Watched:
    """A service of such engines, polled and asked for canaries as `keep` does."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = {f"server-{n}": engine for n, engine in enumerate(engines)}
        self.watch, self.now_s = Watch(), 0.0
        self.canaries = {name: self._canaries(engine) for name, engine in self.engines.items()}

    def _canaries(self, engine: Engine) -> Canaries:
        def send(*_: object, **more: object) -> TokenAnswer:
            sent_s = self.now_s

            def end(at_s: float) -> None:
                found._take(TokenAnswer(took_s=at_s - sent_s))

            engine.to_come.append(Asked(sent_s, 2, CANARY_TOKENS, end))
            raise _UnderWay

        found = Canaries("vllm", "both", "http://x", "m", "", lambda: self.now_s, send)
        found._context = 0  # prompts that show its pace were sent before
        return found

    def run(self, seconds: float) -> list[tuple[float, Concern]]:
        found, end_s = list[tuple[float, Concern]](), self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 2.0
            polls = {}
            for name, engine in self.engines.items():
                engine.run(self.now_s)
                flown = self.canaries[name]
                polls[name] = dataclasses.replace(
                    engine.poll(self.now_s),
                    asked=flown.waiting,
                    confirmed=flown.confirmed,
                    answers=flown.answers,
                    took=tuple(flown.took),
                    flies_s=flown.flies_s if engine.gauge else 0.0,
                )
            found += [(self.now_s, concern) for concern in self.watch.take(polls)]
            for name in self.engines:
                watch, flown = self.watch, self.canaries[name]
                poll = polls[name]
                arguments = (watch.is_quiet(name), poll.on_it, watch.verdict_in_s(name), watch.is_patient(name))
                flown.poll(*arguments, watch.is_clean(name, flown.at_prompt), poll.prompts_s)
        return found


class _UnderWay(Exception):
    """A canary that the engine will answer."""


class _Inline:
    def __init__(self, target: Callable[[], None], args: tuple[object, ...] = (), daemon: bool = True) -> None:
        self._target = target

    def start(self) -> None:
        try:
            self._target()
        except _UnderWay:
            pass


@pytest.fixture(autouse=True, scope="module")
def without_threads() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canary.threading, "Thread", _Inline)
        yield


requests = st.lists(
    st.tuples(
        st.floats(0, 40),  # seconds after the one before
        st.one_of(st.integers(1, 200), st.integers(1, 16_000)),
        st.integers(1, 300),
    ),
    max_size=25,
)


def arrivals(asked: Sequence[tuple[float, int, int]]) -> list[Asked]:
    at_s, found = 0.0, []
    for pause_s, prompt, output in asked:
        at_s += pause_s
        found.append(Asked(at_s, prompt, output))
    return found


@settings(max_examples=60, deadline=None, phases=PHASES)
@given(
    loads=st.lists(requests, min_size=2, max_size=3),
    pace_s=st.floats(0.0001, 0.003),
    step_s=st.floats(0.01, 0.1),
    chunk=st.sampled_from([512, 2048, 16384]),
    kv_moves=st.booleans(),
    shared=st.booleans(),
)
def test_a_healthy_server_is_left_alone_whatever_it_is_asked(
    loads: list[list[tuple[float, int, int]]], pace_s: float, step_s: float, chunk: int, kv_moves: bool, shared: bool
) -> None:
    """Without a gauge that moves with its pieces, a prompt must be one step for its end to be foreseen.

    On CPUs (`shared`) a step takes the longer the more requests are in it.
    """
    chunk = chunk if kv_moves else 16384
    engines = [Engine(pace_s, step_s, chunk, arrivals(load), kv_moves, shared=shared) for load in loads]
    assert Watched(engines).run(300) == []


def steady(every_s: float, prompt: int = 20, output: int = 40) -> list[Asked]:
    return [Asked(0.37 + every_s * n, prompt, output) for n in range(int(200 / every_s))]


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(
    every_s=st.floats(4.0, 20.0),
    step_s=st.floats(0.015, 0.05),
    output=st.integers(10, 30),
    others=st.integers(1, 3),
)
@example(every_s=4.0, step_s=0.04793598524444487, output=24, others=3)  # its requests pile up, and run at once
def test_a_server_at_a_tenth_of_its_peers_pace_is_found(
    every_s: float, step_s: float, output: int, others: int
) -> None:
    engines = [Engine(0.001, step_s, 2048, steady(every_s, output=output)) for _ in range(others + 1)]
    engines[0].slow_from_s = 60.0
    watched = Watched(engines)
    assert watched.run(60) == []
    found = watched.run(40)
    assert found and {concern.member for _, concern in found} == {"server-0"}
    assert found[0][0] <= 60 + 30, "within half a minute"
    assert found[0][1].kind == "slow"


@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.1])
def test_a_slow_server_is_found_without_any_load(step_s: float) -> None:
    engines = [Engine(0.001, step_s, 2048, []) for _ in range(2)]
    engines[1].slow_from_s = 60.0
    watched = Watched(engines)
    assert watched.run(60) == []
    found = watched.run(40)
    assert found and found[0][0] <= 60 + 30
    assert found[0][1].member == "server-1"
    assert found[0][1].kind == "slow"


def test_a_prompt_of_one_step_that_no_gauge_shows_yet_makes_no_canary_late() -> None:
    """Seen on vLLM: the number of running requests stands at 0 until the first step of a prompt is done."""
    prompts = [Asked(5.0 * n + 4.3, 2000, 1) for n in range(50)]
    engines = [Engine(0.0025, 0.02, 2048, prompts), Engine(0.0025, 0.02, 2048, [])]
    assert Watched(engines).run(240) == []


def test_a_server_with_one_request_is_not_held_to_the_share_of_time_of_one_with_ten() -> None:
    """On GPUs ten at once take hardly longer than one: nobody could keep a tenth of a canary's time."""
    loads = [[Asked(1.0 + 0.1 * n, 20, 2000) for n in range(10)], []]
    assert Watched([Engine(0.001, 0.1, 2048, load) for load in loads]).run(240) == []


def test_the_two_prompts_of_8k_that_cost_half_the_service() -> None:
    """40 s without a token on one of two replicas, whose other one answers short requests all the time."""
    long = [Asked(30.0, 8000, 20), Asked(31.0, 8000, 20)]
    engines = [
        Engine(0.0025, 0.05, 8192, [*steady(5.0), *long], kv_moves=False),
        Engine(0.0025, 0.05, 8192, steady(2.0)),
    ]
    assert Watched(engines).run(200) == []
