"""What a row of polls of a server means: it is well, dead, hung, slower than its peers, or near the end of its KV.

Nothing is decided from one poll. A server is judged by what its engine makes, never by what its /health says; and not
at all while it is drained, restarted or tried, nor by counters that began again.

Slow is who makes far fewer tokens than the others (`_SLOW`) in time in which no request was at its prompt, or whose
canaries take `_LATE_TIMES` as long where no prompt was in their way. A prompt is work, however long it is.

Hung is who leaves a canary (a request for one token) unanswered while nothing that its engine counts moves, for longer
than the engine can be busy with anything. How long that is:

- its processes can be seen from here, need no GPU, and stand still: `HUNG_AFTER_S`. They are at nothing.
- else a step of prompt tokens is the longest that an engine does without moving a counter. It is given `PATIENCE` times
  the larger of: that step at the pace that servers of its role showed, and the longest quiet from which it came back.
  Of processes that work on CPUs only the time counts in which they had cores: others may have taken them away.
- time in which a compiler runs among its processes, or among those of another server here for whose kernels it may
  wait, does not count, up to `COMPILES_S`.
- a server of a role whose pace nobody has measured is given `UNKNOWN_PACE_S`; `SILENT_S` where it has GPUs or another
  node, and gives no metrics either.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import median

from ridgeline.serving.engines.base import figures_of_page
from ridgeline.serving.service.service import FULL_KV_SHARE, server_of

HUNG_AFTER_S = 10.0  # a canary unanswered and nothing else made for so long
UNKNOWN_PACE_S = 120.0
SILENT_S = 30.0
COMPILES_S = 600.0
PATIENCE, _MOST_PATIENCE_S = 3.0, 900.0
_CERTAIN = 3.0  # times that: nobody waits for such a server any more, were it the only one
_STEP_TOKENS = 16384  # of prompts in one step of an engine, where no number was given
_WORK_SHARE = 0.1  # of a core; engines that wait for work poll for it now and then
_LEAST_POLLS = 3
_WINDOW_S = 60.0
# Slow, by tokens: only time counts in which requests ran and none was at its prompt.
# After so many seconds of it: below these shares of the median of the others, in tokens a second and in those of each
# request. What a slow server does not finish runs at once, and makes up for some of the former.
_SLOW = ((6.0, 0.2, 0.2), (12.0, 0.4, 0.4), (12.0, 0.55, 0.2))
_LEAST_PEER_S = 2.0  # of such time of each server that it is compared with
_PAST_S = 120.0  # how far back the others' may lie: at modest load they have little of it
_PROMPT_ROOM = 1.5  # times what prompts take at the best pace that was seen
# Slow, by canaries that had no prompt in their way: each of the last few beside the others' median, or its own before.
_LATE_TIMES, _LEAST_LATE_S = 5.0, 0.5
_LATE_CANARIES, _LATE_AFTER_S = 3, 8.0


@dataclass(frozen=True, slots=True)
class ServerPoll:
    """One poll of a server. None: it did not say. `ended` is why its job is over, where it is.

    `progress` grows with anything that the server makes; where it is not known, tokens are.
    """

    at_s: float
    running: float | None = None
    tokens: float | None = None
    kv_share: float | None = None
    waiting: float = 0.0
    ended: str = ""
    progress: float | None = None
    role: str = ""  # only servers of the same one are alike
    asked: bool = False  # a canary was sent, and no answer came since
    confirmed: bool = False  # nor to a second one
    answers: int = 0  # to canaries, so far
    cpu_s: float | None = None  # of its processes, where they can be seen
    stopped: bool = False  # one of them was asked to stop
    waited_s: float = 0.0  # for a core, as long as they were ready to run
    runnable: bool = False  # one of them works, or would if others left it a core
    compiles: bool = False  # kernels, at their first use
    on_gpus: bool = False  # it may work while its processes wait
    pace_s: float | None = None  # for each token at the end of the longest prompt
    best_pace_s: float | None = None  # the same of the quickest server of its role
    step_tokens: int = _STEP_TOKENS
    prompts: float | None = None  # tokens of prompts so far
    gaps: tuple[float, float] | None = None  # between tokens of an answer so far: how many, and their seconds
    first_tokens: float | None = None  # requests so far that have had theirs
    finished: float | None = None  # requests so far that are over
    # canaries that had no prompt in their way: when, and how long; for each request that ran, and in all
    took: tuple[tuple[float, float, float], ...] = ()
    flies_s: float = 0.0  # how long such a one has been under way
    suspended: bool = False  # something is being done to it: what it shows says nothing about how it is

    @property
    def prompts_s(self) -> float | None:
        """What all prompts so far may have taken, at the best pace of its role; None: not known."""
        known = self.prompts is not None and self.best_pace_s is not None
        return _PROMPT_ROOM * (self.prompts or 0.0) * (self.best_pace_s or 0.0) if known else None

    @property
    def made(self) -> float | None:
        return self.tokens if self.progress is None else self.progress

    @property
    def on_it(self) -> float:
        """A server that hangs before it takes a request up has it in its queue for ever."""
        return (self.running or 0.0) + self.waiting

    @property
    def signs(self) -> dict[str, float]:
        """What only an engine that works can move, as far as it is known."""
        found = {"made": self.made, "kv": self.kv_share, "running": self.running, "answers": float(self.answers)}
        return {name: value for name, value in found.items() if value is not None}


def poll_from(engine: str, role: str, page: str, now_s: float) -> ServerPoll:
    """An empty page gives a poll that says nothing."""
    metrics, seen = server_of(engine).metrics, figures_of_page(page)
    live = [seen[name] for name in metrics.live if name in seen]
    tokens = sum(live) if live else seen.get(metrics.output_tokens)
    made = [seen[name] for name in (*metrics.live, *metrics.progress) if name in seen]
    gaps_s = seen.get(f"{metrics.itl}_sum")
    return ServerPoll(
        now_s,
        running=seen.get(metrics.running),
        tokens=tokens,
        kv_share=seen.get(metrics.kv_share),
        waiting=seen.get(metrics.waiting, 0.0),
        progress=sum(made) if made else None,
        role=role,
        prompts=seen.get(metrics.prompt_tokens),
        gaps=None if gaps_s is None else (seen.get(f"{metrics.itl}_count", 0.0), gaps_s),
        first_tokens=seen.get(f"{metrics.ttft}_count"),
        finished=seen.get(f"{metrics.e2e}_count"),
    )


@dataclass(frozen=True, slots=True)
class Concern:
    """`kind` is dead, hung, slow, refuses or kv-cliff; `evidence` is what was seen, with its numbers.

    `certain`: it serves nobody, so that a restart takes nothing away, were it the last of its role.
    """

    member: str
    kind: str
    evidence: str
    certain: bool = False

    @property
    def needs_restart(self) -> bool:
        return self.kind in ("dead", "hung", "slow", "refuses")


@dataclass
class _Quiet:
    """Since when nothing of a server has moved while a canary waited."""

    last: ServerPoll
    since_s: float
    compiled_s: float = 0.0  # of that time kernels were compiled; no more than COMPILES_S
    worked_s: float = 0.0  # of the rest, as far as it had the cores that it wanted
    signs: dict[str, float] = field(default_factory=dict)
    polls: int = 1
    runnable: int = 0  # of these polls
    spoke: bool = False  # it gave a page of metrics meanwhile
    cpu_s: float | None = None
    longest_s: float = 0.0  # worked without a sign, and came back

    def take(self, poll: ServerPoll) -> None:
        moved = any(self.signs.get(name, value) != value for name, value in poll.signs.items())
        self.signs |= poll.signs
        passed_s = poll.at_s - self.last.at_s
        compiles = (self.last.compiles or poll.compiles) and not poll.stopped
        compiled_s = min(passed_s, COMPILES_S - self.compiled_s) if compiles else 0.0
        self.compiled_s += compiled_s
        self.worked_s += (passed_s - compiled_s) * _share_of_cores(self.last, poll)
        if moved and self.polls > 1:
            self.longest_s = max(self.longest_s, self.worked_s)
        if moved or not poll.asked:
            self.since_s, self.polls, self.runnable, self.cpu_s = poll.at_s, 1, 0, poll.cpu_s
            self.spoke, self.worked_s, self.compiled_s = False, 0.0, 0.0
        else:
            self.polls += 1
            self.runnable += poll.runnable
            self.spoke |= poll.made is not None
            self.cpu_s = poll.cpu_s if self.cpu_s is None else self.cpu_s
        self.last = poll

    def stands_still(self, poll: ServerPoll) -> bool:
        """Its processes do nothing. One that waits for a GPU looks the same, unless it was stopped."""
        if poll.stopped:
            return True
        quiet_s = poll.at_s - self.since_s
        if (
            self._compiles(poll)
            or poll.on_gpus
            or poll.cpu_s is None
            or self.cpu_s is None
            or 2 * self.runnable > self.polls
        ):
            return False
        return poll.cpu_s - self.cpu_s < _WORK_SHARE * quiet_s

    def _compiles(self, poll: ServerPoll) -> bool:
        return poll.compiles and self.compiled_s < COMPILES_S

    def left_s(self, poll: ServerPoll) -> float:
        """Until it is hung, if nothing moves."""
        if self._compiles(poll) and not poll.stopped:
            return COMPILES_S - self.compiled_s
        if poll.role == "router" or self.stands_still(poll):
            return HUNG_AFTER_S - (poll.at_s - self.since_s - self.compiled_s)
        return self.allowed_s(poll) - self.worked_s

    def allowed_s(self, poll: ServerPoll) -> float:
        """How long it may work, or seem to, without a sign of it."""
        step_s = max((poll.pace_s or 0.0) * poll.step_tokens, self.longest_s)
        on_cpus = poll.cpu_s is not None and not poll.on_gpus
        unknown_s = UNKNOWN_PACE_S if self.spoke or on_cpus else SILENT_S
        least_s = HUNG_AFTER_S if poll.pace_s is not None else unknown_s
        return min(max(least_s, PATIENCE * step_s), _MOST_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class _Span:
    """Time between two polls at whose end no request was at its prompt: all work on prompts was counted by then."""

    at_s: float  # its end
    tokens: float
    gaps_s: tuple[float, float]  # before each of these tokens; and without what prompts may have taken of them
    running: tuple[float, float]  # requests at once: at least, and at most


@dataclass
class _Decoding:
    """Which time of a server shows how fast it makes tokens.

    A request is at its prompt until its first token is counted. Those that were broken off are counted as begun and,
    by some engines, never as finished; they are found out where more would decode than there are.
    """

    last: ServerPoll | None = None
    over: float = 0.0  # first tokens beyond those of requests that are over or on it
    in_prompt: float | None = None  # requests at their prompts; None: not known
    spans: deque[_Span] = field(default_factory=deque)

    def take(self, poll: ServerPoll) -> None:
        before, self.last = self.last, poll
        self.in_prompt = self._in_prompt(poll)
        while self.spans and poll.at_s - self.spans[0].at_s > _PAST_S:
            self.spans.popleft()
        if before is None or before.tokens is None or poll.tokens is None or self.in_prompt != 0:
            return
        came = (poll.first_tokens or 0.0) - (before.first_tokens or 0.0)
        ends, seconds = (before.running or 0.0, poll.running or 0.0), poll.at_s - before.at_s
        at_once = (max(1.0, min(ends)), max(1.0, max(ends) + came))
        if poll.gaps is None or before.gaps is None:
            # tokens alone: how long was waited for them is known where the same requests ran throughout
            if came == 0 and before.finished == poll.finished and ends[0] == ends[1] >= 1:
                made = poll.tokens - before.tokens
                self.spans.append(_Span(poll.at_s, made, (seconds * ends[0], seconds * ends[0]), at_once))
            return
        counted = (poll.prompts or 0.0) - (before.prompts or 0.0)
        if counted and poll.best_pace_s is None:
            return
        prompts_s = _PROMPT_ROOM * counted * (poll.best_pace_s or 0.0) * at_once[1]
        made, gaps_s = poll.gaps[0] - before.gaps[0], poll.gaps[1] - before.gaps[1]
        self.spans.append(_Span(poll.at_s, made, (gaps_s, max(0.0, gaps_s - prompts_s)), at_once))

    def _in_prompt(self, poll: ServerPoll) -> float | None:
        if poll.first_tokens is None or poll.finished is None or poll.running is None:
            return None
        begun = poll.first_tokens - poll.finished
        if poll.on_it == 0 or begun - self.over > poll.on_it or begun < self.over:
            self.over = begun - min(max(0.0, begun - self.over), poll.on_it)
        return poll.on_it - (begun - self.over)

    def rates(self, now_s: float, least_s: float, within_s: float, most: bool) -> tuple[float, float] | None:
        """Tokens a second, and for each request, over the latest time in which there was something to make.

        None where there is too little of it. How many ran at once is known within limits only: with `most` the server
        is taken for as fast as it can have been, else for as slow.
        """
        busy_s = tokens = gaps_s = 0.0
        for span in reversed(self.spans):
            if now_s - span.at_s > within_s or busy_s >= least_s:
                break
            tokens, gaps_s = tokens + span.tokens, gaps_s + span.gaps_s[most]
            busy_s += span.gaps_s[most] / span.running[most]
        return (tokens / busy_s, tokens / gaps_s) if busy_s >= least_s else None


def _share_of_cores(before: ServerPoll, after: ServerPoll) -> float:
    """Of the time in which its threads were ready to run, that in which they ran; 1 where it is not known."""
    if after.on_gpus or before.cpu_s is None or after.cpu_s is None:
        return 1.0
    ran_s, waited_s = after.cpu_s - before.cpu_s, after.waited_s - before.waited_s
    return ran_s / (ran_s + waited_s) if ran_s >= 0 and waited_s > 0 else 1.0


class Watch:
    """Takes polls of all servers of a service and says what they mean."""

    def __init__(self) -> None:
        self._polls: dict[str, deque[ServerPoll]] = {}
        self._quiet: dict[str, _Quiet] = {}
        self._decoding: dict[str, _Decoding] = {}

    def take(self, polls: Mapping[str, ServerPoll]) -> list[Concern]:
        """Concerns about servers as they are after these polls."""
        if any(poll.compiles for poll in polls.values()):
            polls = {name: replace(poll, compiles=True) for name, poll in polls.items()}
        for name, poll in polls.items():
            before = self._polls[name][-1] if name in self._polls else poll
            if (poll.suspended and not poll.ended) or (before.made or 0.0) > (
                poll.made if poll.made is not None else math.inf
            ):
                self.forget(name)  # its counters began again, or what it makes is not to be compared with what it made
            row = self._polls.setdefault(name, deque())
            row.append(poll)
            while row[-1].at_s - row[0].at_s > _WINDOW_S:
                row.popleft()
            self._quiet.setdefault(name, _Quiet(poll, poll.at_s)).take(poll)
            self._decoding.setdefault(name, _Decoding()).take(poll)
        found = []
        for name in polls:
            alike = [other for other, poll in polls.items() if other != name and poll.role == polls[name].role]
            concern = self._of(name, alike)
            if concern is not None:
                found.append(concern)
        return found

    def _of(self, name: str, others: Sequence[str]) -> Concern | None:
        row = list(self._polls[name])
        if row[-1].ended:
            # a batch system that is restarted may forget a job for a moment
            again = len(row) > 1 and row[-2].ended
            return Concern(name, "dead", row[-1].ended) if again else None
        if row[-1].suspended:
            return None
        slow = self._slow_by_tokens(name, others) or self._slow_by_canaries(name, others)
        return self._hung(name) or slow or self._kv(name)

    def forget(self, name: str) -> None:
        """It was started again: what was seen of it before says nothing."""
        for kept in (self._polls, self._quiet, self._decoding):
            kept.pop(name, None)

    def is_quiet(self, name: str) -> bool:
        """Nothing of it moved between the last two polls."""
        row = list(self._polls.get(name, ()))
        return len(row) > 1 and row[-1].signs == row[-2].signs

    def is_clean(self, name: str, own: int = 0) -> bool:
        """No prompt is in the way of a canary now, as far as it says what it is at, beside `own` of canaries."""
        poll, decoding = self._polls[name][-1] if name in self._polls else None, self._decoding.get(name)
        if poll is None or decoding is None or poll.waiting > own or poll.running is None:
            return False
        return poll.on_it == 0 or (decoding.in_prompt is not None and decoding.in_prompt <= own)

    def verdict_in_s(self, name: str) -> float:
        """Until it would be called hung, if it stays as it is."""
        row, quiet = self._polls.get(name), self._quiet.get(name)
        if not row or quiet is None or not row[-1].asked:
            return math.inf
        return quiet.left_s(row[-1])

    def is_patient(self, name: str) -> bool:
        """Whether a hang of it would be found late, for its steps seem to take long."""
        row, quiet = self._polls.get(name), self._quiet.get(name)
        return row is not None and quiet is not None and quiet.allowed_s(row[-1]) > HUNG_AFTER_S

    def _hung(self, name: str) -> Concern | None:
        poll, quiet = self._polls[name][-1], self._quiet[name]
        quiet_s, allowed_s = poll.at_s - quiet.since_s, quiet.allowed_s(poll)
        if not (poll.asked and poll.confirmed) or quiet.polls < _LEAST_POLLS or quiet.left_s(poll) > 0:
            return None
        if poll.role == "router":
            return Concern(name, "hung", f"/health gave nothing for {quiet_s:.0f} s", certain=True)
        still = quiet.stands_still(poll)
        if poll.stopped:
            why = "one of its processes is stopped"
        elif still:
            why = "its processes stand still"
        else:
            why = f"the longest step of this server is taken for {allowed_s / PATIENCE:.0f} s"
        certain = still or quiet.worked_s >= _CERTAIN * allowed_s
        evidence = f"{poll.on_it:.0f} requests on it and no token for {quiet_s:.0f} s, not even for a canary; {why}"
        return Concern(name, "hung", evidence, certain)

    def _slow_by_tokens(self, name: str, others: Sequence[str]) -> Concern | None:
        """With fewer requests a server makes fewer tokens, with more of them fewer for each: slow is who makes less of
        both."""
        now_s = self._polls[name][-1].at_s
        found = (self._decoding[other].rates(now_s, _LEAST_PEER_S, _PAST_S, most=False) for other in others)
        rates = [rate for rate in found if rate is not None]
        for least_s, of_all, of_each in _SLOW if rates else ():
            own = self._decoding[name].rates(now_s, least_s, _WINDOW_S, most=True)
            all_s, each_s = (median(rate[n] for rate in rates) for n in (0, 1))
            if own is not None and own[0] < of_all * all_s and own[1] < of_each * each_s:
                return Concern(name, "slow", f"{own[1]:.1f} tokens/s for each running request, others {each_s:.1f}")
        return None

    def _slow_by_canaries(self, name: str, others: Sequence[str]) -> Concern | None:
        """Evidence that needs no load: how long a few tokens take, beside the others and its own past.

        What ran beside a canary may have taken its share of the time, as on CPUs, or none: a server is held to its time
        for each request, and to the others' in all.
        """
        poll, (late_s, usual_s, whose) = self._polls[name][-1], self._late_beyond(name, others)
        took = [(at_s, each_s) for at_s, each_s, _ in poll.took if poll.at_s - at_s <= _WINDOW_S]
        took += [(poll.at_s, poll.flies_s)] if poll.flies_s >= late_s else []
        # the quickest of them too: one that waited for a core, or behind a prompt that nobody saw, is no slow server
        late = list(takewhile(lambda row: row[1] >= late_s, reversed(took)))
        if len(late) < _LATE_CANARIES or late[0][0] - late[-1][0] < _LATE_AFTER_S:
            return None
        own_s = median(took_s for _, took_s in late)
        return Concern(name, "slow", f"a canary takes {own_s:.1f} s, {usual_s:.2f} s {whose}")

    def _late_beyond(self, name: str, others: Sequence[str]) -> tuple[float, float, str]:
        """How long a canary takes that is late; what it usually takes, and where. Infinite where nobody knows."""
        poll = self._polls[name][-1]
        known = [took_s for other in others if (took_s := self._canaries_s(other, poll.at_s)) is not None]
        past = [all_s for _, _, all_s in poll.took[:-_LATE_CANARIES]]
        if not known and len(past) < 2 * _LATE_CANARIES:
            return math.inf, math.inf, ""
        usual_s, whose = (median(known), "on the others") if known else (median(past), "before")
        return max(_LEAST_LATE_S, _LATE_TIMES * usual_s), usual_s, whose

    def seems_late(self, name: str) -> bool:
        """The last canary of it that had no prompt in its way was late: the next ones should come soon."""
        if not (row := self._polls.get(name)) or not row[-1].took:
            return False
        others = [other for other, polls in self._polls.items() if other != name and polls[-1].role == row[-1].role]
        return row[-1].took[-1][1] >= self._late_beyond(name, others)[0]

    def _canaries_s(self, name: str, now_s: float) -> float | None:
        took = [all_s for at_s, _, all_s in self._polls[name][-1].took if now_s - at_s <= _PAST_S]
        return median(took[-2 * _LATE_CANARIES :]) if len(took) >= _LATE_CANARIES else None

    def _kv(self, name: str) -> Concern | None:
        row = list(self._polls[name])[-_LEAST_POLLS:]
        if len(row) < _LEAST_POLLS or any((poll.kv_share or 0.0) < FULL_KV_SHARE for poll in row):
            return None
        return Concern(
            name, "kv-cliff", f"its KV pool is {row[-1].kv_share:.0%} full, at {_LEAST_POLLS} polls in a row"
        )
