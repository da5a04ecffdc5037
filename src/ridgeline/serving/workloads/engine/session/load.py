"""The engine under load: wait until it serves, warm it up with other traffic, measure, watch the machine meanwhile.

After the measured load come questions with known answers, held against those of the study's first run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.diagnose.readers.lines import TextFile
from ridgeline.errors import InputError
from ridgeline.files import read_text, write_whole
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.load.questions import Question, ask, perplexity, read_questions, score, served_model
from ridgeline.serving.node.monitor import Monitor
from ridgeline.serving.traffic.traffic import ClosedLoop
from ridgeline.serving.workloads.engine.options import Load
from ridgeline.serving.workloads.engine.reading import ANSWERS
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.process import EngineFailed, ExitDiagnosis
from ridgeline.stats.accuracy import AccuracyChange, accuracy_change, looks, questions_needed

POLL_S = 0.5
DYING_S = 30.0  # an engine whose scheduler died gathers evidence for some seconds before it ends itself
STOPPED = 128 + signal.SIGTERM
_OTHER = 7919  # added to seeds of traffic that must share nothing with the measured one


def await_ready(engine: node.EngineProcess, port: int, exit_diagnosis: ExitDiagnosis, limit_s: float) -> float:
    """Seconds until it served by health and by log. Failed says why it does not."""
    started, mark = time.monotonic(), exit_diagnosis.dialect.ready_line
    while not (node.healthy(port) and (not mark or _holds(exit_diagnosis.log, mark))):
        if engine.exit_code is not None:
            raise exit_diagnosis.failed(engine.exit_code)
        if time.monotonic() - started > limit_s:
            raise EngineFailed(FailureCause("not-ready", 0, f"not ready after {limit_s:g} s"))
        time.sleep(POLL_S)
    return round(time.monotonic() - started, 3)


def _holds(log: Path, mark: str) -> bool:
    return any(mark in line for line in TextFile(log))


def plan_of(load: Load, port: int, records_path: Path | None, dialect: ServingEngine) -> Any:
    """The measured load on the server at `port`."""
    from ridgeline.serving.load.bench import BenchPlan
    from ridgeline.serving.load.wire.endpoint import parse_endpoint
    from ridgeline.serving.traffic.requests import Slo
    from ridgeline.serving.traffic.traffic import cut_short

    traffic = load.recipe()
    return BenchPlan(
        endpoint=parse_endpoint(f"http://127.0.0.1:{port}", interface="completions"),
        traffic=cut_short(traffic, 1) if load.alone == "prefill" else traffic,
        extra=dialect.decode_alone_body if load.alone == "decode" else {},
        ignore_eos=True,
        slos=tuple(map(Slo.parse, load.slos)),
        workers=load.workers,
        records_path=records_path,
        salt=load.seed,
        timeout_s=300.0,
    )


def send_other(plan: Any, count: int, at_once: int, number: int = 1) -> None:
    """Requests of other lengths and other words than the plan's own, so that nothing measured is in a cache; each
    `number` has its own."""
    from ridgeline.serving.load.bench import bench

    other = number * _OTHER
    traffic = replace(
        plan.traffic, requests=count, pace=ClosedLoop(min(count, at_once)), seed=plan.traffic.seed + other
    )
    _require_valid(bench(replace(plan, traffic=traffic, salt=plan.salt + other, records_path=None, workers=1, slos=())))


def measure(
    engine: node.EngineProcess, port: int, plan: Any, exit_diagnosis: ExitDiagnosis, measured: dict[str, Any]
) -> None:
    """Adds to `measured` what the load found, and, of a failed run too, how the machine was used meanwhile."""
    from ridgeline.serving.load.bench import bench

    monitor = Monitor(plan.records_path.parent)
    monitor.start()
    result = bench(plan)
    measured["monitor"] = monitor.stop()
    _require_valid(result)
    if result.summary.ok < result.summary.requests and not node.healthy(port):
        engine.wait(DYING_S)
    if engine.exit_code is not None:
        raise exit_diagnosis.failed(engine.exit_code)
    if not result.summary.ok:
        kinds = ", ".join(f"{kind} x {count}" for kind, count in result.summary.errors.items())
        raise EngineFailed(FailureCause("no-answer", 0, f"no request succeeded ({kinds})"))
    measured["summary"] = result.as_json()


def measure_offline(engine: node.EngineProcess, exit_diagnosis: ExitDiagnosis, measured: dict[str, Any]) -> None:
    """The engine's own offline benchmark; it warms itself up, and is watched from its first measured step on."""
    started, log, mark = time.monotonic(), exit_diagnosis.log, exit_diagnosis.dialect.offline_mark
    monitor: Monitor | None = None
    while (code := engine.wait(POLL_S)) is None:
        if monitor is None and mark and _holds(log, mark):
            measured["ready_s"] = round(time.monotonic() - started, 3)
            monitor = Monitor(log.parent)
            monitor.start()
    if monitor is not None:
        measured["monitor"] = monitor.stop()
    if code != 0:
        raise exit_diagnosis.failed(code)


def _require_valid(result: Any) -> None:
    """The load generator takes a signal as the end of its run; for us it is the end of everything."""
    if result.interrupted:
        sys.exit(STOPPED)


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
