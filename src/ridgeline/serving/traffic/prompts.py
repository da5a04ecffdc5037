"""Request bodies of a wanted length, made without a tokenizer.

Prompts are strings of common four-letter English words, each of which is one token (with its leading space) in the
vocabularies of current models, so n words are close to n tokens; the server's own count is what gets reported.
All words have one length in bytes, so a prompt of any size is a slice and costs the sender next to nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from ridgeline.errors import InputError
from ridgeline.serving.model.vocabulary import WORDS
from ridgeline.serving.traffic.traffic import Arrival

_STEP = 5  # bytes of a space and a word
_POOL_WORDS = 1 << 13
# Enough words at the front to tell every request of a long run apart, so that no prompt finds itself in a cache.
_NAME_WORDS = 4


class Prompts:
    """Prompt text for each arrival: the same salt and number give the same text, another salt gives none of it again.

    `shared_tokens` words open every prompt alike; prompts of one text begin with the same words.
    """

    def __init__(self, salt: int, shared_tokens: int = 0) -> None:
        rng = random.Random(salt)
        self._pool = _words(rng, _POOL_WORDS)
        self._salt = salt
        self._shared = _words(rng, shared_tokens)

    def text(self, arrival: Arrival) -> bytes:
        tokens = arrival.input_tokens
        opening = self._shared[: tokens * _STEP]
        left = tokens - len(opening) // _STEP
        if left <= 0:
            return opening
        if arrival.text is None:
            return opening + self._words(2 * arrival.number, 0, left)
        pieces = arrival.text.stretches(left)
        return opening + b"".join(self._words(2 * text.name + 1, start, end) for text, start, end in pieces)

    def _words(self, name: int, start: int, end: int) -> bytes:
        """Words `start` to `end` of what goes by this name. The first of them tell it from what goes by others."""
        opening = self._opening(name)[: (end - start) * _STEP]
        start += len(opening) // _STEP
        first, size = (name * 40503 + self._salt + start) % _POOL_WORDS * _STEP, (end - start) * _STEP
        text = self._pool[first : first + size]
        if len(text) < size:
            text += self._pool * (1 + (size - len(text)) // len(self._pool))
        return opening + text[:size]

    def _opening(self, name: int) -> bytes:
        # the salt turns the digits, so request 7 of one run does not open like request 7 of the next
        digits, words = name + self._salt * 7919, []
        for _ in range(_NAME_WORDS):
            digits, digit = divmod(digits, len(WORDS))
            words.append(WORDS[digit])
        return (" " + " ".join(words)).encode()


def _words(rng: random.Random, count: int) -> bytes:
    return "".join(f" {word}" for word in rng.choices(WORDS, k=count)).encode()


class RequestBodies:
    """Turns arrivals into JSON bodies for one interface; all but prompt and length is encoded once."""

    def __init__(
        self,
        prompts: Prompts,
        interface: str,
        model: str,
        stream: bool = True,
        ignore_eos: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._prompts = prompts
        frame = _frame(interface, model, stream, ignore_eos)
        for name, value in (extra or {}).items():
            if interface == "generate" and name not in ("stream", "sampling_params"):
                frame["sampling_params"] |= {name: value}  # type: ignore[operator]
            else:
                frame[name] = value
        before, _, rest = json.dumps(frame).partition("@prompt@")
        between, _, after = rest.partition('"@length@"')
        if not after:
            raise InputError("--body may not replace the prompt or the output length; use --traffic and --max-tokens")
        self._parts = before.encode(), between.encode(), after.encode()

    def body(self, arrival: Arrival) -> bytes:
        before, between, after = self._parts
        return b"%b%b%b%d%b" % (before, self._prompts.text(arrival), between, arrival.output_tokens, after)


def _frame(interface: str, model: str, stream: bool, ignore_eos: bool) -> dict[str, object]:
    # the prompt stands before the length in each of these; Bodies relies on that order
    if interface == "generate":
        sampling: dict[str, object] = {"max_new_tokens": "@length@"} | ({"ignore_eos": True} if ignore_eos else {})
        return {"text": "@prompt@", "sampling_params": sampling, "stream": stream}
    frame: dict[str, object] = {"model": model} if model else {}
    if interface == "chat":
        frame["messages"] = [{"role": "user", "content": "@prompt@"}]
    else:
        frame["prompt"] = "@prompt@"
    frame["max_tokens"] = "@length@"
    frame["stream"] = stream
    if stream:
        frame["stream_options"] = {"include_usage": True}
    if ignore_eos:
        frame["ignore_eos"] = True
    return frame
