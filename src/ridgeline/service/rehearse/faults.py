"""Servers that are lost in the middle of a rehearsal: killed, or hung while they say that they are well."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from ridgeline.service import probe
from ridgeline.service.keep.keeper import Keeper
from ridgeline.service.members import Member
from ridgeline.service.operate import Operator

FAULTS = {"killed": "crash", "hung": "hang"}


def victim(operator: Operator) -> Member | None:
    """The first server whose work another one could take over."""
    for member in operator.servers:
        if member.role != "prefill" and sum(other.role == member.role for other in operator.servers) > 1:
            return member
    return None


@contextlib.contextmanager
def struck(operator: Operator, how: str, after_s: float) -> Iterator[list[float]]:
    """A server is lost after so long; the list then holds when, in seconds from now. Nothing is lost for ''."""
    lost: list[float] = []
    member, began_s = victim(operator), time.monotonic()

    def strike() -> None:
        assert member is not None
        lost.append(time.monotonic() - began_s)
        with contextlib.suppress(OSError):  # it may die before it can answer
            probe.ask(f"{operator.folder.url(member)}/fault", {"kind": FAULTS[how]})

    timer = threading.Timer(after_s, strike) if how and member is not None else None
    if timer is not None:
        timer.start()
    try:
        yield lost
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()


@contextlib.contextmanager
def kept(make: Callable[[], Operator], wanted: bool) -> Iterator[None]:
    """With `ridgeline keep` at work on the service meanwhile, where that is wanted."""
    over = threading.Event()
    keeper = threading.Thread(target=lambda: Keeper(make()).run(over.is_set))
    if wanted:
        keeper.start()
    try:
        yield
    finally:
        over.set()
        if wanted:
            keeper.join()
