"""What prompts have in common: streams of text that branch off one another.

A prompt is the first so many tokens of a text. Two prompts of one text share the whole of the shorter, and prompts of
two texts what came before these parted. A chat that grows is one text; a compacted history or a sub-agent branches off.
Nobody stores the words: whoever needs them makes them from the text's name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence


class Text:
    """A stream of tokens that begins as `parent` does, up to `start`, and goes on in its own way without an end.

    Texts are compared by identity; `name` makes the words and tells texts of one traffic apart.
    """

    __slots__ = ("name", "parent", "start")
    name: int
    parent: Text | None
    start: int

    def __init__(self, name: int, parent: Text | None = None, start: int = 0) -> None:
        while parent is not None and start <= parent.start:
            parent = parent.parent
        self.name, self.parent, self.start = name, parent, start if parent is not None else 0

    def __repr__(self) -> str:
        return f"Text({self.name}, {self.parent!r}, {self.start})" if self.parent else f"Text({self.name})"

    def __reduce__(self) -> tuple[object, ...]:
        # a chain of hundreds would be too deep for pickle
        return _of_lineage, (tuple((text.name, text.start) for text in self.lineage()),)

    def lineage(self) -> list[Text]:
        """Where it comes from, the oldest first, itself last."""
        found = [self]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found[::-1]

    def stretches(self, tokens: int) -> Iterator[tuple[Text, int, int]]:
        """What a prompt of so many tokens consists of: a text, and from which of its tokens to which."""
        lineage = self.lineage()
        for text, later in zip(lineage, [*lineage[1:], None], strict=True):
            end = tokens if later is None else min(tokens, later.start)
            if end > text.start or text is lineage[0]:
                yield text, text.start, end


def _of_lineage(lineage: Sequence[tuple[int, int]]) -> Text:
    text: Text | None = None
    for name, start in lineage:
        text = Text(name, text, start)
    assert text is not None
    return text


class TextsByBlock:
    """Texts of prompts that a trace describes by names of their blocks, each of `block_tokens` tokens from the
    beginning; the last may be cut short. A block counts as shared only when all before it are."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._ids: dict[tuple[int, Hashable], int] = {}
        self._texts: list[Text] = []  # by block: the text in which it lies
        self._ends: dict[Text, int] = {}  # its last block so far
        self._made = 0

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, names: Sequence[Hashable], tokens: int) -> Text:
        """The text of a prompt of so many tokens, as much as it shares with those asked for before.

        One that begins with all blocks of an earlier one, and has more, goes on in its text.
        """
        ids, last, shared = self._ids, -1, 0
        for name in names:
            found = ids.get((last, name))
            if found is None:
                break
            last, shared = found, shared + 1
        parent = self._texts[last] if shared else None
        if parent is not None and shared == len(names) and shared * self.block_tokens >= tokens:
            return parent
        if parent is not None and shared < len(names) and self._ends[parent] == last:
            text = parent
        else:
            text = Text(self._made, parent, shared * self.block_tokens)
            self._made += 1
        for name in names[shared:]:
            block = len(self._texts)
            ids[(last, name)] = block
            self._texts.append(text)
            last = block
        self._ends[text] = last
        return text
