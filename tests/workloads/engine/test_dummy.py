"""Dummy weights: the engine's own switch spreads tokens over the experts, and where it cannot, everybody is told."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline import catalog
from ridgeline.campaign.check import check_study
from ridgeline.campaign.preview import whole_check
from ridgeline.errors import StudyError
from ridgeline.records.site import Site
from ridgeline.serving.service.from_results import service_of_answer
from ridgeline.workloads.base import NO_WEIGHTS, Workload
from tests.workloads.engine.studies import study, trial

MOE, DENSE = "deepseek-v2-lite", "llama-8b"
SGLANG, ROUND_ROBIN = "SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS"
VLLM = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
KINDS = ("sglang-serve", "sglang-offline", "vllm-serve", "vllm-offline")
ONE_FLAG = (
    "version: 1\nname: drafts\nworkload:\n  kind: sglang-offline\n  model: llama-8b\n  version: 0.5.15\n"
    "  load_format: dummy\n  flags:\n    context_length: 4096\n    speculative_algorithm: EAGLE3\n"
    "space: {max_running_requests: [32, 64]}\ngoal: {maximize: total_tok_s}\n"
    "baseline: {max_running_requests: 32}\nbudget: {trials: 1}\njob: {gpus: 1, limit: 10m}\n"
)
NEW = {"sglang": "0.5.15", "vllm": "0.32.0"}


def made(folder: Path, kind: str = "sglang-serve", **options: Any) -> tuple[Workload, Any]:
    knobs = options.pop("knobs", {"max_running_requests": [64]})
    of = study(folder, kind, knobs, **{"model": MOE, "version": NEW[kind.partition("-")[0]], **options})
    workload: Workload = catalog.part("workloads", kind)(of)
    assert workload.problems() == []
    return workload, of


def simulated(workload: Workload, of: Any, folder: Path) -> dict[str, str]:
    env = workload.prepare(trial(of), folder / "run").env
    return {name: value for name, value in env.items() if "SIMULAT" in name}


@pytest.mark.parametrize("kind", KINDS)
def test_the_switch_is_set_and_said(tmp_path: Path, kind: str) -> None:
    workload, of = made(tmp_path, kind)
    expected = {SGLANG: "1"} if kind.startswith("sglang") else {VLLM: "uniform_random"}
    assert simulated(workload, of, tmp_path) == expected
    assert workload.programs()["weights"] == {"load_format": "dummy", "routing": expected}
    said = json.loads((tmp_path / "run" / "session.json").read_text())
    assert said["weights"] == {"load_format": "dummy", "routing": expected}
    assert workload.doubts() == []


@pytest.mark.parametrize(
    "options",
    [{"model": DENSE}, {"load_format": None}, {"load_format": "auto"}, {"load_format": "safetensors"}],
    ids=str,
)
def test_nothing_is_set_for_dense_models_or_real_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    workload, of = made(tmp_path, **options)
    assert simulated(workload, of, tmp_path) == {} and workload.doubts() == []
    assert "weights" not in json.loads((tmp_path / "run" / "session.json").read_text())


@pytest.mark.parametrize(
    ("kind", "release", "first", "has"),
    [
        ("sglang-serve", "0.5.12.post1", "0.5.13", False),
        ("sglang-serve", "0.5.13", "0.5.13", True),
        ("sglang-serve", "0.5.23", "0.5.13", True),
        ("vllm-serve", "0.10.0", "0.10.1", False),
        ("vllm-serve", "0.10.1", "0.10.1", True),
        ("vllm-serve", "0.32.0", "0.10.1", True),
    ],
)
def test_a_release_without_the_switch_is_warned_about(
    tmp_path: Path, kind: str, release: str, first: str, has: bool
) -> None:
    workload, of = made(tmp_path, kind, version=release)
    assert bool(simulated(workload, of, tmp_path)) is has
    doubts = workload.doubts()
    assert (doubts == []) is has
    if not has:
        assert "collapsed routing" in doubts[0] and "too fast" in doubts[0] and f"{first} and later have" in doubts[0]


def test_every_release_of_the_study_is_looked_at(tmp_path: Path) -> None:
    knobs = {"max_running_requests": [64], "release": ["0.5.15", "0.5.9"]}
    workload, of = made(tmp_path, version="{release}", knobs=knobs)
    assert ["SGLang 0.5.9 has no switch" in doubt for doubt in workload.doubts()] == [True]
    assert workload.prepare(trial(of, release="0.5.9"), tmp_path / "old").env.get(SGLANG) is None
    assert workload.prepare(trial(of, release="0.5.15"), tmp_path / "new").env[SGLANG] == "1"


def test_a_release_that_cannot_be_read_is_taken_for_new_and_said_so(tmp_path: Path) -> None:
    workload, of = made(tmp_path, version="", engine="engine.sif")
    assert simulated(workload, of, tmp_path) == {SGLANG: "1"}
    assert ["say it by `version`" in doubt for doubt in workload.doubts()] == [True]


@pytest.mark.parametrize(
    ("env", "doubt"), [({SGLANG: "1"}, False), ({SGLANG: "0"}, True), ({SGLANG: ""}, True), ({ROUND_ROBIN: "1"}, False)]
)
def test_the_studys_own_word_goes_first(tmp_path: Path, env: dict[str, str], doubt: bool) -> None:
    workload, of = made(tmp_path, env=env)
    assert simulated(workload, of, tmp_path) == env
    assert workload.programs()["weights"] == {"load_format": "dummy", "routing": env}
    assert ["itself has" in text for text in workload.doubts()] == [True] * doubt
    of = replace(of, site=Site(env=env), workload=made(tmp_path)[1].workload)
    on_site: Workload = catalog.part("workloads", "sglang-serve")(of)
    assert simulated(on_site, of, tmp_path) == {}, "the site's environment has it already"
    assert bool(on_site.doubts()) is doubt


def test_a_knob_may_be_the_switch(tmp_path: Path) -> None:
    workload, of = made(tmp_path, knobs={SGLANG: [0, 1]})
    assert workload.prepare(trial(of, **{SGLANG: 0}), tmp_path / "off").env[SGLANG] == "0"
    assert workload.prepare(trial(of, **{SGLANG: 1}), tmp_path / "on").env[SGLANG] == "1"


@pytest.mark.parametrize(
    ("options", "around"),
    [
        ({"flags": {"moe_runner_backend": "triton_kernel"}}, True),
        ({"flags": {"moe_runner_backend": "flashinfer_trtllm"}}, True),
        ({"flags": {"moe_runner_backend": "triton"}}, False),
        ({"knobs": {"moe_runner_backend": ["triton", "flashinfer_trtllm"]}}, True),
        ({"gpu": "b200"}, True),
        ({"gpu": "b200", "flags": {"moe_runner_backend": "triton"}}, False),
        ({"gpu": "h200"}, False),
    ],
    ids=str,
)
def test_kernels_that_route_by_themselves_are_warned_about(
    tmp_path: Path, options: dict[str, Any], around: bool
) -> None:
    workload, _ = made(tmp_path, **options)
    assert ["route tokens themselves" in doubt for doubt in workload.doubts()] == [True] * around


@pytest.mark.parametrize(
    ("kind", "options", "warned"),
    [
        ("sglang-serve", {"flags": {"speculative_algorithm": "EAGLE"}}, True),
        ("sglang-serve", {"knobs": {"speculative_algorithm": [None, "EAGLE"]}}, True),
        ("sglang-serve", {"flags": {"speculative_algorithm": "EAGLE"}, "load_format": "auto"}, False),
        ("vllm-serve", {"flags": {"speculative_config": '{"method": "mtp"}'}}, True),
        ("vllm-serve", {}, False),
    ],
    ids=str,
)
def test_drafts_of_dummy_weights_are_never_accepted(
    tmp_path: Path, kind: str, options: dict[str, Any], warned: bool
) -> None:
    workload, of = made(tmp_path, kind, model=DENSE, **options)
    assert ["no drafted token is ever accepted" in doubt for doubt in workload.doubts()] == [True] * warned
    assert simulated(workload, of, tmp_path) == {}, "nobody said how many are kept"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("sglang-serve", {"speculative_algorithm": "NGRAM"}),
        ("vllm-serve", {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}),
        ("vllm-serve", {"spec_method": "ngram", "spec_tokens": 3}),
    ],
    ids=str,
)
def test_drafts_copied_from_what_dummy_weights_repeat_are_too_good(
    tmp_path: Path, kind: str, flags: dict[str, Any]
) -> None:
    (doubt,) = made(tmp_path, kind, model=DENSE, flags=flags)[0].doubts()
    assert "repeat themselves" in doubt and "too fast" in doubt and "no drafted token" not in doubt


KEPT, HOW = "SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD"
DFLASH = {"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "/drafts", "tp": 2, "attn_dp": 2}
CHAIN = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1, "speculative_draft_model_path": "/drafts"}


def test_sglang_is_told_how_many_drafted_tokens_to_keep_by_their_depth(tmp_path: Path) -> None:
    knobs = {"speculative_num_steps": [1, 3]}
    workload, of = made(tmp_path, model=DENSE, flags=CHAIN, knobs=knobs, accept_length=[1.8, 2.3, 2.5])
    for steps, kept in ((1, "1.8"), (3, "2.5")):
        told = workload.prepare(trial(of, speculative_num_steps=steps), tmp_path / f"run{steps}")
        assert {name: told.env.get(name) for name in (KEPT, HOW)} == {KEPT: kept, HOW: "match-expected"}
        session = json.loads((tmp_path / f"run{steps}" / "session.json").read_text())
        assert session["weights"]["accept_length"] == session["asked"]["accept_length"] == float(kept)
    assert workload.programs()["weights"]["accept_length"] == [1.8, 2.3, 2.5]
    assert ["accept_length" in doubt for doubt in workload.doubts()] == [True], "the answer rests on it"
    assert KEPT not in workload.offered(of.baseline) and KEPT in workload.paste(of.baseline)


def test_vllm_is_told_in_its_json_of_drafts(tmp_path: Path) -> None:
    config = json.dumps({"method": "eagle", "model": "/drafts", "num_speculative_tokens": 3})
    workload, of = made(tmp_path, "vllm-serve", model=DENSE, flags={"speculative_config": config}, accept_length=2.5)
    text = workload.paste(of.baseline)
    assert '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5' in text
    assert '"num_speculative_tokens": 3' in text and "synthetic" not in workload.offered(of.baseline)
    assert simulated(workload, of, tmp_path) == {}, "vLLM has no variable for it"
    asked = json.loads((tmp_path / "run" / "session.json").read_text())["asked"]
    assert "synthetic" in asked["echo"]["speculative_config"], "what the log repeats is what was asked"


def test_nothing_is_kept_by_order_with_real_weights_without_drafts_or_against_the_studys_own_word(
    tmp_path: Path,
) -> None:
    steps = {"speculative_num_steps": 3}
    real, of = made(tmp_path, model=DENSE, flags={**CHAIN, **steps}, load_format="auto", accept_length=2.5)
    assert simulated(real, of, tmp_path / "real") == {} and real.doubts() == []
    plain, of = made(tmp_path, model=DENSE, accept_length=2.5)
    assert simulated(plain, of, tmp_path / "plain") == {}
    own, of = made(tmp_path, model=DENSE, flags={**CHAIN, **steps}, accept_length=2.5, env={KEPT: "3"})
    assert simulated(own, of, tmp_path / "own") == {KEPT: "3"}


def test_a_depth_that_cannot_keep_so_many_is_refused(tmp_path: Path) -> None:
    knobs = {"speculative_num_steps": [3, 1]}
    ngram = {"speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": 1})}
    workload, of = made(tmp_path, model=DENSE, flags=CHAIN, knobs=knobs, accept_length=2.5)
    assert workload.refusal(of.baseline) is None
    assert "needs at least 2 drafted tokens" in str(workload.refusal({**of.baseline, "speculative_num_steps": 1}))
    vllm, of = made(tmp_path, "vllm-serve", model=DENSE, flags=ngram, accept_length=2.5)
    assert "needs at least 2 drafted tokens, this setting drafts 1" in str(vllm.refusal(of.baseline))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": DENSE, "experts": "uniform"}, "experts: llama-8b has none"),
        ({"accept_length": 2.5}, "nothing drafts here"),
        ({"accept_length": 2.5, "flags": CHAIN}, ""),
        ({"accept_length": 2.5, "knobs": {"speculative_algorithm": ["default", "EAGLE"]}}, ""),
        ({"experts": "uniform"}, ""),
        ({"load_format": "auto", "experts": "uniform"}, "experts: real weights decide in SGLang"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_word_about_weights_that_nothing_heeds_is_a_remark(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    workload, of = made(tmp_path, **options)
    found = [text for text in workload.remarks(of.baseline) if text.startswith(("experts", "accept_length"))]
    assert [says in text for text in found] == [True] * bool(says), found


@pytest.mark.parametrize(
    ("kind", "options", "key", "says"),
    [
        ("sglang-serve", {"experts": "zipf:1.2"}, "experts", "cannot be made to route by zipf:1.2: it knows uniform"),
        ("sglang-serve", {"experts": "normal"}, "experts", "write uniform or as-loaded"),
        ("sglang-serve", {"experts": "uniform", "version": "0.5.12"}, "experts", "0.5.13 and later have"),
        ("vllm-serve", {"experts": "zipf:1.2"}, "experts", "it knows uniform and normal"),
        ("sglang-serve", {"accept_length": 2.5, "version": "0.5.2"}, "accept_length", "SGLang 0.5.3 and later can"),
        ("vllm-serve", {"accept_length": 2.5, "version": "0.19.1"}, "accept_length", "vLLM 0.20 and later can"),
        ("sglang-serve", {"experts": "evenly"}, "experts", "'evenly' is not known"),
        ("sglang-serve", {"experts": "zipf:0"}, "experts", "above 0"),
        ("sglang-serve", {"accept_length": 0.2}, "accept_length", "keeps at least 1"),
    ],
    ids=str,
)
def test_what_an_engine_cannot_be_made_to_do_is_refused_with_the_remedy(
    tmp_path: Path, kind: str, options: dict[str, Any], key: str, says: str
) -> None:
    release = {"version": NEW[kind.partition("-")[0]]}
    of = study(tmp_path, kind, {"max_running_requests": [64]}, **{"model": MOE, **release, **options})
    found = catalog.part("workloads", kind)(of).problems()
    assert [(problem.where[:2], says in problem.message) for problem in found] == [(("workload", key), True)], found


def test_vllm_on_processors_heeds_no_switch(tmp_path: Path) -> None:
    """It stops at the first token that is routed by the one, and at the first draft that is kept by the other."""
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    build: dict[str, Any] = {"version": "0.32.0+cpu", "flags": {"speculative_config": config}}
    workload, of = made(tmp_path, "vllm-serve", **build)
    assert simulated(workload, of, tmp_path) == {}
    assert any("collapsed routing" in doubt and "on processors has no switch" in doubt for doubt in workload.doubts())
    knobs = {"max_running_requests": [64]}
    asked = study(tmp_path, "vllm-serve", knobs, model=MOE, experts="uniform", accept_length=2.0, **build)
    problems = catalog.part("workloads", "vllm-serve")(asked).problems()
    assert [problem.where for problem in problems] == [("workload", "experts"), ("workload", "accept_length")]
    assert "write as-loaded" in problems[0].message and "remove accept_length" in problems[1].message


def test_vllm_can_be_made_to_route_unevenly_and_no_engine_to_do_nothing(tmp_path: Path) -> None:
    normal, of = made(tmp_path, "vllm-serve", experts="normal")
    assert simulated(normal, of, tmp_path / "normal") == {VLLM: "normal_routing"}
    left, of = made(tmp_path, experts="as-loaded")
    assert simulated(left, of, tmp_path / "left") == {} and "`experts: as-loaded` asks for it" in left.doubts()[0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"speculative_num_draft_tokens": 4}, "does nothing without speculative_algorithm"),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, "without speculative_num_steps"),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}, "without speculative_eagle_topk"),
        ({**CHAIN, "speculative_num_steps": 3, "speculative_eagle_topk": 4}, "needs speculative_num_draft_tokens"),
        ({"speculative_algorithm": "EAGLE3"}, "drafts with a model of its own"),
        ({"speculative_algorithm": "EAGLE"}, "llama-8b has no drafting layers of its own"),
        ({"speculative_algorithm": "NGRAM", "tp": 2, "attn_dp": 2}, "exclude attention DP"),
        ({"speculative_algorithm": "NGRAM"}, None),
        ({**CHAIN, "speculative_num_steps": 3}, None),
        # the checkpoint may bring DSPARK's layers: SGLang's cookbook of DeepSeek-V4 says to name no draft model
        ({"speculative_algorithm": "DSPARK"}, None),
        ({"speculative_algorithm": "MY_PLUGIN", "speculative_num_draft_tokens": 4}, None),
        ({"speculative_algorithm": "EAGLE", "speculative_adaptive": True, "speculative_num_draft_tokens": 4,
          "speculative_draft_model_path": "/drafts"}, None),
        ({**DFLASH, "version": "0.5.22", "enable_dp_lm_head": True}, "exclude attention DP"),
        ({**DFLASH, "version": "0.5.23", "enable_dp_lm_head": True}, None),
        ({**DFLASH, "version": "0.5.23"}, "need enable_dp_lm_head"),
    ],
    ids=str,
)  # fmt: skip
def test_drafts_with_which_sglang_does_not_start_are_refused(
    tmp_path: Path, values: dict[str, Any], why: str | None
) -> None:
    flags = {name: value for name, value in values.items() if name != "version"}
    workload, of = made(tmp_path, model=DENSE, flags=flags, version=values.get("version", ""))
    refused = workload.refusal(of.baseline)
    assert (refused is None) if why is None else (why in str(refused)), refused


@pytest.mark.parametrize(
    ("model", "config", "refused"),
    [
        (DENSE, {"method": "mtp"}, True),
        (DENSE, {"method": "mtp", "model": "/drafts"}, False),
        (DENSE, {"method": "ngram"}, False),
        ("deepseek-v3", {"method": "mtp"}, False),
        ("nemotron-3-nano-30b-a3b", {"method": "mtp"}, False),  # vLLM takes a layer for granted
    ],
    ids=str,
)
def test_vllm_drafts_by_layers_that_a_model_has(
    tmp_path: Path, model: str, config: dict[str, Any], refused: bool
) -> None:
    flags = {"speculative_config": json.dumps({**config, "num_speculative_tokens": 2})}
    workload, of = made(tmp_path, "vllm-serve", model=model, flags=flags)
    assert ("no drafting layers" in str(workload.refusal(of.baseline))) is refused


def test_check_names_line_and_release_of_drafts_without_a_model(tmp_path: Path) -> None:
    """The line is that of the flag, since no other point of the space would change it."""
    path = tmp_path / "study.yaml"
    path.write_text(ONE_FLAG)
    with pytest.raises(StudyError) as refused:
        check_study(path)
    said = "study.yaml:10: workload.flags.speculative_algorithm: is refused: with SGLang 0.5.15, EAGLE3 drafts with"
    assert said in str(refused.value) and "name a draft model by speculative_draft_model_path" in str(refused.value)
    path.write_text(
        path.read_text()
        .replace("    speculative_algorithm: EAGLE3\n", "")
        .replace("space: {", "space: {speculative_algorithm: [EAGLE3], ")
        .replace("baseline: {", "baseline: {speculative_algorithm: EAGLE3, ")
    )
    with pytest.raises(StudyError, match=r"baseline: is refused: with SGLang .*; choose a legal point"):
        check_study(path)


@pytest.mark.parametrize(
    ("flags", "site", "said"),
    [
        ("attention_backend: aiter", "", ":11: workload.flags.attention_backend: is refused: "),
        (
            "hicache_size: 900\n    enable_hierarchical_cache: true",
            "site: {memory_per_node: 100 GB, nodes: 1, gpus_per_node: 1}\n",
            ":11: workload.flags.hicache_size: is refused: ",
        ),
    ],
)
def test_check_names_the_line_of_the_flag_that_does_not_start(tmp_path: Path, flags: str, site: str, said: str) -> None:
    path = tmp_path / "study.yaml"
    one_flag = ONE_FLAG.replace("load_format: dummy", "load_format: dummy\n  gpu: h200")
    path.write_text(one_flag.replace("speculative_algorithm: EAGLE3", flags) + site)
    with pytest.raises(StudyError, match=said):
        check_study(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"knobs": {"tp": [3]}}, "3 ranks cannot share"),
        (
            {"flags": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 2}, "accept_length": 2.4},
            "needs at least 2 drafted tokens",
        ),
    ],
)
def test_a_refusal_says_of_which_release_it_is(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    workload, of = made(tmp_path, model="llama-8b", **options)
    said = workload.refusal(of.baseline)
    assert said is not None and words in said and said.startswith("with SGLang 0.5.15, ")


def test_a_host_tier_on_nodes_of_unknown_memory_is_a_remark(tmp_path: Path) -> None:
    workload, of = made(tmp_path, flags={"enable_hierarchical_cache": True, "hicache_size": 900})
    (said,) = workload.remarks(of.baseline)
    assert said.where == ("workload", "flags", "hicache_size")
    assert (
        "host tiers take 900 GB of a node, and that it has them is assumed; give the site's `memory_per_node`"
        in str(said)
    )
    path = tmp_path / "study.yaml"
    path.write_text(
        ONE_FLAG.replace("speculative_algorithm: EAGLE3", "hicache_size: 900\n    enable_hierarchical_cache: true")
    )
    (line, *_) = whole_check(check_study(path)).remarks
    assert "study.yaml:10: workload.flags.hicache_size: host tiers take 900 GB" in line
    by_ratio, asked = made(
        tmp_path, model="/models/of-no-known-shape", flags={"enable_hierarchical_cache": True, "hicache_ratio": 2}
    )
    assert "so many KV pools, whose size is not known here" in by_ratio.remarks(asked.baseline)[0].message
    known = replace(of, site=Site(memory_bytes_per_node=10**12))
    assert catalog.part("workloads", "sglang-serve")(known).remarks(known.baseline) == []


def test_a_folder_whose_runs_had_no_switch_is_read_as_it_ran(tmp_path: Path) -> None:
    _, of = made(tmp_path)
    old: Workload = catalog.part("workloads", "sglang-serve")(replace(of, recorded={}))
    assert simulated(old, of, tmp_path) == {}
    assert ["begun without" in doubt for doubt in old.doubts()] == [True]
    recorded = {"weights": {"load_format": "dummy", "routing": {SGLANG: "1"}}}
    new: Workload = catalog.part("workloads", "sglang-serve")(replace(of, recorded=recorded))
    assert simulated(new, of, tmp_path) == {SGLANG: "1"} and new.doubts() == []


# what people are told to use


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [MOE, DENSE])
def test_weights_that_are_none_are_never_offered(tmp_path: Path, kind: str, model: str) -> None:
    switch = {SGLANG: "1"} if kind.startswith("sglang") else {VLLM: "uniform_random"}
    _, of = made(tmp_path, kind, model=model, env={**switch, "KEPT": "a b"})
    of = replace(of, site=Site(env=switch))
    workload: Workload = catalog.part("workloads", kind)(of)
    text = workload.offered(of.baseline)
    assert "dummy" not in text and "model make" not in text and model not in text and "SIMULAT" not in text
    assert "${WEIGHTS:?benchmark only" in text and "64" in text and "KEPT='a b'" in text
    assert "benchmark only" in workload.pasted_as
    refused = subprocess.run(["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/bin"})
    assert refused.returncode != 0 and "set it to the folder of real weights" in refused.stderr
    deployed = service_of_answer(of, of.baseline, "1.1x")
    assert deployed["model"] == NO_WEIGHTS
    (unit,) = deployed["units"]
    assert "load_format" not in unit["settings"] and unit["env"] == {"KEPT": "a b"}


def test_weights_of_their_own_are_offered_as_they_ran(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    workload, of = made(tmp_path, model=str(folder), load_format="auto")
    assert workload.offered(of.baseline) == workload.paste(of.baseline) and str(folder) in workload.paste(of.baseline)
    assert workload.pasted_as == "" and service_of_answer(of, of.baseline, "")["model"] == str(folder)
    assert service_of_answer(of, of.baseline, "")["units"][0]["settings"]["load_format"] == "auto"


def test_a_knob_that_loads_dummies_is_never_offered_either(tmp_path: Path) -> None:
    workload, of = made(
        tmp_path, load_format=None, knobs={"load_format": ["dummy", "auto"]}, model="org/moe", shape=MOE
    )
    assert "WEIGHTS" in workload.offered({"load_format": "dummy"})
    assert "--load-format auto" in workload.offered({"load_format": "auto"})
    assert service_of_answer(of, {"load_format": "dummy"}, "")["units"][0]["settings"] == {}
