"""What stands between users and an engine's scheduler: HTTP, tokenizer, detokenizer and the stream back.

Each is a Python process with a queue. A tokenizer takes one prompt at a time, so that prompts sent together wait for
each other; a detokenizer and the server's loop take one stream after another, so that a token waits for those of all
streams in its step. A scheduler that works beside the GPU has launched its next step before it looks for requests: who
comes meanwhile waits for that step, too. docs/twin.md says where the priors come from.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.settings import EngineSettings
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.twin.priors import TOKENISE_S


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Service times of one server. `factor` is what calibration multiplies all of them by."""

    accept_s: float  # HTTP and the hand-overs between processes, for each request
    token_s: float  # tokenising one token of a prompt: one prompt after another
    hand_over_s: float  # packing, sending and unpacking one token of a prompt: nobody waits for another's
    stream_s: float  # what each stream of a step adds before its tokens are seen
    intake_s: float = 0.0  # what a request takes of the process that sends tokens, too
    send_s: float = 0.0  # what a token takes of it
    tokenizers: int = 1
    detokenizers: int = 1
    overlap: bool = True  # the scheduler is one step ahead of the GPU
    factor: float = 1.0
    computed_s: float = 0.0  # each token of a prompt that no cache has: nobody waits for another's

    @classmethod
    def of(cls, settings: EngineSettings, layout: Layout, overlap: bool, factor: float = 1.0) -> FrontEnd:
        costs = engine_named(settings.engine).front_end_costs(settings.version)
        accept_s = costs.accept_s + (costs.ranks_accept_s if layout.tp * layout.pp > 1 else 0.0)
        return cls(
            accept_s,
            TOKENISE_S,
            costs.hand_over_s,
            costs.stream_s,
            factor * costs.intake_s / settings.tokenizer_workers,
            factor * costs.send_s / settings.tokenizer_workers / settings.stream_interval,
            settings.tokenizer_workers,
            settings.detokenizer_workers,
            overlap,
            factor,
            costs.computed_s,
        )

    def late_s(self, others: int, step_s: float, computed: int = 0) -> float:
        """How much later than it is made a token is seen, beside those of `others`, who decode in steps of `step_s`, of
        a prompt with so many tokens that were computed."""
        sent_s = self.stream_s * (others + 1) / self.detokenizers + self.computed_s * computed
        return self.factor * sent_s + (step_s if self.overlap and others else 0.0)


class Tokenizers:
    """The prompts of one run on their way to the scheduler, each handed to the tokenizer that is free first."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._accept_s = front_end.accept_s * front_end.factor
        self._token_s = front_end.token_s * front_end.factor
        self._hand_over_s = front_end.hand_over_s * front_end.factor
        self._computed_s = front_end.computed_s * front_end.factor
        self._free_s = [0.0] * front_end.tokenizers

    def ready_s(self, at_s: float, tokens: int, shared: bool = False) -> float:
        """When a prompt that is sent now reaches the scheduler. Calls come in the order of their times. What of a
        `shared` one is computed is known later (`FrontEnd.late_s`); of others it is all."""
        start_s = max(at_s, self._free_s[0])
        done_s = start_s + tokens * self._token_s
        heapq.heapreplace(self._free_s, done_s)
        return done_s + self._accept_s + tokens * (self._hand_over_s + (0.0 if shared else self._computed_s))

    def all_ready(self, due: Sequence[Arrival]) -> list[tuple[float, Arrival]]:
        """Arrivals in the order in which they reach the scheduler, with those times."""
        ready = [(self.ready_s(a.at_s, a.input_tokens, a.text is not None), a) for a in due]
        return sorted(ready, key=lambda pair: (pair[0], pair[1].number))


NO_FRONT_END = FrontEnd(0.0, 0.0, 0.0, 0.0, overlap=False)
