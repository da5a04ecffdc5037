"""The server's engine keeps the twin's time, to the step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from statistics import quantiles

import pytest

from ridgeline.serving.engines.deployment import Deployment, describe
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.traffic.traffic import Arrival, parse_traffic
from ridgeline.serving.twin.calibration import Calibration
from ridgeline.serving.twin.front_end import FrontEnd, Tokenizers
from ridgeline.serving.twin.scheduler import Engine
from ridgeline.serving.twin.server.live import END, Clock, LiveEngine, LiveRequest
from ridgeline.serving.twin.server.roles import abort
from ridgeline.serving.twin.simulate import simulate, step_time

from .virtual_time import run_in_virtual_time


class Seen:
    """A sink that notes when what came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times_s: list[float] = []
        self.made = 0
        self.end_s: float | None = None

    def tokens(self, count: int) -> None:
        self.times_s += [self._clock.now_s()]
        self.made += count

    def end(self, failure: str) -> None:
        assert not failure
        self.end_s = self._clock.now_s()


def deployment(**settings: object) -> Deployment:
    layout = Layout(1, nodes=1, gpus_per_node=1)
    return describe("llama-8b", "h200", layout, EngineSettings(**settings))  # type: ignore[arg-type]


def new_engine(of: Deployment) -> LiveEngine:
    times, _, pool = step_time(of, of.layout, "both", Calibration())
    clock = Clock(wall=asyncio.get_running_loop().time, early_s=0.0)
    return LiveEngine(Engine("engine0", times, pool), clock)


async def serve(live: LiveEngine, arrivals: Sequence[Arrival]) -> list[Seen]:
    task = asyncio.create_task(live.run())
    seen = []
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, arrival.at_s - live.clock.now_s()))
        seen.append(Seen(live.clock))
        live.submit(LiveRequest(arrival, live.clock.now_s(), arrival.input_tokens, sink=seen[-1]))
    while any(one.end_s is None for one in seen):
        await asyncio.sleep(0.5)
    task.cancel()
    return seen


def percentiles(values: Sequence[float]) -> list[float]:
    cuts = quantiles(values, n=100)
    return [cuts[49], cuts[94]]


def test_tokens_of_a_request_keep_their_order_while_a_backlog_shrinks() -> None:
    async def main() -> list[str]:
        live, came = new_engine(deployment()), []

        class Sink:
            def tokens(self, count: int) -> None:
                came.append(f"{count} tokens")

            def end(self, failure: str) -> None:
                came.append("end")

        request = LiveRequest(Arrival(1, 0.0, 10, 3), 0.0, 10, sink=Sink())
        live.engine.streamed_s = 0.5  # the front end is behind, as after a long burst
        live.hand_over([(request, 1)])
        live.engine.streamed_s = 0.0
        live.hand_over([(request, 2), (request, END)])
        await asyncio.sleep(1)
        return came

    assert run_in_virtual_time(main()) == ["1 tokens", "2 tokens", "end"]


@pytest.mark.parametrize(("behind_s", "late"), [(0.0, False), (0.2, True)])
def test_tokens_that_this_machine_made_too_late_are_counted(behind_s: float, late: bool) -> None:
    async def main() -> LiveEngine:
        live = new_engine(deployment())
        until = live.clock.until

        async def starved(at_s: float) -> None:
            await until(at_s)
            await asyncio.sleep(behind_s)  # somebody else has the core

        live.clock.until = starved  # type: ignore[method-assign]
        await serve(live, [Arrival(1, 0.0, 10, 20)])
        return live

    live = run_in_virtual_time(main())
    assert live.made == 20
    assert (live.late == 20) is late and (live.late == 0) is not late


@pytest.mark.parametrize("rate_s", [5.0, 40.0])
def test_tokens_come_when_simulate_says(rate_s: float) -> None:
    of = deployment()
    traffic = parse_traffic("sharegpt", requests=150, rate_s=rate_s, seed=3)
    arrivals = traffic.arrivals()

    async def main() -> list[Seen]:
        return await serve(new_engine(of), arrivals)

    seen = run_in_virtual_time(main())
    # what stands in front of a live twin is a real server
    said = simulate(of, traffic, front_end=False).records
    assert [one.made for one in seen] == [a.output_tokens for a in arrivals]
    ttft = percentiles([one.times_s[0] - a.at_s for one, a in zip(seen, arrivals, strict=True)])
    assert ttft == pytest.approx(percentiles([r.ttft_s or 0.0 for r in said]), rel=0.05)
    e2e = percentiles([(one.end_s or 0.0) - a.at_s for one, a in zip(seen, arrivals, strict=True)])
    assert e2e == pytest.approx(percentiles([(r.end_s or 0.0) - r.sent_s for r in said]), rel=0.05)


def test_users_see_tokens_when_simulate_says_with_all_that_stands_in_front() -> None:
    of = deployment()
    traffic = parse_traffic("sharegpt", requests=150, rate_s=20.0, seed=3)
    front_end = FrontEnd.of(of.settings, of.layout, overlap=True)
    arrivals = [replace(arrival, at_s=at_s) for at_s, arrival in Tokenizers(front_end).all_ready(traffic.arrivals())]

    async def main() -> list[Seen]:
        live = new_engine(of)
        live.engine.front_end = front_end
        return await serve(live, arrivals)

    sent_s = {arrival.number: arrival.at_s for arrival in traffic.arrivals()}
    seen = zip(run_in_virtual_time(main()), arrivals, strict=True)
    ttft = percentiles([one.times_s[0] - sent_s[arrival.number] for one, arrival in seen])
    said = percentiles([record.ttft_s or 0.0 for record in simulate(of, traffic).records])
    assert ttft == pytest.approx(said, rel=0.05)


def test_a_step_of_several_tokens_gives_nobody_more_than_was_asked() -> None:
    of = deployment(accept_length=2.5, draft_tokens=4)
    arrivals = [Arrival(n, 0.01 * n, 100, 20 + n) for n in range(30)]

    async def main() -> list[Seen]:
        return await serve(new_engine(of), arrivals)

    seen = run_in_virtual_time(main())
    assert [one.made for one in seen] == [a.output_tokens for a in arrivals]
    assert all(len(one.times_s) < one.made for one in seen), "some steps bring several"


def test_a_server_keeps_nothing_of_what_it_has_served() -> None:
    arrivals = [Arrival(n, 0.0, 50, 100) for n in range(20)]

    async def main() -> Engine:
        live = new_engine(deployment())
        await serve(live, arrivals)
        return live.engine

    engine = run_in_virtual_time(main())
    assert engine.idle
    assert engine.used_tokens == 0
    assert len(engine.usage) == 1
    assert (engine.runs.gaps, engine.runs.rows) == ([], [])


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_client_that_leaves_gives_its_room_back(after_s: float) -> None:
    async def main() -> LiveEngine:
        live = new_engine(deployment(max_running_requests=2))
        task = asyncio.create_task(live.run())
        requests = [LiveRequest(Arrival(n, 0.0, 400, 2000), 0.0, 400, sink=Seen(live.clock)) for n in range(4)]
        for request in requests:
            live.submit(request)
        await asyncio.sleep(after_s)
        for request in requests:  # two of them run by then, two wait
            abort(live.engine, request)
        await asyncio.sleep(0.5)
        task.cancel()
        return live

    engine = run_in_virtual_time(main()).engine
    assert engine.idle
    assert (engine.load, engine.used_tokens) == (0, 0)


def test_a_hung_engine_makes_no_token_until_it_is_let_go() -> None:
    async def main() -> tuple[int, int]:
        live = new_engine(deployment())
        task = asyncio.create_task(live.run())
        sink = Seen(live.clock)
        live.submit(LiveRequest(Arrival(0, 0.0, 100, 1000), 0.0, 100, sink=sink))
        await asyncio.sleep(0.5)
        live.hung = True
        before = sink.made
        await asyncio.sleep(60)
        during = sink.made - before
        live.hung = False
        live.wake()
        await asyncio.sleep(1)
        task.cancel()
        return during, sink.made - before

    assert run_in_virtual_time(main())[0] == 0
    assert run_in_virtual_time(main())[1] > 50


def test_a_slow_engine_takes_that_many_times_as_long() -> None:
    async def took(slowness: float) -> float:
        live = new_engine(deployment())
        live.slowness = slowness
        (seen,) = await serve(live, [Arrival(0, 0.0, 100, 200)])
        assert seen.end_s is not None
        return seen.end_s

    usual_s, slow_s = run_in_virtual_time(took(1.0)), run_in_virtual_time(took(3.0))
    assert slow_s == pytest.approx(3 * usual_s, rel=0.05)
