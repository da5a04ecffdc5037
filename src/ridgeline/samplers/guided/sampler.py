"""The guided sampler: a model of all that was learned chooses the trial that promises most for its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ridgeline.errors import InputError
from ridgeline.records.expression import Expression, ExpressionError
from ridgeline.records.lesson import Lesson, Proposal, Prospect
from ridgeline.records.space import Point, Space, point_key
from ridgeline.samplers.base import Outlook, Refusal
from ridgeline.samplers.encoding import encode
from ridgeline.samplers.filling import filling
from ridgeline.samplers.options import GuidedOptions, read_options
from ridgeline.samplers.walk import Walk, keys, legality

if TYPE_CHECKING:
    from ridgeline.samplers.guided.chooser import Chooser

FEWEST_PASSED = 2  # results without which a model says nothing
NOTHING_NEW = "space-filling, since the model proposed nothing new that is legal"
OFFERED = 50  # points that fill the space, of which one that may pass is taken


class GuidedSampler:
    """Space-filling until `startup` points are told or pending, then expected improvement per cost x chance to pass.

    Where something is expected of the points, the model is asked from the first trial on.
    """

    form = GuidedOptions

    def __init__(self, space: Space, seed: int, options: Mapping[str, object], refusal: Refusal) -> None:
        self._options = read_options(GuidedOptions, options)
        _check_formula(self._options.expect, space)
        self._space, self._seed = space, seed
        self._legal = legality(space, refusal)
        self._walk = Walk(filling(space, seed, self._legal))
        self._told: set[str] = set()
        self._lessons: list[Lesson] = []
        self._outlook: Outlook | None = None
        self._earlier: list[Lesson] = []
        self._chooser: Chooser | None = None

    def expect(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def recall(self, earlier: Sequence[Lesson]) -> None:
        # lessons of another space guide nobody, and the first trials must not rest on them
        self._earlier = [lesson for lesson in earlier if encode(self._space, lesson.point) is not None]

    def forget(self) -> None:
        self._told, self._lessons = set(), []
        self._walk = Walk(filling(self._space, self._seed, self._legal))
        if self._chooser is not None:
            self._chooser.forget()

    def tell(self, lesson: Lesson) -> None:
        self._told.add(point_key(lesson.point))
        if encode(self._space, lesson.point) is not None:
            score = lesson.score if lesson.score is not None and math.isfinite(lesson.score) else None
            self._lessons.append(Lesson(lesson.point, score, lesson.node_s))

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        flying = keys(pending)
        filled = self._walk.first_free(self._told, flying)
        if filled is None:
            return None
        known, passed = len(self._told | flying), sum(lesson.score is not None for lesson in self._lessons)
        if (self._outlook is not None or self._earlier) and passed:
            from ridgeline.samplers.guided.stances import Stance, stance_of  # numpy: not before it is needed

            stance = stance_of(self._choosing().beliefs(self._lessons), known, bool(self._earlier))
            if stance is not Stance.NOT_AT_ALL:
                chosen = self._choosing().choice(self._lessons, pending, self._told | flying, stance)
                return chosen or Proposal(filled, NOTHING_NEW)
        startup = self._options.startup
        if known < startup:
            return Proposal(self._first(filled, pending), f"space-filling start, {known + 1} of {startup}")
        if passed < FEWEST_PASSED:
            return Proposal(self._first(filled, pending), "space-filling, since too little has passed to learn from")
        chosen = self._choosing().choice(self._lessons, pending, self._told | flying)
        return chosen or Proposal(filled, NOTHING_NEW)

    def _first(self, filled: Point, pending: Sequence[Point]) -> Point:
        """`filled`, or another of the first that fill the space, where some settings passed and others failed."""
        passed = {lesson.score is not None for lesson in self._lessons}
        if len(passed) < 2:
            return filled
        from ridgeline.samplers.guided.start import careful_start  # numpy: not before it is needed

        own = [point for point in pending if encode(self._space, point) is not None]
        offered = self._walk.free(self._told, keys(pending), OFFERED)
        return careful_start(self._space, self._lessons, own, offered)

    def prospect(self, pending: Sequence[Point] = ()) -> Prospect | None:
        passed = sum(lesson.score is not None for lesson in self._lessons)
        if not self._options.worth or passed < max(self._options.startup, FEWEST_PASSED):
            return None
        from ridgeline.samplers.guided.stances import Stance, mixed  # numpy: not before it is needed

        def prospect(stance: Stance) -> Prospect:
            return self._choosing().prospect(self._lessons, self._told | keys(pending), self._options.worth, stance)

        return mixed(self._choosing().beliefs(self._lessons), prospect)

    def _choosing(self) -> Chooser:
        if self._chooser is None:
            from ridgeline.samplers.guided.chooser import Chooser  # numpy: not before it is needed

            self._chooser = Chooser(self._space, self._seed, self._legal, self._outlook, self._earlier)
        return self._chooser


def _check_formula(text: str, space: Space) -> None:
    """The campaign works it out; here it is only seen to that it can."""
    if not text:
        return
    try:
        unknown = sorted(Expression.parse(text).names - set(space.names))
    except ExpressionError as error:
        raise InputError(f"expect: {error}") from None
    if unknown:
        known = ", ".join(space.names)
        raise InputError(f"expect: {unknown[0]} is not a knob or a derived value; known: {known}")
