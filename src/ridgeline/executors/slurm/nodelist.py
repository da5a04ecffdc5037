"""Slurm's short way to write node names."""

from __future__ import annotations

import re
from collections.abc import Iterator


def expand(nodes: str) -> Iterator[str]:
    """n1, n2, gpu07 and gpu08 from `n[1-2],gpu[07-08]`."""
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", nodes):
        yield from _expand_one(part)


def _expand_one(part: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        yield part
        return
    before, inside, after = match.groups()
    for span in inside.split(","):
        low, _, high = span.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()):
            continue
        for number in range(int(low), int(high or low) + 1):
            for rest in _expand_one(after):
                yield f"{before}{number:0{len(low)}d}{rest}"
