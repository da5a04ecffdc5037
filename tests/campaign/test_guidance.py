"""What a search is told beforehand (a formula, a model, earlier studies), and what it says when it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline import catalog
from ridgeline.campaign import elsewhere as warm_start
from ridgeline.campaign.assembly import assemble_campaign, assemble_folder
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.kinds.search import SearchAgenda, SearchQuestion
from ridgeline.campaign.sampling import prior_of, sampler_of, unpredicted
from ridgeline.errors import InputError, StoreError, StudyError
from ridgeline.records.observation import Expectation, Observation, Proposal
from ridgeline.records.space import Discrete, Point, Settings, Space
from ridgeline.records.study import DEFAULT_SAMPLER, Budget, ConfirmStage, Goal, JobLimits, SearchStage
from ridgeline.samplers.base import Sampler
from ridgeline.study.history import History, read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study

STUDY = """
version: 1
name: {name}
workload:
  kind: command
  run: echo "rate $(( 100 + {{x}} * {factor} ))"
  metrics:
    rate: {{regex: 'rate (\\d+)', unit: 1/s}}
space:
  {knob}: {{from: 0, to: 9}}
  mode: [plain, other]
goal: {{maximize: rate}}
baseline: {{{knob}: 0, mode: plain}}
budget: {{trials: {trials}}}
search: {{seed: 1, sentinel_every: 0{more}}}
confirm: {{top: 0}}
job: {{limit: 60}}
"""


def written(folder: Path, name: str, factor: int = 7, knob: str = "x", trials: int = 4, more: str = "") -> CheckedStudy:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    text = STUDY.format(name=name, factor=factor, knob=knob, trials=trials, more=more)
    path.write_text(
        text.replace("{x}", f"{{{knob}}}").replace("mode: [plain, other]", "mode: [plain]").replace(", mode: plain", "")
    )
    return check_study(path)


def tuned(found: CheckedStudy, out: Path, earlier: list[Path] | None = None) -> list[dict[str, Any]]:
    folder = assemble_folder(found, out, found.study.name)
    if earlier:
        warm_start.keep(folder, warm_start.gather(found.study, earlier))
    with assemble_campaign(folder, SearchQuestion(sampler=DEFAULT_SAMPLER)) as campaign:
        campaign.run()
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


def tried(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "trial" and event["stage"] == "search"]


class Knowing:
    """A workload that predicts, badly at one point."""

    predicts = True
    highest = None

    def expectation(self, settings: Any) -> Expectation | None:
        if settings["x"] == 3:
            raise ZeroDivisionError
        return None if settings["x"] == 4 else Expectation(settings["x"] + 1.0, 1.0, 20.0, 0.9)

    def sensitivities(self, settings: Any) -> tuple[float, ...]:
        return (1.0 / (settings["x"] - 3),)


def test_what_a_workload_predicts_comes_in_scores(tmp_path: Path) -> None:
    slow = replace(study(tmp_path), goal=replace(study(tmp_path).goal, direction="minimize"))
    prior = prior_of(slow, Knowing())  # type: ignore[arg-type]
    assert prior is not None
    assert prior({"x": 5, "y": 0}) == Expectation(-6.0, -20.0, -1.0, 0.9)


@pytest.mark.parametrize("x", [3, 4])
def test_where_it_fails_or_says_nothing_nothing_is_expected(x: int, tmp_path: Path) -> None:
    prior = prior_of(study(tmp_path), Knowing())  # type: ignore[arg-type]
    assert prior is not None and prior({"x": x, "y": 0}) is None


def test_what_a_workload_rests_on_is_handed_on_and_a_fault_in_it_says_nothing(tmp_path: Path) -> None:
    prior = prior_of(written(tmp_path, "sensitivity").study, Knowing())  # type: ignore[arg-type]
    assert prior is not None
    assert prior.sensitivities({"x": 5}) == (0.5,)
    assert prior.sensitivities({"x": 3}) == ()


def test_a_formula_of_the_study_comes_before_the_workloads_model(tmp_path: Path) -> None:
    own = replace(study(tmp_path), search=SearchStage("guided", {"expect": "100 / (x + 1)"}))
    prior = prior_of(own, Knowing())  # type: ignore[arg-type]
    assert prior is not None
    assert prior({"x": 3, "y": 0}) == Expectation(25.0)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf])
def test_an_expectation_that_is_no_number_is_refused(nonsense: float) -> None:
    with pytest.raises(ValueError, match="not a number"):
        Expectation(nonsense)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Expectation(1.0, chance=1.5)


def test_a_formula_leads_the_first_trial(tmp_path: Path) -> None:
    found = written(tmp_path, "formula", more=", expect: 100 + 7 * x")
    first = tried(tuned(found, tmp_path / "out"))[0]
    assert first["point"]["x"] == 9
    assert "the formula ranks it first of the untried settings; 98% likely to pass" in first["why"]


def test_a_formula_with_an_unknown_name_is_a_problem_of_the_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"expect.*z is not a knob"):
        written(tmp_path, "wrong", more=", expect: z + 1")


def test_an_earlier_study_leads_and_is_kept_in_the_folder(tmp_path: Path) -> None:
    tuned(written(tmp_path, "before", trials=9, more=", worth: 0"), tmp_path / "before")
    found = written(tmp_path, "after", factor=5)
    events = tuned(found, tmp_path / "after", [tmp_path / "before"])
    assert tried(events)[0]["point"]["x"] == 9
    observations = warm_start.kept(tmp_path / "after")
    assert len(observations) == 10
    assert {observation.score for observation in observations} >= {100.0, 163.0}
    history = read_history(tmp_path / "after")
    assert all(run.metrics["rate"] <= 145 for run in history.runs.values()), "nothing earlier counts as measured here"


def test_an_earlier_study_of_another_space_or_goal_is_refused_in_words(tmp_path: Path) -> None:
    tuned(written(tmp_path, "before", knob="y", trials=2), tmp_path / "before")
    found = written(tmp_path, "after")
    with pytest.raises(InputError, match=r"before: another space: it has no knob x \(its knobs: y, mode\)"):
        warm_start.gather(found.study, [tmp_path / "before"])
    other = replace(written(tmp_path, "same", knob="y").study, goal=replace(found.study.goal, direction="minimize"))
    with pytest.raises(InputError, match="its goal is to maximize rate, this study's to minimize rate"):
        warm_start.gather(other, [tmp_path / "before"])
    with pytest.raises(StoreError, match="no such folder"):
        warm_start.gather(found.study, [tmp_path / "nowhere"])


def _passing_again(root: Path, point: Point, measured: float) -> History:
    """The journal of `root`, and the setting that failed tried once more: it ends well, as the baseline did."""
    events = [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()]
    trial = next(event for event in events if event["event"] == "trial" and event["point"] == point)
    run = next(event for event in events if event["event"] == "run" and event["trial"] == trial["trial"])
    ended = next(event for event in events if event["event"] == "ended" and event["outcome"]["kind"] == "ok")
    last = max(event["trial"] for event in events if event["event"] == "trial") + 1
    number = max(event["run"] for event in events if event["event"] == "run") + 1
    later = [
        {**trial, "trial": last},
        {**run, "run": number, "trial": last},
        {**ended, "run": number, "measurements": [["rate", measured, "", "stdout", "measured"]]},
    ]
    return History.replay(root, [*events, *later])


def test_of_an_earlier_study_what_failed_is_learned_too_unless_it_passed_another_time(tmp_path: Path) -> None:
    """x 7 always fails, x 9 fails in the search and passes when it is tried again; the others pass."""
    space = Space((Discrete("x", (0, 7, 8, 9), ordered=True), Discrete("y", (0, 1), ordered=True)), {})
    search = SearchStage("random", seed=1, sentinel_every=0)
    asked = replace(study(tmp_path), space=space, search=search, confirm=ConfirmStage(top=0))
    failing = {7, 9}

    def answered(settings: Settings) -> ScriptedAnswer:
        x, y = float(settings["x"] or 0), float(settings["y"] or 0)
        return ScriptedAnswer({"rate": 100.0 + 10 * x + y}, exit_code=int(settings["x"] in failing))

    earlier = campaign(tmp_path / "out", asked, answered)
    earlier.run()
    points = {(trial.point["x"], trial.point["y"]) for trial in earlier.history.trials.values()}
    assert points == {(x, y) for x in (0, 7, 8, 9) for y in (0, 1)}, "the whole space is tried, or this shows nothing"

    def scores_of(history: History, space: Space = asked.space) -> dict[tuple[Any, ...], float | None]:
        found = warm_start._of_space(space, asked, history)
        assert len({tuple(each.point.values()) for each in found}) == len(found), "each setting once"
        return {tuple(each.point.values()): each.score for each in found}

    passed: dict[tuple[Any, ...], float | None] = {(x, y): 100.0 + 10 * x + y for x in (0, 8) for y in (0, 1)}
    assert scores_of(earlier.history) == {**passed, (7, 0): None, (7, 1): None, (9, 0): None, (9, 1): None}

    narrow = Space((Discrete("x", (0, 7), ordered=True), Discrete("y", (0, 1), ordered=True)), {})
    expected = {point: score for point, score in scores_of(earlier.history).items() if point[0] in (0, 7)}
    assert scores_of(earlier.history, narrow) == expected, "points that are none of this space say nothing"

    again = _passing_again(tmp_path / "out", {"x": 9, "y": 0}, 190.0)
    assert scores_of(again) == {**passed, (7, 0): None, (7, 1): None, (9, 0): 190.0, (9, 1): None}


def test_a_damaged_warm_start_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / warm_start.FILE).write_text("[{]")
    with pytest.raises(StoreError, match="remove it to continue without"):
        warm_start.kept(tmp_path)


class Recording(Sampler):
    """Proposes x in turn and keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None:
        return Proposal({"x": len({each.point["x"] for each in self.seen}), "y": 0})

    def forget(self) -> bool:
        self.seen = []
        return True

    def tell(self, observation: Observation) -> None:
        self.seen.append(observation)


@pytest.mark.parametrize(("metric", "score"), [("wall_s", -20.0), ("seconds", None)])
def test_a_run_ended_by_its_limit_is_a_bound_only_where_its_time_is_the_goal(
    metric: str, score: float | None, tmp_path: Path
) -> None:
    def slow(settings: Settings) -> ScriptedAnswer:
        took = 15.0 if settings["x"] != 2 else 90.0
        return ScriptedAnswer({metric: took}, seconds=took)

    asked = study(
        tmp_path,
        goal=Goal(metric, "minimize"),
        budget=Budget(trials=3),
        search=SearchStage("random", sentinel_every=0),
        confirm=ConfirmStage(top=0),
        job=JobLimits(limit_s=20.0),
    )
    found, sampler = campaign(tmp_path, asked, slow), Recording()
    assert isinstance(found.agenda, SearchAgenda)
    found.agenda.new_sampler = lambda: sampler
    found.run()
    by_x = {each.point["x"]: (each.score, each.censored) for each in sampler.seen}
    assert by_x == {0: (-15.0, False), 1: (-15.0, False), 2: (score, score is not None), 3: (-15.0, False)}


def test_the_journal_says_why_the_search_ended_and_what_more_could_bring(tmp_path: Path) -> None:
    events = tuned(written(tmp_path, "ending", trials=9, more=", startup: 2, worth: 0.5"), tmp_path / "out")
    (planned,) = [event for event in events if event["event"] == "confirm"]
    assert "little is left to find" in planned["search_ended"]
    assert "untried setting" in planned["search_ended"]
    assert len(tried(events)) < 9


def test_a_campaign_whose_journal_names_no_sampler_goes_on_with_the_default(tmp_path: Path) -> None:
    plain = written(tmp_path, "old").study
    assert plain.search.sampler == DEFAULT_SAMPLER
    assert SearchQuestion().applied_to(plain).search.sampler == DEFAULT_SAMPLER
    assert SearchQuestion(sampler="guided").applied_to(plain).search.sampler == "guided"
    named = written(tmp_path, "named", more=", sampler: random").study
    assert SearchQuestion(sampler="guided").applied_to(named).search.sampler == "random"
    own = written(tmp_path, "own", more=", sampler: guided").study
    assert SearchQuestion().applied_to(own).search.sampler == "guided"


def test_the_twin_of_a_study_tells_the_sampler_what_to_expect() -> None:
    example = Path(__file__).parents[2] / "examples" / "04-deepseek-r1-16-gpus" / "study.yaml"
    found = check_study(example)
    prior = prior_of(found.study, found.workload)
    assert prior is not None
    said = prior(found.study.baseline)
    assert said is not None and said.mean is not None and said.low is not None and said.high is not None
    assert said.low < said.mean < said.high
    assert 0.9 < said.chance < 1
    full = prior({**found.study.baseline, "mem_fraction_static": 0.94, "max_running_requests": 4096})
    assert full is not None and full.chance < 0.5
    assert hasattr(sampler_of(found), "expect")


SERVED = """
version: 1
name: served
workload:
  kind: {kind}
  model: llama-8b
  gpu: h200
  load_format: dummy
  traffic: {{dataset: sharegpt, requests: 120, seed: 1}}
  concurrency: 96
  slo: [ttft_p95_ms=2000, itl_p95_ms=50]
space:
  {running}: [16, 96]
  {chunk}: [2048, 8192]
goal: {{maximize: goodput}}
guards: [failed_requests == 0, gpu_memory_peak_bytes < 140e9]
baseline: {{{running}: 16, {chunk}: 8192}}
budget: {{trials: 2}}
job: {{gpus: 1, limit: 10m}}
"""
SGLANG = {"kind": "sglang-serve", "running": "max_running_requests", "chunk": "chunked_prefill_size"}
VLLM = {"kind": "vllm-serve", "running": "max_num_seqs", "chunk": "max_num_batched_tokens"}


def served(folder: Path, names: dict[str, str], old: str = "", new: str = "") -> CheckedStudy:
    text = SERVED.format(**names)
    assert old in text
    (folder / "study.yaml").write_text(text.replace(old, new))
    return check_study(folder / "study.yaml")


@pytest.mark.parametrize("names", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_the_goodput_of_a_real_server_is_predicted_whatever_it_is_guarded_by(
    tmp_path: Path, names: dict[str, str]
) -> None:
    found = served(tmp_path, names)
    prior = prior_of(found.study, found.workload)
    assert prior is not None

    def goodput(running: int, chunk: int) -> float:
        said = prior({names["running"]: running, names["chunk"]: chunk})
        assert said is not None and said.mean is not None
        return said.mean

    assert goodput(96, 8192) > 2 * goodput(16, 8192) > 0, "of 96 at once 16 may run, the others wait"
    assert goodput(96, 8192) != goodput(96, 2048), "the prefill chunk counts, by the name that the engine has for it"
    assert unpredicted(found) == []


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("  gpu: h200\n", "", "the GPU is not stated"),
        ("  model: llama-8b", "  model: /models/unseen", "name a preset or a config.json as `shape`"),
        ("  model: llama-8b", "  alone: prefill\n  model: llama-8b", "one half of serving alone"),
        ("{maximize: goodput}", "{minimize: energy_j}", "has no metric energy_j"),
        ("budget:", "search: {sampler: random}\nbudget:", ""),
        ("budget:", "search: {expect: '1.0 * max_running_requests'}\nbudget:", ""),
    ],
)
def test_a_search_that_starts_from_nothing_says_why(tmp_path: Path, old: str, new: str, why: str) -> None:
    said = unpredicted(served(tmp_path, SGLANG, old, new))
    assert len(said) == bool(why)
    assert all(text.startswith("nothing is predicted before the first run: ") and why in text for text in said)


@pytest.mark.parametrize(
    ("knob", "said"),
    [
        ("schedule_policy: [fcfs, lpm]", "schedule_policy: not modelled by the twin"),
        ("NCCL_ALGO: [Tree, Ring]", "NCCL_ALGO: not modelled by the twin"),
        ("schedule_policy: [lpm]", ""),  # nothing to choose
        ("disable_overlap_schedule: [false, true]", ""),
        ("disable_cuda_graph: [false, true]", ""),  # another way to say cuda_graph_max_bs: 0
    ],
)
def test_knobs_that_the_prediction_knows_nothing_of_are_named(tmp_path: Path, knob: str, said: str) -> None:
    name, _, values = knob.partition(": ")
    names = {**SGLANG, "chunk": f"{name}: {values}\n  chunked_prefill_size"}
    text = SERVED.format(**names).replace(
        f"{names['chunk']}: 8192", f"{name}: {values[1:-1].split(', ')[0]}, chunked_prefill_size: 8192"
    )
    (tmp_path / "study.yaml").write_text(text)
    told = unpredicted(check_study(tmp_path / "study.yaml"))
    assert said in "".join(told) and bool(told) == bool(said)


@pytest.mark.parametrize("gpu", ["", "  gpu: h200\n"])
@pytest.mark.parametrize(
    ("names", "said", "engine"),
    [
        (VLLM, "  version: 0.32.0+cpu\n", "vLLM"),
        (SGLANG, "  flags: {device: cpu}\n", "SGLang"),
    ],
    ids=["vllm", "sglang"],
)
def test_nobody_on_cpus_is_asked_for_a_gpu_or_promised_its_speed(
    tmp_path: Path, names: dict[str, str], said: str, engine: str, gpu: str
) -> None:
    found = served(tmp_path, names, "  gpu: h200\n", gpu + said)
    assert prior_of(found.study, found.workload) is None
    (text,) = unpredicted(found)
    assert text.endswith(f"this {engine} runs on CPUs, and the twin simulates GPUs")


@pytest.mark.parametrize("goal", ["goodput", "requests_s"])
def test_no_more_is_expected_than_comes(tmp_path: Path, goal: str) -> None:
    old, new = "  concurrency: 96\n", "  rate: 2\n  burstiness: 0\n"
    served(tmp_path, VLLM, "{maximize: goodput}", f"{{maximize: {goal}}}")
    study = tmp_path / "study.yaml"
    study.write_text(study.read_text().replace(old, new))
    found = check_study(study)
    prior = prior_of(found.study, found.workload)
    assert prior is not None
    said = prior({"max_num_seqs": 96, "max_num_batched_tokens": 8192})
    assert said is not None and said.low is not None and said.mean is not None and said.high is not None
    assert said.low <= said.mean <= said.high < 2.05, "120 requests, two a second, whatever the server can do"


def test_a_rate_bounds_what_any_setting_can_reach(tmp_path: Path) -> None:
    bounds = {}
    for load, goal in (
        ("rate: 5", "{maximize: goodput}"),
        ("rate: 5", "{minimize: ttft_p95_ms}"),
        ("concurrency: 96", "{maximize: goodput}"),
    ):
        text = SERVED.format(**SGLANG).replace("concurrency: 96", load).replace("{maximize: goodput}", goal)
        (tmp_path / "study.yaml").write_text(text)
        found = check_study(tmp_path / "study.yaml")
        prior = prior_of(found.study, found.workload)
        assert prior is not None
        bounds[load, goal] = prior.highest
    (at_a_rate, *others) = bounds.values()
    assert at_a_rate == pytest.approx(5, rel=0.25), "120 drawn arrivals"
    assert others == [None, None]


class Duck:
    """Has what a sampler has, and is none."""

    def __init__(self, *given: object) -> None: ...

    def ask(self, pending: Sequence[Point] = ()) -> Proposal | None: ...

    def tell(self, observation: Observation) -> None: ...


def test_a_sampler_must_be_a_subclass_and_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.TABLE["samplers"], "duck", "tests.campaign.test_guidance:Duck")
    with pytest.raises(
        StudyError, match=r"\.yaml:\d+: .*the sampler duck is not a subclass of ridgeline\.samplers\.base\.Sampler"
    ):
        written(tmp_path, "duck", more=", sampler: duck")


def test_who_asks_for_tpe_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"'tpe' is not among the samplers; it is gone since 0\.3: write guided"):
        written(tmp_path, "gone", more=", sampler: tpe")
