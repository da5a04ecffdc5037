"""Who is sent when somebody is answered: the next turn of a session, or of a closed loop the next session."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence

from ridgeline.serving.traffic.traffic import Arrival


class WaitingTurns:
    """Requests that wait for answers, or for one of `at_once` places for sessions (None: there is always one).

    A request of no session is one of its own. Times are seconds of the run.
    """

    def __init__(self, arrivals: Sequence[Arrival], at_once: int | None = None) -> None:
        self._missing = {a.number: len(a.after) for a in arrivals if a.after}  # answers that it waits for
        self._followers: dict[int, list[Arrival]] = {}
        self._left: Counter[Hashable] = Counter()  # requests of each session that have not been answered
        self._at_once = at_once
        starts: dict[Hashable, list[Arrival]] = {}
        for arrival in arrivals:
            for number in arrival.after:
                self._followers.setdefault(number, []).append(arrival)
            session = _session(arrival)
            self._left[session] += 1
            if not arrival.after:
                starts.setdefault(session, []).append(arrival)
        self._sessions = deque(starts.values())

    def first(self) -> Iterator[tuple[float, Arrival]]:
        """Who is sent before anybody is answered, and when."""
        places = len(self._sessions) if self._at_once is None else self._at_once
        for _ in range(min(places, len(self._sessions))):
            yield from ((arrival.at_s, arrival) for arrival in self._sessions.popleft())

    def after(self, answered: Arrival, at_s: float) -> Iterator[tuple[float, Arrival]]:
        """Who is sent because this one was answered then, or failed, and when."""
        for arrival in self._followers.pop(answered.number, ()):
            self._missing[arrival.number] -= 1
            if not self._missing[arrival.number]:
                yield at_s + arrival.think_s, arrival
        session = _session(answered)
        self._left[session] -= 1
        if not self._left[session]:
            del self._left[session]
            if self._sessions:
                yield from ((max(at_s, arrival.at_s), arrival) for arrival in self._sessions.popleft())


def _session(arrival: Arrival) -> Hashable:
    return ("alone", arrival.number) if arrival.session is None else arrival.session
