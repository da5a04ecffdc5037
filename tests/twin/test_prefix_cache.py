"""What a prefix cache finds and what it forgets first, beside one that keeps every token by itself."""

from __future__ import annotations

import random

import pytest

from ridgeline.serving.traffic.texts import Text, TextsByBlock
from ridgeline.serving.twin.prefix_cache import EVICTION, PrefixCache


def filled(cache: PrefixCache, *prompts: tuple[Text, int]) -> PrefixCache:
    for text, tokens in prompts:
        cache.add(text, tokens)
    return cache


def test_a_prompt_finds_what_it_has_in_common_with_others_and_computes_its_last_token() -> None:
    root = Text(0)
    branch = Text(1, root, 100)
    cache = filled(PrefixCache(), (branch, 250))
    assert cache.tokens == 250
    assert cache.matched(branch, 300) == 250 and cache.matched(branch, 180) == 179
    assert cache.matched(root, 400) == 100 and cache.matched(root, 100) == 99
    assert cache.matched(Text(2, branch, 200), 900) == 200 and cache.matched(Text(3, root, 40), 900) == 40
    assert cache.matched(Text(4), 900) == 0


def test_whole_pages_alone_are_shared() -> None:
    chat = Text(0)
    cache = filled(PrefixCache(page_tokens=16), (chat, 250))
    assert cache.matched(chat, 300) == 240 and cache.matched(chat, 240) == 224, (
        "the last page is computed for its last token"
    )


def test_the_end_of_what_was_used_longest_ago_goes_first() -> None:
    root = Text(0)
    old, young = Text(1, root, 50), Text(2, root, 80)
    cache = filled(PrefixCache(), (root, 120), (old, 150), (young, 180))
    assert cache.tokens == 120 + 100 + 100
    cache.evict(10)
    assert cache.matched(root, 500) == 110, "the first's own end, past where others branch off"
    cache.evict(30)
    assert cache.matched(root, 500) == 80
    cache.evict(60)
    assert cache.matched(old, 500) == 90 and cache.matched(young, 500) == 180
    cache.evict(140)
    assert cache.matched(old, 500) == 50 and cache.tokens == 80
    cache.evict(1e9)
    assert cache.tokens == 0 and len(cache) == 0


def test_what_is_read_stays_and_goes_once_it_is_read_no_more() -> None:
    chat, other = Text(0), Text(1)
    cache = filled(PrefixCache(), (chat, 100), (other, 100))
    cache.lock(chat, 60)
    assert cache.evict(1e9) == 140 and cache.tokens == cache.locked_tokens == 60
    cache.extend(chat, 60, 90)
    assert cache.locked_tokens == 90 and cache.evict(1) == 0
    cache.release(chat, 90, kept=120)
    assert cache.tokens == 120 and cache.locked_tokens == 0 and cache.evict(1e9) == 120


@pytest.mark.parametrize(
    ("policy", "first"),
    [("lru", 1), ("lfu", 2), ("slru", 2)],
)
def test_policies_name_who_goes_first(policy: str, first: int) -> None:
    texts = {n: Text(n) for n in (1, 2, 3)}
    cache = filled(PrefixCache(policy=policy), *((text, 100) for text in texts.values()))
    for number in (1, 1, 2, 3, 3):
        if number != 2 or policy == "lru":
            cache.add(texts[number], 100)
    cache.evict(100)
    assert {n for n, text in texts.items() if not cache.matched(text, 101)} == {first}
    assert policy in EVICTION


class Exact:
    """Every token by itself, with the time at which it was last used."""

    def __init__(self) -> None:
        self.used: dict[tuple[int, int], int] = {}
        self.now = 0

    @staticmethod
    def tokens(text: Text, count: int) -> list[tuple[int, int]]:
        return [(node.name, at) for node, start, end in text.stretches(count) for at in range(start, end)]

    def add(self, text: Text, count: int) -> None:
        self.now += 1
        self.used |= dict.fromkeys(self.tokens(text, count), self.now)

    def matched(self, text: Text, count: int) -> int:
        names = self.tokens(text, count - 1)
        return next((n for n, name in enumerate(names) if name not in self.used), len(names))

    def evict(self, count: int) -> None:
        oldest = sorted(self.used, key=lambda name: (self.used[name], -name[1]))
        for name in oldest[:count]:
            del self.used[name]


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_what_one_that_keeps_each_token_finds(seed: int) -> None:
    draw = random.Random(seed)
    texts = [Text(0)]
    for name in range(1, 9):
        texts.append(Text(name, draw.choice([*texts, None]), draw.randint(1, 60)))
    cache, exact = PrefixCache(), Exact()
    for _ in range(300):
        text, count = draw.choice(texts), draw.randint(2, 120)
        assert cache.matched(text, count) == exact.matched(text, count)
        cache.add(text, count)
        exact.add(text, count)
        assert cache.tokens == len(exact.used)
        if cache.tokens > 250:
            exact.evict(cache.tokens - 250)
            cache.evict(cache.tokens - 250)


def test_texts_of_blocks_share_as_many_as_they_begin_with_alike() -> None:
    texts = TextsByBlock(64)
    first = texts.text((1, 2, 3), 180)
    assert texts.text((1, 2, 3), 180) is first
    grown = texts.text((1, 2, 4, 5), 250)
    assert (grown.parent, grown.start) == (first, 128)
    assert texts.text((1, 2), 150).start == 128, "past its blocks a prompt is its own"
    assert texts.text((9, 2, 3), 180).parent is None, "a block counts only where all before it are the same"
    assert texts.text((1, 2, 4, 6), 256).lineage() == [first, grown, texts.text((1, 2, 4, 6), 256)]
