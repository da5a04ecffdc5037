"""What an engine's KV cache remembers of prompts that it has computed, and what it forgets first.

SGLang keeps a radix tree, vLLM a table of hashed blocks and a list of free ones, and both come to the same: of each
text a beginning is there, ends go before beginnings, what running requests read stays, and of the rest goes what was
used least recently. So this counts tokens of a text (`traffic/texts.py`) where engines count nodes and blocks: a prompt
of a hundred thousand tokens costs as many steps as its text has branches.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.serving.traffic.texts import Text


@dataclass(slots=True)
class _Part:
    """A part of what is there of a text, up to `end`: when it was used last, and how often."""

    end: int
    used: int
    times: int


# Which of two parts goes first, by SGLang's names of policies (mem_cache/evict_policy.py): the one with the smaller
# key. vLLM knows the first alone.
EVICTION: dict[str, Callable[[_Part], tuple[int, ...]]] = {
    "lru": lambda part: (part.used,),
    "lfu": lambda part: (part.times, part.used),
    "slru": lambda part: (int(part.times > 1), part.used),
}


class _Ends:
    """Positions up to which something must stay, each as often as it is held; `last` of them."""

    __slots__ = ("_counts", "last")

    def __init__(self, start: int) -> None:
        self._counts: dict[int, int] = {}
        self.last = start

    def hold(self, end: int) -> None:
        self._counts[end] = self._counts.get(end, 0) + 1
        if end > self.last:
            self.last = end

    def let_go(self, end: int, start: int) -> None:
        left = self._counts[end] - 1
        if left:
            self._counts[end] = left
            return
        del self._counts[end]
        if end == self.last:
            self.last = max(self._counts, default=start)


class _Entry:
    """How far a text is there, from where it branches off: in parts, of which each was used later than the next. What
    must stay: `locks` of running requests, `branches` where other entries go on from it."""

    __slots__ = ("branches", "end", "locks", "parts", "text")

    def __init__(self, text: Text) -> None:
        self.text, self.end = text, text.start
        self.parts: list[_Part] = []
        self.locks, self.branches = _Ends(text.start), _Ends(text.start)

    def use(self, end: int, now: int) -> None:
        """Its tokens up to `end` are used; what of them was not there is now."""
        parts = self.parts
        if end >= self.end:
            times = parts[-1].times if parts else 0
            self.parts, self.end = [_Part(end, now, times + 1)], end
            return
        covered = bisect_left(parts, end, key=_end)
        times = parts[covered].times
        parts[: covered + (parts[covered].end == end)] = [_Part(end, now, times + 1)]

    def loosest(self) -> int:
        """How many tokens of its last part may go."""
        if not self.parts:
            return 0
        before = self.parts[-2].end if len(self.parts) > 1 else self.text.start
        return self.end - max(before, self.locks.last, self.branches.last)

    def cut(self, tokens: int) -> None:
        """Its last `tokens`, all of its last part, go."""
        self.end -= tokens
        if self.end == (self.parts[-2].end if len(self.parts) > 1 else self.text.start):
            self.parts.pop()
        else:
            self.parts[-1].end = self.end


def _end(part: _Part) -> int:
    return part.end


@dataclass(slots=True)
class CacheUse:
    """Prompt tokens that were looked up, and of these found: once for each request, and as the engine counts them,
    which may look a waiting request up again and again."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    host_hit_tokens: int = 0  # of those that were not found on the GPU
    counted_tokens: int = 0
    counted_hits: int = 0

    def count(self, tokens: int, found: int, times: int = 1) -> None:
        self.counted_tokens += tokens * times
        self.counted_hits += found * times


class PrefixCache:
    """`page_tokens`: prompts share whole pages. Of `tokens` in all, `locked_tokens` are read by running requests; the
    rest goes when somebody needs the room (`evict`)."""

    def __init__(self, page_tokens: int = 1, policy: str = "lru") -> None:
        self.page_tokens = page_tokens
        self.goes: Callable[[Text, int], None] | None = None  # told of each text whose end, so far, is forgotten
        self._key = EVICTION[policy]
        self._entries: dict[Text, _Entry] = {}
        self._order: list[tuple[tuple[int, ...], int, _Entry]] = []  # a heap; what has been used since is out of date
        self._unshared: deque[_Part] = deque()
        self._now = self._offered = 0
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
        return sum(
            max(0, end - max(start, self._entries[node].locks.last)) for node, start, end in text.stretches(tokens)
        )

    def lock(self, text: Text, tokens: int) -> None:
        """A running request reads the first so many tokens, which are there."""
        if tokens:
            self._use(text, tokens, 1)

    def extend(self, text: Text, before: int, tokens: int) -> None:
        """A request that had the first `before` tokens locked has computed on up to `tokens`, and locks these."""
        self._use(text, tokens, 1, before)

    def release(self, text: Text, tokens: int, kept: int = 0) -> None:
        """Whoever locked so many tokens reads them no more. `kept`: how far the text is there by now."""
        if tokens:
            used = self._use(text, max(tokens, kept), 0)
            self._let_go(text, tokens)
            for entry in used:
                self._offer(entry)

    def add(self, text: Text, tokens: int) -> None:
        """So many tokens of a prompt are there, and nobody reads them."""
        for entry in self._use(text, tokens, 0):
            self._offer(entry)

    def add_unshared(self, tokens: int) -> None:
        """So many tokens are there that nobody will ask for again, such as an answer that its user does not send back:
        in the way until they go."""
        if tokens:
            self._now += 1
            self._unshared.append(_Part(tokens, self._now, 1))
            self.tokens += tokens

    def evict(self, tokens: float) -> int:
        """Forgets so many tokens, or as many as nobody reads; how many."""
        gone, order, unshared = 0, self._order, self._unshared
        while gone < tokens and (order or unshared):
            lacking = math.ceil((tokens - gone) / self.page_tokens) * self.page_tokens
            if unshared and (not order or self._key(unshared[0]) < order[0][0]):
                cut = min(unshared[0].end, lacking)
                unshared[0].end -= cut
                if not unshared[0].end:
                    unshared.popleft()
            else:
                key, _, entry = order[0]
                room = entry.loosest()
                if room <= 0 or key != self._key(entry.parts[-1]) or self._entries.get(entry.text) is not entry:
                    heapq.heappop(order)
                    continue
                cut = min(room, lacking)
                if self.goes is not None:
                    self.goes(entry.text, entry.end)
                entry.cut(cut)
                if cut == room:
                    heapq.heappop(order)
                    self._offer(entry)
                if not entry.parts:
                    self._forget(entry)
            gone += cut
            self.tokens -= cut
        return gone

    def clear(self) -> None:
        self.evict(self.idle_tokens)

    def _use(self, text: Text, tokens: int, locks: int, locked: int = 0) -> list[_Entry]:
        """Entries of a prompt, the oldest first, all of it there and used now; locked up to its end, if `locks`, in
        place of its first `locked` tokens."""
        self._now += 1
        found = []
        for node, start, end in text.stretches(tokens):
            entry = self._entries.get(node)
            if entry is None:
                entry = self._entries[node] = _Entry(node)
                if node.parent is not None:
                    self._entries[node.parent].branches.hold(start)
            if end > entry.end:
                self.tokens += end - entry.end
            entry.use(end, self._now)
            if locks and end > locked:
                ends = entry.locks
                if end > ends.last:
                    self.locked_tokens += end - ends.last
                ends.hold(end)
                if locked > start:
                    ends.let_go(locked, start)
            found.append(entry)
        return found

    def _let_go(self, text: Text, tokens: int) -> None:
        for node, start, end in text.stretches(tokens):
            entry = self._entries[node]
            before = entry.locks.last
            entry.locks.let_go(end, start)
            self.locked_tokens -= before - entry.locks.last

    def _offer(self, entry: _Entry) -> None:
        """Puts it among those that may go, where some of it may."""
        if entry.loosest() > 0:
            self._offered += 1
            heapq.heappush(self._order, (self._key(entry.parts[-1]), self._offered, entry))
            if len(self._order) > 64 + 4 * len(self._entries):
                self._tidy()

    def _tidy(self) -> None:
        """Drops what is out of date from the heap."""
        entries = [entry for entry in self._entries.values() if entry.loosest() > 0]
        self._order[:] = [(self._key(entry.parts[-1]), number, entry) for number, entry in enumerate(entries)]
        heapq.heapify(self._order)

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.text]
        if entry.text.parent is not None:
            parent = self._entries[entry.text.parent]
            parent.branches.let_go(entry.text.start, parent.text.start)
            self._offer(parent)


class HostTier:
    """KV in the host's memory, from where it comes back at `token_s` a token, one request after the other.

    It is written when it is computed, when somebody has found it, or when the GPU forgets it (SGLang's write policies;
    vLLM's own tier does the first).
    """

    def __init__(self, tokens: int, token_s: float, policy: str, cache: PrefixCache) -> None:
        self.capacity_tokens, self._token_s, self._policy = tokens, token_s, policy
        self.kept = PrefixCache(cache.page_tokens)
        self._free_s = 0.0
        if policy == "write_back":
            cache.goes = self._keep

    def computed(self, text: Text, tokens: int) -> None:
        if self._policy == "write_through":
            self._keep(text, tokens)

    def computed_unshared(self, tokens: int) -> None:
        if self._policy == "write_through":
            self.kept.add_unshared(tokens)
            self.kept.evict(self.kept.tokens - self.capacity_tokens)

    def found(self, text: Text, tokens: int) -> None:
        if self._policy == "write_through_selective":
            self._keep(text, tokens)

    def ready_s(self, at_s: float, tokens: int) -> float:
        """When so many tokens that are asked for now are on the GPU."""
        self._free_s = max(self._free_s, at_s) + tokens * self._token_s
        return self._free_s

    def _keep(self, text: Text, tokens: int) -> None:
        self.kept.add(text, tokens)
        self.kept.evict(self.kept.tokens - self.capacity_tokens)
