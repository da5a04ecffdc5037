"""Whose number it is: the whole engine's, or that of each attention-DP rank. The one place that converts.

Inside, every number is the whole engine's. SGLang is told so too (`--max-running-requests`, `--chunked-prefill-size`),
and divides by its attention-DP size; what its log repeats is sometimes the share of one rank.
"""

from __future__ import annotations

from enum import Enum


class Scope(Enum):
    ENGINE = "of the engine"
    RANK = "of each attention-DP rank"


def rank_share(total: int, groups: int) -> int:
    """What each of `groups` attention-DP ranks gets of an engine's number.

    At least 1, as SGLang 0.5.23 has it; releases before it refuse to start with a share of 0 (see `layout_rules`).
    """
    return max(1, total // groups)


def engine_total(share: int, groups: int) -> int:
    """An engine's number, from what one of its `groups` attention-DP ranks has of it."""
    return share * groups
