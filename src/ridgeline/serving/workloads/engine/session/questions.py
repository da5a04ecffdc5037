"""After the measured load: questions with known answers, held against those of the study's first run."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import read_text, write_whole
from ridgeline.serving.load.questions import Question, ask, perplexity, read_questions, score, served_model
from ridgeline.serving.workloads.engine.reading import ANSWERS
from ridgeline.stats.accuracy import AccuracyChange, accuracy_change, looks, questions_needed

_AT_ONCE = 16
_ORDER = 20  # the seed of the order: early looks must see a fair sample of a file that is sorted by subject
_KEPT_CHARS = 2000  # of an answer

_Answers = dict[int, tuple[bool, str]]  # by the question's place in the file: whether it is right, and the text


def ask_questions(url: str, folder: Path, spec: Mapping[str, Any], measured: dict[str, Any]) -> None:
    """Adds to `measured` what the session's questions and text say of the server's accuracy."""
    asked, text = spec.get("questions"), spec.get("perplexity")
    model = served_model(url)
    if text:
        measured["perplexity"] = perplexity(url, model, read_text(Path(str(text))), _AT_ONCE)
    if asked:
        first = next((path for path in sorted(folder.parent.glob(f"*/{ANSWERS}")) if path.parent != folder), None)
        if first is None or asked["all"] or not asked["baseline"]:
            measured["questions"] = _Examination(url, model, folder, asked, first).run()


class _Examination:
    """The questions in a fixed order: all where nobody answered them before, else as many as it takes.

    `first` are the answers of the study's first run, with which those of every other are compared.
    """

    def __init__(self, url: str, model: str, folder: Path, asked: Mapping[str, Any], first: Path | None) -> None:
        self._url, self._model, self._folder, self._asked = url, model, folder, asked
        scorer = str(asked["scorer"])
        self._scorer = [sys.executable, scorer] if scorer.endswith(".py") else [scorer] if scorer else []
        self._questions = read_questions(Path(asked["file"]), scored=bool(scorer))
        self._order = random.Random(_ORDER).sample(range(len(self._questions)), len(self._questions))[: asked["most"]]
        self._reference = _read_answers(first) if first is not None else {}

    def run(self) -> dict[str, Any]:
        answers: _Answers = {}
        change: AccuracyChange | None = None
        order = [number for number in self._order if number in self._reference] if self._reference else self._order
        for end in looks(len(order)):
            answers |= self._answers(order[len(answers) : end])
            if self._reference:
                change = self._compared(answers, len(order))
                if change.decision != "open" and not self._asked["all"]:
                    break
        lines = [{"question": n, "right": right, "answer": text} for n, (right, text) in answers.items()]
        write_whole(self._folder / ANSWERS, "".join(json.dumps(line) + "\n" for line in lines))
        right = sum(right for right, _ in answers.values())
        found: dict[str, Any] = {"questions_asked": len(answers), "accuracy": right / len(answers)}
        return found | (self._judged(answers, change) if change is not None else {})

    def _answers(self, numbers: list[int]) -> _Answers:
        questions: list[Question] = [self._questions[n] for n in numbers]
        texts = ask(self._url, self._model, questions, int(self._asked["max_tokens"]), _AT_ONCE)
        rights = score(questions, texts, self._scorer)
        return {n: (right, text[:_KEPT_CHARS]) for n, right, text in zip(numbers, rights, texts, strict=True)}

    def _compared(self, answers: _Answers, total: int) -> AccuracyChange:
        pairs = [(self._reference[n][0], right) for n, (right, _) in answers.items()]
        broken, fixed = pairs.count((True, False)), pairs.count((False, True))
        return accuracy_change(len(answers), broken, fixed, total, float(self._asked["allowed_loss"]))

    def _judged(self, answers: _Answers, change: AccuracyChange) -> dict[str, Any]:
        allowed = float(self._asked["allowed_loss"])
        same = sum(text == self._reference[n][1] for n, (_, text) in answers.items())
        return {
            "accuracy_change": change.change,
            "answer_agreement": same / len(answers),
            "low": change.low,
            "high": change.high,
            "decision": change.decision,
            "allowed_loss": allowed,
            "needed": questions_needed(allowed, (change.broken + change.fixed) / change.asked),
        }


def _read_answers(path: Path) -> _Answers:
    try:
        rows = [json.loads(line) for line in read_text(path).splitlines()]
        return {int(row["question"]): (bool(row["right"]), str(row["answer"])) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        name = os.path.relpath(path)
        raise InputError(f"{name}: the baseline's answers cannot be read ({error}); start a new study") from None
