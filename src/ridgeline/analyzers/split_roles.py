"""What holds up prefill and decode servers that are apart: KV that does not arrive.

Such a server looks idle in every other figure: its queue is empty, since what waits was taken in already.
"""

from __future__ import annotations

from ridgeline.diagnose.base import Claimed, Quote
from ridgeline.readers.sglang.sums import KvOnItsWay, SglangTally

_MUCH = 0.25  # of the batch lines, from which on the transfer is called the limit


def held_up_by_kv(log: SglangTally) -> list[Claimed]:
    """One warning, where for much of the log many requests had their KV on its way."""
    sides = (
        ("fetching", log.fetching, "waited here for their KV", "prefill servers, or the way from them,"),
        ("unsent", log.unsent, "were read and had not handed over their KV", "the transfer, or the decode servers,"),
    )
    return [
        Claimed(
            f"up to {side.most} requests at once {what}: {whose} are the limit",
            (Quote(log.line(name)),),
            "Look at the other side's log for the same minutes. If neither is busy, the transfer is slow: check its "
            "back end and device (--disaggregation-transfer-backend, --disaggregation-ib-device; `ridgeline preflight` "
            "names the devices) and the host's cores, which hand out every transfer.",
            "warning",
            share=side.many / side.lines,
            key="sglang.kv-on-its-way",
        )
        for name, side, what, whose in sides
        if is_much(side) and log.line(name)
    ]


def is_much(side: KvOnItsWay) -> bool:
    """Whether so many transfers were under way for so long that they count as the limit."""
    return side.many > 0 and side.many >= _MUCH * side.lines
