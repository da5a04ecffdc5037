"""Times between tokens, kept once per engine instead of once per request.

Requests of one batch get their tokens together, so a run of equal decode steps is stored once and every request that
was there refers to it. `RequestGaps` spells one request's gaps out when somebody asks.

Under speculative decoding a step brings several tokens at once. As SGLang's bench_serving and our own load generator
do, the time since the last of them is spread evenly over them, so that no gap is zero and all gaps of a request add up
to the time from its first token to its last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Protocol

# No accept length is known to more digits; a small fraction keeps whole tokens exact.
_FINEST = 10_000


class DecodingRequest(Protocol):
    """A request as far as its gaps are concerned."""

    joined_s: float


Ending = tuple[DecodingRequest, int]  # a request and the tokens it still lacks before its last step


class TokenPace:
    """How many tokens a decode step brings to each request of its batch: always one, or several on average.

    Step n of an engine brings floor((n + 1) x mean) - floor(n x mean) of them: whole, at least one, the same to all.
    """

    def __init__(self, mean: float) -> None:
        exact = Fraction(mean).limit_denominator(_FINEST)
        self._made, self._steps = exact.numerator, exact.denominator
        self.single = exact == 1
        self._fewest = self._made // self._steps

    def tokens(self, first_step: int, steps: int) -> int:
        """Tokens of `steps` steps from `first_step` on."""
        made, per = self._made, self._steps
        return (first_step + steps) * made // per - first_step * made // per

    def steps(self, first_step: int, tokens: int) -> int:
        """Steps from `first_step` on until `tokens` are there; the last one may bring more than are wanted."""
        wanted = tokens + first_step * self._made // self._steps
        return -(-wanted * self._steps // self._made) - first_step

    def spread(self, gap_s: float, first_step: int, steps: int) -> Iterator[tuple[float, int]]:
        """(gap between tokens, how many) of steps that are `gap_s` apart; the shorter gaps come last."""
        few = self._fewest
        longer = self.tokens(first_step, steps) - few * steps  # steps that bring one more
        if steps > longer:
            yield gap_s / few, few * (steps - longer)
        if longer:
            yield gap_s / (few + 1), (few + 1) * longer


class DecodeRuns:
    """Runs of decode steps: when the first step ended, how far apart the others are, and how many there are."""

    def __init__(self, pace: TokenPace) -> None:
        self.pace = pace
        # (end of the first step, how far apart the others are, number of the first step, how many there are)
        self.rows: list[tuple[float, float, int, int]] = []
        # (gap, how many tokens saw it), over all requests
        self.gaps: list[tuple[float, int]] = []
        self.last_end = 0.0
        self._step = 0

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self,
        start_s: float,
        step_s: float,
        steps: int,
        batch: int,
        fresh: Sequence[DecodingRequest],
        ending: Sequence[Ending] = (),
    ) -> None:
        """`fresh` joined since the last run, so that their first gap counts from their own first token.

        `ending` are those who want no more of the last step than they still lack; nobody where a step brings one token.
        """
        first_end = start_s + step_s
        gaps, old = self.gaps, batch - len(fresh)
        if self.pace.single:
            if old > 0:
                gaps.append((first_end - self.last_end, old))
            for request in fresh:
                gaps.append((first_end - request.joined_s, 1))
            if steps > 1:
                gaps.append((step_s, (steps - 1) * batch))
        else:
            self._add_several(first_end, step_s, steps, batch, fresh, ending)
        self.rows.append((first_end, step_s, self._step, steps))
        self._step += steps
        self.last_end = start_s + step_s * steps

    def wait(self, gap_s: float) -> None:
        """A request that was sent back has its next token: the wait for it is one long gap."""
        self.gaps.append((gap_s, 1))

    def _add_several(
        self,
        first_end: float,
        step_s: float,
        steps: int,
        batch: int,
        fresh: Sequence[DecodingRequest],
        ending: Sequence[Ending],
    ) -> None:
        """Speculative decoding: what `ending` do not want of the last step is thrown away."""
        gaps, pace = self.gaps, self.pace
        if steps == 1:
            self._add_first(first_end, batch, fresh, ending)
            return
        self._add_first(first_end, batch, fresh, ())
        gaps.extend((gap, count * batch) for gap, count in pace.spread(step_s, self._step + 1, steps - 2))
        whole, tokens = batch - len(ending), pace.tokens(self._step + steps - 1, 1)
        if whole:
            gaps.append((step_s / tokens, tokens * whole))
        gaps.extend((step_s / lacking, lacking) for _, lacking in ending)

    def _add_first(
        self, first_end: float, batch: int, fresh: Sequence[DecodingRequest], ending: Sequence[Ending]
    ) -> None:
        gaps, tokens = self.gaps, self.pace.tokens(self._step, 1)
        lacking = {id(request): count for request, count in ending}
        for request in fresh:
            count = lacking.pop(id(request), tokens)
            gaps.append(((first_end - request.joined_s) / count, count))
        waited_s, whole = first_end - self.last_end, batch - len(fresh) - len(lacking)
        if whole:
            gaps.append((waited_s / tokens, tokens * whole))
        gaps.extend((waited_s / count, count) for count in lacking.values())


class RequestGaps:
    """One request's gaps, run-length encoded, made when they are looked at."""

    def __init__(self, runs: DecodeRuns | None, stays: Sequence[tuple[float, int, int]], tokens: int) -> None:
        self._runs, self._stays, self._tokens = runs, stays, tokens
        self._made: list[tuple[float, int]] | None = None

    def __len__(self) -> int:
        return len(self._spelled())

    def __contains__(self, gap: object) -> bool:
        return gap in list(self)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return iter(self._spelled())

    def _spelled(self) -> list[tuple[float, int]]:
        if self._made is None:
            single = self._runs is None or self._runs.pace.single
            self._made = [(gap, count) for gap, _, count in self._steps()] if single else list(self._several())
        return self._made

    def _steps(self) -> Iterator[tuple[float, int | None, int]]:
        """(time between steps, number of the first of them, how many); no number for a wait outside the batch."""
        runs, last = self._runs, None
        if runs is None:
            return
        for joined_s, first, end in self._stays:
            if last is not None:
                yield joined_s - last, None, 1  # sent back and computed again: the wait is one long gap
            last = joined_s
            for first_end, step_s, step, count in runs.rows[first:end]:
                yield first_end - last, step, 1
                if count > 1:
                    yield step_s, step + 1, count - 1
                last = first_end + step_s * (count - 1)

    def _several(self) -> Iterator[tuple[float, int]]:
        """Speculative decoding: the tokens of each step, of which the last may bring more than are wanted."""
        assert self._runs is not None
        pace, left = self._runs.pace, self._tokens - 1
        for gap, step, count in self._steps():
            if step is None:
                yield gap, 1
                left -= 1
                continue
            tokens = pace.tokens(step, count)
            if tokens <= left:
                yield from pace.spread(gap, step, count)
            else:
                yield from pace.spread(gap, step, count - 1)
                left -= pace.tokens(step, count - 1)
                yield gap / left, left
                return
            left -= tokens
