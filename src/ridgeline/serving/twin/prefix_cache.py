"""What an engine's KV cache remembers of prompts that it has computed, and what it forgets first.

SGLang keeps a radix tree, vLLM a table of hashed blocks and a list of free ones, and both come to the same: of each
text a beginning is there, ends go before beginnings, what running requests read stays, and of the rest goes what was
used least recently. So this counts tokens of a text (`traffic/texts.py`) where engines count nodes and blocks: a prompt
of a hundred thousand tokens costs as many steps as its text has branches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ridgeline.serving.traffic.texts import Text


class _Entry:
    """The part of a text, from where it branches off, whose KV is there. What must stay is counted by its end: `locks`
    of running requests, `branches` of entries that go on from there."""

    __slots__ = ("branches", "created", "end", "locked", "locks", "text", "times_used", "used")

    def __init__(self, text: Text, now: int) -> None:
        self.text, self.end = text, text.start
        self.locks: dict[int, int] = {}
        self.branches: dict[int, int] = {}
        self.locked = 0  # tokens under a lock
        self.created = self.used = now
        self.times_used = 0

    @property
    def floor(self) -> int:
        """Up to here it must stay."""
        locks, branches = self.locks, self.branches
        return max(max(locks) if locks else self.text.start, max(branches) if branches else self.text.start)


# Which of two entries goes first, by SGLang's names of policies (mem_cache/evict_policy.py): the one with the smaller
# key. vLLM knows the first alone.
EVICTION: dict[str, Callable[[_Entry], tuple[int, ...]]] = {
    "lru": lambda entry: (entry.used,),
    "lfu": lambda entry: (entry.times_used, entry.used),
    "slru": lambda entry: (int(entry.times_used > 1), entry.used),
    "fifo": lambda entry: (entry.created,),
    "mru": lambda entry: (-entry.used,),
    "filo": lambda entry: (-entry.created,),
}


def _moved(counts: dict[int, int], at: int, by: int) -> None:
    left = counts.get(at, 0) + by
    if left:
        counts[at] = left
    else:
        del counts[at]


class PrefixCache:
    """`page_tokens`: prompts share whole pages. Of `tokens` in all, `locked_tokens` are read by running requests; the
    rest goes when somebody needs the room (`evict`)."""

    def __init__(self, page_tokens: int = 1, policy: str = "lru") -> None:
        self.page_tokens = page_tokens
        self._key = EVICTION[policy]
        self._entries: dict[Text, _Entry] = {}
        self._order: list[tuple[tuple[int, ...], int, _Entry]] = []  # a heap; what has been used since is out of date
        self._now = 0
        self.tokens = self.locked_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def idle_tokens(self) -> int:
        return self.tokens - self.locked_tokens

    def matched(self, text: Text, tokens: int) -> int:
        """How many tokens of a prompt are there, in whole pages. At least its last one is always computed."""
        end, most = tokens, tokens - 1
        node: Text | None = text
        while node is not None:
            entry = self._entries.get(node)
            if entry is not None and node.start < tokens:
                return min(entry.end, end, most) // self.page_tokens * self.page_tokens
            end, node = min(end, node.start), node.parent
        return 0

    def unlocked(self, text: Text, tokens: int) -> int:
        """How many of these tokens of a prompt, which are there, no running request reads yet."""
        found = 0
        for node, start, end in text.stretches(tokens):
            entry = self._entries[node]
            found += max(0, end - max(start, entry.text.start + entry.locked))
        return found

    def lock(self, text: Text, tokens: int) -> None:
        """A running request reads the first so many tokens, which are there."""
        if tokens:
            self._hold(text, tokens, 1)
            self._use(text)

    def extend(self, text: Text, before: int, tokens: int) -> None:
        """A request that had the first `before` tokens locked has computed on up to `tokens`, and locks these."""
        self._insert(text, tokens)
        self._hold(text, tokens, 1)
        if before:
            self._hold(text, before, -1)

    def release(self, text: Text, tokens: int, kept: int = 0) -> None:
        """Whoever locked so many tokens reads them no more. `kept`: how far the text is there by now."""
        if tokens:
            if kept > tokens:
                self._insert(text, kept)
            self._hold(text, tokens, -1)
            self._use(text)

    def add(self, text: Text, tokens: int) -> None:
        """So many tokens of a prompt are there, and nobody reads them."""
        self._insert(text, tokens)
        self._use(text)

    def evict(self, tokens: float) -> int:
        """Forgets so many tokens, or as many as nobody reads; how many."""
        gone = 0
        while gone < tokens and self._order:
            key, _, entry = self._order[0]
            room = entry.end - entry.floor
            if room <= 0 or key != self._key(entry) or self._entries.get(entry.text) is not entry:
                heapq.heappop(self._order)
                continue
            cut = int(min(room, -(-(tokens - gone) // self.page_tokens) * self.page_tokens))
            gone += cut
            self.tokens -= cut
            entry.end -= cut
            if entry.end == entry.text.start:
                heapq.heappop(self._order)
                self._forget(entry)
        return gone

    def clear(self) -> None:
        self.evict(self.idle_tokens)

    def _insert(self, text: Text, tokens: int) -> None:
        for node, start, end in text.stretches(tokens):
            entry = self._entries.get(node)
            if entry is None:
                entry = self._entries[node] = _Entry(node, self._now)
                if node.parent is not None:
                    _moved(self._entries[node.parent].branches, start, 1)
            if end > entry.end:
                self.tokens += end - entry.end
                entry.end = end

    def _hold(self, text: Text, tokens: int, by: int) -> None:
        for node, start, end in text.stretches(tokens):
            entry = self._entries[node]
            _moved(entry.locks, end, by)
            locked = max(entry.locks) - start if entry.locks else 0
            self.locked_tokens += locked - entry.locked
            entry.locked = locked
            if by < 0:
                self._offer(entry)

    def _use(self, text: Text) -> None:
        entry = self._entries.get(text)
        if entry is not None:
            self._now += 1
            entry.used = self._now
            entry.times_used += 1
            self._offer(entry)

    def _offer(self, entry: _Entry) -> None:
        """Puts it among those that may go, where some of it may."""
        if entry.end > entry.floor:
            self._now += 1
            heapq.heappush(self._order, (self._key(entry), self._now, entry))

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.text]
        parent = None if entry.text.parent is None else self._entries[entry.text.parent]
        if parent is not None:
            _moved(parent.branches, entry.text.start, -1)
            # what it branched off was used when it was
            parent.used = max(parent.used, entry.used)
            self._offer(parent)
