"""On a real engine: a setting that changes the answers is refused, however fast it is, and one that does not passes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from ridgeline.load.questions import Question, ask, perplexity
from ridgeline.records.outcome import Kind
from ridgeline.study.history import read_history
from tests.journeys.vllm_engine import (
    ENGINE,
    ENV,
    free_port,
    missing,
    process,
    ridgeline,
    vllm_command,
    write_model,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,  # beside another engine the load generator may void its own run
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]

COUNT, TOKENS = 200, 4


def test_a_setting_that_changes_the_answers_is_refused(tmp_path: Path) -> None:
    """The answers are those of the model itself in float32; in bfloat16 a model of random weights gives others."""
    model, port, chance = write_model(tmp_path / "tiny"), free_port(), random.Random(4)
    prompts = ["".join(chance.choices("abcdefgh 0123", k=20)) for _ in range(COUNT)]
    command = vllm_command(model, port, "--max-model-len", "512", "--max-num-seqs", "16")
    with process(command, port, tmp_path / "server.log", ENV) as url:
        answers = ask(url, "tiny", [Question({"prompt": prompt}, {}) for prompt in prompts], TOKENS, 16)
        assert perplexity(url, "tiny", "".join(prompts), 4) > 1
    lines = [{"prompt": prompt, "answer": text} for prompt, text in zip(prompts, answers, strict=True)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = {"enforce_eager": True, "max_model_len": 512}
    workload = {
        "kind": "vllm-serve",
        "model": str(model),
        "load_format": "dummy",
        "engine": str(ENGINE),
        "flags": flags,
        "env": dict(ENV),
        "concurrency": 2,
        "traffic": {"input_tokens": 16, "output_tokens": 32, "requests": 8},
        "warmup": 2,
        "questions": {"file": "questions.jsonl", "max_tokens": TOKENS, "allowed_loss": 0.1},
    }
    study = {
        "version": 1,
        "name": "answers",
        "workload": workload,
        "space": {"dtype": ["float32", "bfloat16"], "max_num_seqs": [16, 8]},
        "rules": [{"refuse": 'dtype == "bfloat16" and max_num_seqs == 8', "because": "three runs are enough"}],
        "goal": {"maximize": "total_tok_s"},
        "baseline": {"dtype": "float32", "max_num_seqs": 16},
        "budget": {"trials": 2},
        "job": {"limit": 900},
        "stages": {
            "baseline": {"repeats": 1},
            "search": {"sampler": "grid", "sentinel_every": 0},
            "confirm": {"top": 0},
        },
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    done = ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path)
    while "the load generator voids its own run" in done.stderr:  # another program's turn: measured again
        done = ridgeline("resume", "out", cwd=tmp_path)
    history = read_history(tmp_path / "out")
    found = {
        (t.settings["dtype"], t.settings["max_num_seqs"]): run
        for run in history.runs.values()
        for t in (history.trials[run.trial],)
    }
    reasons = {key: str(run.outcome) for key, run in found.items()}
    baseline, fewer, other = (found[key] for key in (("float32", 16), ("float32", 8), ("bfloat16", 16)))
    assert baseline.metrics["questions_asked"] == COUNT, (reasons, done.stdout[-3000:])
    assert baseline.metrics["accuracy"] > 0.8, "a batch of another size may round otherwise"
    assert fewer.outcome.kind is not Kind.WRONG, reasons
    assert fewer.metrics["answer_agreement"] > 0.8
    assert other.outcome.kind is Kind.WRONG, reasons
    assert "points lost against the baseline's answers" in other.outcome.reason
