"""What users send: how long each prompt and answer is, which prompts share a beginning, and when they arrive.

`Traffic` is the recipe, `arrivals()` the list it stands for; the same recipe and seed always give the same list, so the
load generator and the twin can replay exactly the same requests. Tokens are counted, text is never needed.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.serving.traffic.lengths import Fixed as Fixed
from ridgeline.serving.traffic.lengths import Lengths, parse_lengths
from ridgeline.serving.traffic.lengths import LogNormal as LogNormal
from ridgeline.serving.traffic.lengths import Uniform as Uniform
from ridgeline.serving.traffic.lengths import sharegpt as sharegpt
from ridgeline.serving.traffic.replay import Replay as Replay
from ridgeline.serving.traffic.replay import TraceRow, by_session, in_order, turn_numbers
from ridgeline.serving.traffic.session_mix import SessionMix
from ridgeline.serving.traffic.texts import Text


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: requests by the ten thousand, all needed to the end, would be searched again
    and again, a third of the whole time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


SHORTER = "send shorter ones, or take a model with a longer context"  # where requests exceed it
# Each is kept to the end of a run; more would fill a laptop's memory.
_MOST_REQUESTS = 10_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request before anybody has served it. `at_s` is when it should be sent, counted from the run's start.

    Its prompt is the beginning of `text`: prompts of one text may share KV cache. One that comes `after` others (their
    numbers, all smaller) is sent `think_s` after the last of their answers, whatever `at_s` says.
    """

    number: int
    at_s: float
    input_tokens: int
    output_tokens: int
    text: Text | None = None
    session: int | None = None
    turn: int = 0  # its place in its session
    after: tuple[int, ...] = ()
    think_s: float = 0.0
    answer_stays: bool = False  # the answer is how `text` goes on after the prompt


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Everything is sent at time zero, as an offline benchmark does."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """At most `concurrency` requests, or sessions where there are any, are under way; the next begins when one ends."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InputError(f"concurrency {self.concurrency} would send nothing; use 1 or more")


_SLOWEST_S = 1e-9  # requests a second: the times of much slower ones are beyond what numbers hold


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at `rate_s` per second, whatever the server does.

    `burstiness` is the squared coefficient of variation of the gaps: 0 constant, 1 Poisson, above 1 burstier (gamma).
    """

    rate_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate_s >= _SLOWEST_S and math.isfinite(self.rate_s)):
            raise InputError(
                f"a rate of {self.rate_s:g} requests/s cannot be sent; give a number above zero, {_SLOWEST_S:g} at "
                "least, or leave it out to send everything at once"
            )
        if not 0 <= self.burstiness <= 100:
            raise InputError(f"burstiness {self.burstiness:g} is outside 0 (constant) to 100; 1 is Poisson")


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """The times of the replayed trace, `speed` times as fast.

    Where it is `closed`, these are the times at which sessions begin, and each later request waits for the answers
    before it and for the time that its user thinks.
    """

    speed: float = 1.0
    closed: bool = False

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise InputError(f"a trace cannot be replayed at speed {self.speed:g}; use a speed above zero")


Pace = AllAtOnce | ClosedLoop | OpenLoop | AsRecorded


@dataclass(frozen=True, slots=True)
class SessionRules:
    """How recorded sessions are replayed. `think_limit_s` cuts the times that users think. With `start_within` a closed
    loop takes sessions in an order of chance, and the first of each place from a point drawn up to this share of it."""

    think_limit_s: float | None = None
    start_within: float = 0.0

    def __post_init__(self) -> None:
        if self.think_limit_s is not None and not self.think_limit_s >= 0:
            raise InputError(f"a limit of {self.think_limit_s:g} s on the time to think is none; use 0 or more")
        if not 0 <= self.start_within < 1:
            raise InputError(f"sessions cannot begin {self.start_within:g} of the way through; use 0 to below 1")


@dataclass(frozen=True, slots=True)
class Traffic:
    """A recipe for requests: lengths, pace, how many, and the seed that makes it repeatable."""

    lengths: Lengths
    requests: int
    pace: Pace = field(default_factory=AllAtOnce)
    seed: int = 0
    most_tokens: int | None = None  # longer requests that were drawn are cut to it, those of a trace left out
    rules: SessionRules = SessionRules()
    duration_s: float | None = None  # nothing is sent later than this

    def __post_init__(self) -> None:
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise InputError(f"a duration of {self.duration_s:g} s measures nothing; use one above zero")
        if self.requests < 1:
            raise InputError(f"{self.requests} requests is nothing to send; use 1 or more")
        if self.requests > _MOST_REQUESTS:
            raise InputError(
                f"{self.requests:,} requests are more than the {_MOST_REQUESTS:,} that one run keeps; send fewer: "
                "a rate shows its effect long before that"
            )
        if isinstance(self.pace, AsRecorded) and not (isinstance(self.lengths, Replay) and self.lengths.timed):
            raise InputError("this traffic carries no times to replay; give a rate, a concurrency, or send all at once")

    @property
    def concurrency(self) -> int | None:
        """The most requests under way at a time in a closed loop; None when the pace sets no such limit."""
        return self.pace.concurrency if isinstance(self.pace, ClosedLoop) else None

    @property
    def has_sessions(self) -> bool:
        """Whether some of its requests wait for answers, where the pace lets them."""
        lengths = self.lengths
        return isinstance(lengths, Replay | SessionMix) and lengths.waits(self.requests, random.Random(self.seed))

    @property
    def notes(self) -> tuple[str, ...]:
        """What of a recording could not be used."""
        return self.lengths.notes if isinstance(self.lengths, Replay | SessionMix) else ()

    def arrivals(self) -> list[Arrival]:
        """Every request, in order of time; the turns of a session where they wait for each other come in their order.
        In a closed loop all sessions are due at zero and wait for a free place."""
        rng = random.Random(self.seed)
        rows = self.lengths.draw(self.requests, rng)
        open_loop = isinstance(self.pace, AsRecorded) and not self.pace.closed
        if open_loop:
            rows = sorted((replace(row, after=()) for row in rows), key=lambda row: row.at_s or 0.0)
        turns = turn_numbers(rows)
        places: Sequence[int] = range(len(rows))
        if isinstance(self.pace, ClosedLoop) and self.rules.start_within:
            places = self._places(rows, self.pace.concurrency, rng)
        if self.most_tokens is not None and isinstance(self.lengths, Replay | SessionMix):
            places = [p for p in places if rows[p].input_tokens + rows[p].output_tokens <= self.most_tokens]
        rows, turns = in_order(rows, places), [turns[p] for p in places]
        times = self._times(rows, rng)
        stays = isinstance(self.lengths, Replay | SessionMix) and self.lengths.answers_stay
        longest_s = math.inf if self.rules.think_limit_s is None else self.rules.think_limit_s
        return [
            Arrival(
                number, at_s, *self._cut(row.input_tokens, row.output_tokens), row.text,
                row.session, turn, row.after, min(row.think_s, longest_s), stays,
            )
            for number, (row, at_s, turn) in enumerate(zip(rows, times, turns, strict=True))
        ]  # fmt: skip

    def _places(self, rows: Sequence[TraceRow], at_once: int, rng: random.Random) -> Sequence[int]:
        """Places of the rows that a closed loop sends which begins in the middle: of sessions drawn from all."""
        sessions = by_session(rows)
        rng.shuffle(sessions)
        share = self.rules.start_within
        first = [turns[int(rng.random() * share * len(turns)) :] for turns in sessions[:at_once]]
        return [place for turns in (*first, *sessions[at_once:]) for place in turns]

    def _cut(self, input_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Where lengths are drawn: the answer shortened, and the prompt where that is not enough."""
        if self.most_tokens is None or not isinstance(self.lengths, (Uniform, LogNormal)):
            return input_tokens, output_tokens
        input_tokens = min(input_tokens, self.most_tokens - 1)
        return input_tokens, min(output_tokens, self.most_tokens - input_tokens)

    def longest_tokens(self) -> int:
        """Tokens that the longest request needs in the context window."""
        return max(a.input_tokens + a.output_tokens for a in self.arrivals())

    def _times(self, rows: Sequence[TraceRow], rng: random.Random) -> list[float]:
        if isinstance(self.pace, AsRecorded):
            recorded = [row.at_s or 0.0 for row in rows]
            first = min(recorded)
            return [(at - first) / self.pace.speed for at in recorded]
        if not isinstance(self.pace, OpenLoop):
            return [0.0] * len(rows)
        sessions = by_session(rows)
        times = [0.0] * len(rows)
        for at_s, places in zip(_open_loop_times(len(sessions), self.pace, rng), sessions, strict=True):
            for place in places:
                times[place] = at_s
        return times


def parse_traffic(
    text: str,
    *,
    requests: int | None = None,
    rate_s: float | None = None,
    concurrency: int | None = None,
    burstiness: float = 1.0,
    sessions: int | None = None,
    closed: bool = False,
    idle_cap_s: float | None = None,
    start_within: float = 0.0,
    duration_s: float | None = None,
    seed: int = 0,
    usual_requests: int = 1000,
) -> Traffic:
    """Traffic from the words of the command line.

    `sharegpt`, `sharegpt:IN:OUT` (other means), `fixed:IN:OUT`, `uniform:FROM-TO:FROM-TO`, `lognormal:IN:OUT[:SIGMA]`,
    `sessions:agent`, `sessions:chat`, `sessions:FILE`, or a trace file. Without a rate, a concurrency or a number of
    sessions a timed trace keeps its own times and everything else is sent at once. Without a number of requests it is
    a whole trace or `usual_requests`, and more where so many sessions at once need more.
    """
    in_sessions = {"--sessions": sessions, "--closed": closed or None}
    _refuse_two_paces(in_sessions | {"--rate": rate_s, "--concurrency": concurrency})
    if sessions is not None and sessions < 1:
        raise InputError(f"--sessions {sessions} would send nothing; use 1 or more")
    if sessions is not None and sessions > _MOST_REQUESTS:
        raise InputError(f"--sessions {sessions} are more than one run keeps; use {_MOST_REQUESTS:,} or fewer")
    if start_within and sessions is None:
        raise InputError("--start-within is for --sessions N: it is where in their first session the N places begin")
    lengths, at_once = parse_lengths(text), concurrency if sessions is None else sessions
    count = requests
    if isinstance(lengths, Replay):
        count = len(lengths.rows) if requests is None else requests
        if count > len(lengths.rows) and not lengths.has_sessions:
            raise InputError(f"{lengths.source} holds {len(lengths.rows)} requests; ask for that many or fewer")
    pace: Pace = AllAtOnce()
    if rate_s is not None:
        pace = OpenLoop(rate_s, burstiness)
    elif at_once is not None:
        pace = ClosedLoop(at_once)
    elif isinstance(lengths, Replay) and lengths.timed:
        pace = AsRecorded(closed=closed)
    elif closed:
        raise InputError(f"--closed begins sessions at their recorded times, and {text} has none; use --sessions N")
    rules = SessionRules(idle_cap_s, start_within)
    count = usual_requests if count is None else count
    traffic = Traffic(lengths, count, pace, seed, rules=rules, duration_s=duration_s)
    asked = [name for name, value in (in_sessions | {"--idle-cap": idle_cap_s}).items() if value is not None]
    if asked and not traffic.has_sessions and isinstance(lengths, Replay) and lengths.has_sessions:
        raise InputError(f"the first {count:,} requests of {text} wait for no answer; ask for more by --requests")
    if asked and not traffic.has_sessions:
        raise InputError(
            f"{asked[0]} needs sessions, whose turns wait for answers, and {text} has none; use --traffic with a "
            "recording of sessions, or sessions:agent or sessions:chat; --concurrency is for single requests"
        )
    return sessions_at_once(traffic, sessions) if requests is None and sessions is not None else traffic


def beyond_context(request_tokens: Collection[int], context: float) -> str:
    """How many requests no server with this context takes; empty where it takes all."""
    count = sum(tokens > context for tokens in request_tokens)
    said = f"{count:,} of {len(request_tokens):,} requests exceed the context of {context:,.0f} tokens"
    return said if count else ""


def _refuse_two_paces(asked: Mapping[str, float | None]) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if given == ["--rate", "--concurrency"]:
        raise InputError("give a rate (open loop) or a concurrency (closed loop), not both")
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} do not go together: --sessions N keeps so many sessions going, --closed begins "
            "them at their recorded times, --rate and --concurrency are for requests; keep one"
        )


def sessions_at_once(traffic: Traffic, sessions: int) -> Traffic:
    """A closed loop of so many sessions, with as many requests as give each of them one of its own."""
    traffic = replace(traffic, pace=ClosedLoop(sessions))
    lengths = traffic.lengths
    if isinstance(lengths, SessionMix) and traffic.most_tokens is None:  # all that is drawn is sent
        least = lengths.requests_of(sessions, random.Random(traffic.seed))
        doublings = max(0, math.ceil(math.log2(least / traffic.requests)))
        return replace(traffic, requests=traffic.requests << doublings)
    while sessions > len({a.session for a in traffic.arrivals()}):
        traffic = replace(traffic, requests=2 * traffic.requests)
    return traffic


def lasting(traffic: Traffic) -> Traffic:
    """With requests enough for the whole of its duration, where they come at a rate; a closed loop begins again."""
    pace, duration_s = traffic.pace, traffic.duration_s
    if duration_s is None or not isinstance(pace, OpenLoop):
        return traffic
    enough = int(pace.rate_s * duration_s * 1.5 + 50)
    arrivals = replace(traffic, requests=enough).arrivals()
    if any(arrival.after for arrival in arrivals):  # it is sessions that come at this rate
        enough = math.ceil(enough * len(arrivals) / len(by_session(arrivals)))
    return replace(traffic, requests=enough)


def _open_loop_times(count: int, pace: OpenLoop, rng: random.Random) -> list[float]:
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        if pace.burstiness < 1e-6:
            now += 1.0 / pace.rate_s
        elif pace.burstiness == 1:
            now += rng.expovariate(pace.rate_s)
        else:
            now += rng.gammavariate(1.0 / pace.burstiness, pace.burstiness / pace.rate_s)
    # Given how many arrive in a span, where in it they fall is what is random: stretching the draw to the span that
    # the rate asks for keeps its shape and spares a short run an offered rate some percent off what was typed.
    last_s, wanted_s = times[-1], (count - 1) / pace.rate_s
    return [at * wanted_s / last_s for at in times] if last_s > 0 else times


def dataset_of(traffic: Traffic) -> str:
    """What `--traffic` takes for these lengths."""
    lengths = traffic.lengths
    if isinstance(lengths, Fixed):
        return f"fixed:{lengths.input_tokens}:{lengths.output_tokens}"
    if isinstance(lengths, Uniform):
        return str(lengths)
    if isinstance(lengths, SessionMix):
        return lengths.words
    if not isinstance(lengths, LogNormal):
        return str(Path(lengths.source).absolute())
    if lengths == sharegpt():
        return "sharegpt"
    means = f"{lengths.input_mean:g}:{lengths.output_mean:g}"
    if _shape(lengths) == _shape(sharegpt()):
        return f"sharegpt:{means}"
    return f"lognormal:{means}:{lengths.input_sigma:g}"


def _shape(lengths: LogNormal) -> tuple[float, ...]:
    """All but the means."""
    return lengths.input_sigma, lengths.output_sigma, lengths.input_limit, lengths.output_limit


def cut_short(traffic: Traffic, most: int) -> Traffic:
    """The same requests with no answer longer than `most` tokens."""
    lengths = traffic.lengths
    if isinstance(lengths, Fixed):
        return replace(traffic, lengths=replace(lengths, output_tokens=min(lengths.output_tokens, most)))
    if isinstance(lengths, Uniform):
        least, longest = (min(tokens, most) for tokens in lengths.output_tokens)
        return replace(traffic, lengths=replace(lengths, output_tokens=(least, longest)))
    if isinstance(lengths, LogNormal):
        if lengths.output_mean >= most:
            return replace(
                traffic, lengths=replace(lengths, output_mean=float(most), output_sigma=0.0, output_limit=most + 1)
            )
        return replace(traffic, lengths=replace(lengths, output_limit=min(lengths.output_limit, most)))
    if isinstance(lengths, SessionMix):
        return replace(traffic, lengths=replace(lengths, output_tokens=lengths.output_tokens.at_most(most)))
    rows = tuple(replace(row, output_tokens=min(row.output_tokens, most)) for row in lengths.rows)
    return replace(traffic, lengths=replace(lengths, rows=rows))
