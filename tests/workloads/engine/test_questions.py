"""No setting wins by being wrong: questions are asked after the load and held against the baseline's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.records.outcome import Kind
from ridgeline.records.study import Study
from ridgeline.records.trial import Stage, Trial
from ridgeline.workloads.base import Workload
from tests.workloads.engine.studies import run_for_real, sglang_serve, study, trial, with_standin

LOAD = {"input_tokens": 12, "output_tokens": 4, "requests": 4}
KNOBS = {"attention_backend": ["fa3", "triton", "wave"]}


def asked(folder: Path, count: int = 400, **options: object) -> tuple[Study, Workload]:
    lines = [json.dumps({"prompt": f"what is {number}", "answer": str(number)}) for number in range(count)]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "text.txt").write_text("a text of some words " * 40)
    chosen = {"questions": {"file": "questions.jsonl", "allowed_loss": 0.03}, "perplexity": "text.txt", **options}
    made = study(folder, "sglang-serve", KNOBS, goal="output_tok_s", traffic=LOAD, warmup=0, **chosen)
    return with_standin(made), sglang_serve(with_standin(made))


def test_a_setting_that_answers_worse_is_refused_and_an_equal_one_is_not(tmp_path: Path) -> None:
    of, workload = asked(tmp_path)
    _, baseline = run_for_real(workload, of, tmp_path / "runs" / "0001-fa3")
    assert baseline.wrong == "" and baseline.metrics["accuracy"] == 1.0
    assert baseline.metrics["questions_asked"] == 400, "the first run answers all: the others are held against it"
    assert baseline.metrics["perplexity"] == pytest.approx(2.718, abs=0.001)

    _, equal = run_for_real(workload, of, tmp_path / "runs" / "0002-triton", attention_backend="triton")
    assert equal.wrong == "" and equal.metrics["accuracy_change"] == 0.0
    assert equal.metrics["answer_agreement"] == 1.0
    assert equal.metrics["questions_asked"] < 400, "clearly equal settings cost few questions"

    outcome, worse = run_for_real(workload, of, tmp_path / "runs" / "0003-wrong", attention_backend="wave")
    assert worse.metrics["accuracy_change"] == pytest.approx(-0.05, abs=0.02)
    assert worse.metrics["perplexity"] > 3
    assert outcome.kind is Kind.WRONG
    assert "questions right" in outcome.reason and "points lost against the baseline's answers" in outcome.reason


def test_an_engine_that_refuses_log_probabilities_says_so_and_what_to_change(tmp_path: Path) -> None:
    of, workload = asked(tmp_path)
    outcome, _ = run_for_real(workload, of, tmp_path / "runs" / "0001", attention_backend="no-logprobs")
    assert outcome.kind is not Kind.OK
    assert "refuses log probabilities of a prompt (400: Gaudi doesn't support logprobs" in str(outcome)
    assert "take `perplexity` out of the workload, and measure accuracy by `questions` instead" in str(outcome)


def test_an_engine_that_dies_of_a_question_is_not_said_to_refuse_it(tmp_path: Path) -> None:
    of, workload = asked(tmp_path)
    outcome, _ = run_for_real(workload, of, tmp_path / "runs" / "0001", attention_backend="dies-when-asked")
    assert outcome.kind is Kind.OOM_RUN, outcome
    assert "perplexity" not in str(outcome)


def test_questions_do_not_count_as_load(tmp_path: Path) -> None:
    """Their prompts begin alike, as examples before a question do: found in a cache, they would spoil the figures."""
    of, workload = asked(tmp_path)
    _, reading = run_for_real(workload, of, tmp_path / "runs" / "0001-fa3")
    assert "cache" not in reading.contaminated and reading.metrics["successful_requests"] == 4
    measured = json.loads((tmp_path / "runs" / "0001-fa3" / "measured.json").read_text())
    assert measured["measured_to_line"] >= measured["measured_from_line"]


def session_of(workload: Workload, made: Trial, folder: Path) -> dict:
    workload.prepare(made, folder)
    found: dict = json.loads((folder / "session.json").read_text())
    return found


def test_what_passed_in_the_search_is_not_asked_again(tmp_path: Path) -> None:
    of, workload = asked(tmp_path)
    changed = trial(of, attention_backend="triton")
    assert session_of(workload, trial(of), tmp_path / "runs" / "0001-fa3")["questions"]["baseline"]
    assert not session_of(workload, changed, tmp_path / "runs" / "0002-triton")["questions"]["baseline"]
    confirm = Trial(3, changed.point, changed.settings, Stage.CONFIRM, "test")
    assert "questions" not in session_of(workload, confirm, tmp_path / "runs" / "0003-triton")


def test_the_baseline_answers_once(tmp_path: Path) -> None:
    of, workload = asked(tmp_path)
    (tmp_path / "runs" / "0001-fa3").mkdir(parents=True)
    (tmp_path / "runs" / "0001-fa3" / "answers.jsonl").write_text('{"question": 0, "right": true, "answer": "0"}\n')
    _, again = run_for_real(workload, of, tmp_path / "runs" / "0002-fa3")
    assert "questions_asked" not in again.metrics and "perplexity" in again.metrics


def test_too_few_questions_are_refused_before_anything_runs(tmp_path: Path) -> None:
    _, workload = asked(tmp_path, count=60, questions="questions.jsonl")
    (problem,) = workload.problems()
    assert problem.where == ("workload", "questions")
    assert "60 questions cannot rule out a loss of 0.02" in problem.message
    assert "about 760 can, or allow more with `allowed_loss`" in problem.message
    (tmp_path / "questions.jsonl").write_text("{}\n")
    _, workload = asked(tmp_path, count=60, questions={"file": "questions.jsonl", "allowed_loss": 0.2})
    assert list(workload.problems()) == []


@pytest.mark.parametrize("text", ["", '{"prompt": "x"}\n'])
def test_a_file_without_questions_is_refused_before_anything_runs(tmp_path: Path, text: str) -> None:
    of, _ = asked(tmp_path)
    (tmp_path / "questions.jsonl").write_text(text)
    assert "questions.jsonl" in sglang_serve(of).problems()[0].message
