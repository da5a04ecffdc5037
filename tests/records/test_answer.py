"""What an answer is worth follows from one standing: what it lacks, and how a verb ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cli.text.answer import error_of
from ridgeline.errors import CannotJudge, NothingFound, ShownWorse
from ridgeline.records.answer import Answer, Candidate, Conclusion, Reference, Standing, Use

BASE = Reference("the baseline", {"x": 0}, 10.0)
FOUND = Candidate("the setting", 2, {"x": 3}, {"x": 3}, 12.0)


def answer(conclusion: str | None, candidate: Candidate | None = FOUND, **more: object) -> Answer:
    return replace(Answer("search", conclusion, "told", BASE, candidate), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "standing", "lacks"),
    [
        (answer(None), Standing.OPEN, "there is no answer yet: the study is not over"),
        (answer(None, stopped="the site is away"), Standing.OPEN, "there is no answer: the site is away"),
        (answer(None, use=Use.REFERENCE), Standing.OPEN, "there is no answer yet: the study is not over"),
        (answer(Conclusion.CONFIRMED), Standing.ANSWERED, ""),
        (answer(Conclusion.EDGE), Standing.ANSWERED, ""),
        (answer("a word of another package"), Standing.ANSWERED, ""),
        (answer(Conclusion.NO_DIFFERENCE, None), Standing.NOT_BETTER, "told"),
        (
            answer(Conclusion.NO_DIFFERENCE, use=Use.REFERENCE),
            Standing.KEEP,
            "no better setting was found; keep the baseline",
        ),
        (answer(Conclusion.NOTHING_PASSED, use=Use.REFERENCE), Standing.NOT_BETTER, "told"),
        (answer(Conclusion.UNCONFIRMED, use=Use.REFERENCE), Standing.UNCONFIRMED, "there is no answer: told"),
        (answer(Conclusion.UNFINISHED), Standing.UNCONFIRMED, "there is no answer: told"),
        (answer(Conclusion.UNCONFIRMED, unproven="cut"), Standing.NOT_BETTER, "told"),
        (answer(Conclusion.WORSE, shown=Standing.WORSE, why="keep A"), Standing.WORSE, "keep A"),
        (answer(Conclusion.UNCONFIRMED, shown=Standing.UNDECIDED, why="few"), Standing.UNDECIDED, "few"),
    ],
)
def test_what_is_lacking_follows_from_the_standing(found: Answer, standing: Standing, lacks: str) -> None:
    assert (found.standing, found.lacks) == (standing, lacks)
    left_with = {Standing.WORSE: ShownWorse, Standing.UNDECIDED: CannotJudge}.get(standing, NothingFound)
    assert error_of(found) is left_with
    assert found.as_json()["answered"] is (standing is Standing.ANSWERED)


def test_which_setting_is_to_be_used_is_one_thing() -> None:
    for use, (keep, offers) in {
        Use.CANDIDATE: (False, True),
        Use.REFERENCE: (True, False),
        Use.NEITHER: (False, False),
    }.items():
        found = answer(Conclusion.NO_DIFFERENCE, use=use)
        assert (found.keep, found.offers, found.as_json()["keep_baseline"]) == (keep, offers, keep)
        assert found.to_use == (BASE.point if keep else FOUND.point)


@pytest.mark.parametrize(
    "wrong",
    [
        {"conclusion": Conclusion.CONFIRMED, "use": Use.REFERENCE},
        {"conclusion": Conclusion.CONFIRMED, "shown": Standing.WORSE},
        {"conclusion": None, "shown": Standing.UNDECIDED},
        {"conclusion": Conclusion.WORSE, "shown": Standing.ANSWERED},
    ],
)
def test_an_answer_cannot_contradict_itself(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="setting"):
        answer(wrong.pop("conclusion"), **wrong)  # type: ignore[arg-type]
