"""Who is sent when somebody is answered: the next turn of a session, or of a closed loop the next session."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.serving.traffic.replay import Passes, by_session
from ridgeline.serving.traffic.texts import Text
from ridgeline.serving.traffic.traffic import Arrival, Traffic


@dataclass(frozen=True, slots=True)
class Again:
    """Sessions that are gone through again and again, each time with text that nobody has sent."""

    arrivals: Sequence[Arrival]
    passes: Passes

    @classmethod
    def of(cls, traffic: Traffic, arrivals: Sequence[Arrival]) -> Again | None:
        """What follows on these when they are through: whole sessions, also where the first began in their middle."""
        if not traffic.has_sessions:  # these may be the last turns of sessions begun in their middle
            return None
        if traffic.rules.start_within:
            arrivals = replace(traffic, rules=replace(traffic.rules, start_within=0.0)).arrivals()
        return cls.over(arrivals)

    @classmethod
    def over(cls, arrivals: Sequence[Arrival]) -> Again:
        return cls(tuple(arrivals), Passes.over([(a.session, a.text, a.input_tokens) for a in arrivals]))

    def sessions(self) -> Iterator[list[Arrival]]:
        by_session, each = sessions_of(self.arrivals), self.passes
        for number in itertools.count(1) if by_session else ():
            more, fresh = number * each.requests, dict[int, Text]()
            for session in by_session:
                yield [
                    replace(
                        arrival,
                        number=arrival.number + more,
                        after=tuple(waited + more for waited in arrival.after),
                        session=None if arrival.session is None else arrival.session + number * each.sessions,
                        text=None if arrival.text is None else each.text(arrival.text, number, fresh),
                    )
                    for arrival in session
                ]


@dataclass(slots=True)
class _Session:
    name: int | None
    left: int  # requests that have not been answered
    missing: dict[int, int] = field(default_factory=dict)  # answers that a request waits for
    last_s: dict[int, float] = field(default_factory=dict)  # of those that are there the latest, as told in any order
    followers: dict[int, list[Arrival]] = field(default_factory=dict)
    given_up: bool = False


class WaitingTurns:
    """Requests that wait for answers, or for one of `at_once` places for sessions (None: there is always one).

    A request of no session is one of its own. Those of `again` follow without an end, which needs places. Times are
    seconds of the run.
    """

    def __init__(self, arrivals: Sequence[Arrival], at_once: int | None = None, again: Again | None = None) -> None:
        self._at_once = at_once
        self._coming: Iterator[Sequence[Arrival]] = itertools.chain(
            sessions_of(arrivals), () if again is None or at_once is None else again.sessions()
        )
        self._sent: dict[int, _Session] = {}  # by the number of each request that was given out and is not answered
        self._live: dict[int, _Session] = {}  # sessions that go on, in the order in which they began
        self._given_up: dict[int, int] = {}  # requests without an answer of each session that was given up

    def first(self) -> list[tuple[float, Arrival]]:
        """Who is sent before anybody is answered, and when."""
        return self.resized(self._at_once, 0.0)

    def resized(self, at_once: int | None, at_s: float) -> list[tuple[float, Arrival]]:
        """Who is sent because there are so many places from now on. Of more sessions the youngest are given up."""
        self._at_once = at_once
        while at_once is not None and len(self._live) > at_once:
            self._give_up(next(reversed(self._live.values())))
        found: list[tuple[float, Arrival]] = []
        while at_once is None or len(self._live) < at_once:
            begun = self._begin(at_s)
            if not begun:
                break
            found += begun
        return found

    def after(self, answered: Arrival, at_s: float, failed: bool = False) -> list[tuple[float, Arrival]]:
        """Who is sent because this one was answered then, and when. One that failed ends its session: what has not been
        sent of it never is."""
        session = self._sent.pop(answered.number)
        if session.given_up:
            return []
        if failed:
            self._give_up(session)
            return self._begin(at_s)
        found = []
        for arrival in session.followers.pop(answered.number, ()):
            number = arrival.number
            session.missing[number] -= 1
            session.last_s[number] = max(at_s, session.last_s.get(number, at_s))
            if not session.missing[number]:
                self._sent[number] = session
                found.append((session.last_s.pop(number) + arrival.think_s, arrival))
        session.left -= 1
        if not session.left:
            del self._live[id(session)]
            found += self._begin(at_s)
        return found

    def wants(self, arrival: Arrival) -> bool:
        """Whether its session still goes on, now that its time has come."""
        if not self._sent[arrival.number].given_up:
            return True
        del self._sent[arrival.number]
        return False

    def stop(self) -> None:
        """No session begins from now on."""
        self._coming = iter(())

    def cut_off(self) -> dict[int, int]:
        """Requests without an answer, of each session that was given up or goes on."""
        going = {s.name: s.left for s in self._live.values() if s.name is not None}
        return self._given_up | going

    def _begin(self, at_s: float) -> list[tuple[float, Arrival]]:
        if self._at_once is not None and len(self._live) >= self._at_once:
            return []
        arrivals = next(self._coming, None)
        if arrivals is None:
            return []
        session = _Session(arrivals[0].session, len(arrivals))
        self._live[id(session)] = session
        for arrival in arrivals:
            for number in arrival.after:
                session.followers.setdefault(number, []).append(arrival)
            if arrival.after:
                session.missing[arrival.number] = len(arrival.after)
            else:
                self._sent[arrival.number] = session
        return [(max(at_s, arrival.at_s), arrival) for arrival in arrivals if not arrival.after]

    def _give_up(self, session: _Session) -> None:
        session.given_up = True
        del self._live[id(session)]
        if session.name is not None:
            self._given_up[session.name] = session.left


def sessions_of(arrivals: Sequence[Arrival]) -> list[list[Arrival]]:
    """The requests of each session, in order; one of no session is one of its own."""
    return [[arrivals[place] for place in places] for places in by_session(arrivals)]
