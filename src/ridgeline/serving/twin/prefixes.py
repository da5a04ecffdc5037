"""What a radix cache remembers: which beginnings of prompts still have their KV on the GPU, oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict

from ridgeline.serving.traffic.traces import PREFIX_BLOCK_TOKENS
from ridgeline.serving.traffic.traffic import Arrival


class PrefixCache:
    """Blocks of `PREFIX_BLOCK_TOKENS` tokens by hash. A block is found only when all blocks before it are."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        self._blocks.clear()

    def match(self, arrival: Arrival) -> int:
        """Tokens at the prompt's beginning whose KV is there. At least the last token is always computed."""
        found = 0
        for name in arrival.prefix_hashes:
            if name not in self._blocks:
                break
            self._blocks.move_to_end(name)
            found += 1
        return min(found * PREFIX_BLOCK_TOKENS, arrival.input_tokens - 1)

    def insert(self, arrival: Arrival, room_tokens: float) -> None:
        """Remembers the prompt and forgets the oldest blocks that no longer fit beside the running requests."""
        for name in arrival.prefix_hashes:
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        room = max(0, int(room_tokens // PREFIX_BLOCK_TOKENS))
        while len(self._blocks) > room:
            self._blocks.popitem(last=False)
