"""Times between tokens, kept once per engine instead of once per request.

Requests of one batch get their tokens together, so a run of equal decode steps is stored once and every request that
was there refers to it. `RequestGaps` spells one request's gaps out when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, overload


class Joined(Protocol):
    """A request as far as its gaps are concerned."""

    joined_s: float


class DecodeRuns:
    """Runs of decode steps: when the first step ended, how far apart the others are, and how many there are."""

    def __init__(self) -> None:
        self.first_ends: list[float] = []
        self.steps_s: list[float] = []
        self.counts: list[int] = []
        self.tokens_per_step = 1.0
        # (gap, how many tokens saw it), over all requests
        self.gaps: list[tuple[float, int]] = []
        self._last_end = 0.0

    def __len__(self) -> int:
        return len(self.counts)

    def add(
        self, start_s: float, step_s: float, steps: int, batch: int, fresh: Sequence[Joined], tokens_per_step: float
    ) -> None:
        """`fresh` joined since the last run, so that their first gap counts from their own first token."""
        first_end = start_s + step_s
        gaps, per = self.gaps, tokens_per_step
        self.tokens_per_step = per
        old = batch - len(fresh)
        if per == 1.0:
            if old > 0:
                gaps.append((first_end - self._last_end, old))
            for request in fresh:
                gaps.append((first_end - request.joined_s, 1))
            if steps > 1:
                gaps.append((step_s, (steps - 1) * batch))
        else:
            self._add_several(first_end, step_s, steps, batch, fresh)
        self.first_ends.append(first_end)
        self.steps_s.append(step_s)
        self.counts.append(steps)
        self._last_end = start_s + step_s * steps

    def _add_several(self, first_end: float, step_s: float, steps: int, batch: int, fresh: Sequence[Joined]) -> None:
        """Speculative decoding: a step brings each request several tokens on average."""
        gaps, per = self.gaps, self.tokens_per_step
        old = batch - len(fresh)
        if old > 0:
            gaps.append(((first_end - self._last_end) / per, round(old * per)))
        for request in fresh:
            gaps.append(((first_end - request.joined_s) / per, round(per)))
        if steps > 1:
            gaps.append((step_s / per, round((steps - 1) * batch * per)))


class RequestGaps(Sequence[tuple[float, int]]):
    """One request's gaps, run-length encoded, made when they are looked at."""

    def __init__(self, runs: DecodeRuns | None, stays: Sequence[tuple[float, int, int]], tokens: int) -> None:
        self._runs, self._stays, self._tokens = runs, stays, tokens
        self._made: list[tuple[float, int]] | None = None

    def __len__(self) -> int:
        return len(self._spelled())

    @overload
    def __getitem__(self, index: int) -> tuple[float, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[float, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[float, int] | list[tuple[float, int]]:
        return self._spelled()[index]

    def _spelled(self) -> list[tuple[float, int]]:
        if self._made is None:
            self._made = self._cut(self._steps())
        return self._made

    def _steps(self) -> Iterator[tuple[float, int]]:
        """(time between steps, steps), before speculative decoding spreads several tokens over one step."""
        runs, last = self._runs, None
        if runs is None:
            return
        for joined_s, first, end in self._stays:
            if last is not None:
                yield joined_s - last, 1  # sent back and computed again: the wait is one long gap
            last = joined_s
            for n in range(first, end):
                yield runs.first_ends[n] - last, 1
                if runs.counts[n] > 1:
                    yield runs.steps_s[n], runs.counts[n] - 1
                last = runs.first_ends[n] + runs.steps_s[n] * (runs.counts[n] - 1)

    def _cut(self, steps: Iterator[tuple[float, int]]) -> list[tuple[float, int]]:
        """Exactly one gap between each two tokens, with several tokens a step under speculative decoding."""
        left = self._tokens - 1
        per = self._runs.tokens_per_step if self._runs is not None else 1.0
        made: list[tuple[float, int]] = []
        waited_s, owed = 0.0, 0.0
        for gap, count in steps:
            if per == 1.0:
                made.append((gap, count))
                continue
            waited_s += gap * count
            owed += count * per
            tokens = min(left, int(owed))
            if tokens > 0:
                made.append((waited_s / tokens, tokens))
                left, owed, waited_s = left - tokens, owed - tokens, 0.0
        if per > 1.0 and left > 0:
            made.append((waited_s / left, left))
        elif waited_s > 0:
            gap, count = made[-1]
            made[-1] = (gap + waited_s / count, count)
        return made
