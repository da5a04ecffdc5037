"""diagnose --compare A B, and --as-knobs: advice that a study can test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ridgeline import catalog
from ridgeline.cli.diagnose import _comparison_text
from ridgeline.diagnose.base import Analyzer, knob
from ridgeline.diagnose.comparison import compare_files
from ridgeline.diagnose.knobs import knobs_yaml
from ridgeline.records.finding import Finding, KnobToTry
from ridgeline.records.outcome import Evidence
from ridgeline.serving.findings.served import EngineKnobs
from tests.command_line import ridgeline

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = ROOT / "tests" / "samples"
LLAMA = SAMPLES / "sglang" / "offline-llama8b-h200-default.log"
DEEPSEEK = SAMPLES / "sglang" / "offline-dsv2lite-h200-mrr1024.log"


def test_what_changed_between_two_logs_with_its_size() -> None:
    done = ridgeline("diagnose", "--compare", LLAMA, DEEPSEEK)
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "result: throughput 21,605 tok/s 14,548 tok/s -32.7%" in rows
    assert "mem_fraction_static 0.903 0.8" in rows
    assert "KV pool, peak 31.0% 10.0% -21.0 points" in rows
    both = " ".join(done.stdout.partition("in both")[2].split())
    assert "at stake: up to 23% of the time (A: up to 39% of the time)" in both
    assert "no tuned configuration" in done.stdout.partition("only in B")[2].partition("in both")[0]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_comparison_as_json_is_one_document() -> None:
    document = json.loads(ridgeline("diagnose", "--compare", "--json", LLAMA, DEEPSEEK).stdout)
    (throughput,) = [f for f in document["figures"] if f["name"] == "result: throughput"]
    assert throughput["ratio"] == pytest.approx(14547.58 / 21604.59, rel=1e-3)
    assert {"name": "mem_fraction_static", "first": 0.903, "second": 0.8} in document["settings"]


def test_a_file_does_not_differ_from_itself() -> None:
    document = json.loads(ridgeline("diagnose", "--compare", "--json", LLAMA, LLAMA).stdout)
    assert document["settings"] == []
    assert all(f["first"] == f["second"] for f in document["figures"])
    assert all(c["first"] == c["second"] for c in document["findings"])


@pytest.mark.parametrize(
    "pair",
    [
        ("nwchem/direct-1h2o.out", "nwchem/semidirect-1h2o-2ranks.out"),
        ("perf/nwchem-reference-blas.txt", "perf/nwchem-openblas-2ranks.txt"),
        ("vllm/cpu-0.32-full-cache.log", "vllm/gpu-0.11-full-cache.log"),
        ("mpip/manager.mpiP", "mpip/nwchem-waiting.mpiP"),
        ("torch-trace/decode-moe-eager.json", "torch-trace/cpu-only-2.13.json"),
    ],
)
def test_every_kind_can_be_compared(pair: tuple[str, str]) -> None:
    analyzers: list[Analyzer] = [catalog.part("analyzers", name) for name in catalog.shipped("analyzers")]
    comparison = compare_files(SAMPLES / pair[0], SAMPLES / pair[1], analyzers)
    assert comparison.figures and comparison.findings
    lines = _comparison_text(comparison).replace(str(SAMPLES), "").split("\n")
    assert "figures" in "".join(lines) and max(map(len, lines)) <= 80
    json.dumps(comparison.as_json())


def test_two_files_of_different_kinds_and_one_file_alone_are_refused() -> None:
    other = ridgeline("diagnose", "--compare", LLAMA, SAMPLES / "nwchem" / "direct-1h2o.out")
    assert other.returncode == 2 and "compare files of one kind" in other.stderr
    alone = ridgeline("diagnose", "--compare", LLAMA)
    assert alone.returncode == 2 and "takes two files" in alone.stderr
    gone = ridgeline("diagnose", "--compare", LLAMA, SAMPLES / "nowhere")
    assert gone.returncode == 2 and "no such file" in gone.stderr


def checked(study: Path, fragment: dict[str, dict[str, object]], merge: bool) -> None:
    """The study with these knobs beside or in place of its own passes `ridgeline check`."""
    document = yaml.safe_load(study.read_text())
    old = {"space": document["space"], "baseline": document["baseline"]}
    for key in ("space", "baseline"):
        document[key] = {**old[key], **fragment[key]} if merge else fragment[key]
    document.pop("presets", None)
    document.pop("rules", None)
    if not merge:
        document.pop("derived", None)
    path = study.with_name(f"as-knobs-{'merged' if merge else 'alone'}.yaml")
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    done = ridgeline("check", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    import shutil

    for name in ("02-nwchem-water", "05-sglang-h200"):
        ignore = shutil.ignore_patterns("results", "studies")
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=ignore)
    return tmp_path


@pytest.mark.parametrize("merge", [True, False])
def test_check_accepts_the_knobs_of_an_sglang_log(examples: Path, merge: bool) -> None:
    logs = [*sorted((SAMPLES / "sglang").iterdir()), SAMPLES / "nccl" / "no-peer-access.txt"]
    done = ridgeline("diagnose", "--as-knobs", *logs, SAMPLES / "nccl" / "two-nodes-ib.txt")
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert {"cuda_graph_max_bs", "max_running_requests", "mem_fraction_static"} <= set(documents[0]["space"])
    assert set(documents[1]["space"]) == {"NCCL_P2P_DISABLE", "NCCL_IB_HCA"}
    for fragment in documents:
        for study in ("study-llama-8b.yaml", "study-llama-8b-serve.yaml"):
            checked(examples / "05-sglang-h200" / study, fragment, merge)


def test_every_move_of_an_engine_is_one_that_check_accepts(examples: Path) -> None:
    said: dict[str, dict[str, object]] = {
        "sglang": {
            "max_running_requests": 256,
            "mem_fraction_static": 0.85,
            "cuda_graph_max_bs": 256,
            "chunked_prefill_size": 8192,
            "disable_cuda_graph": True,
            "kv_cache_dtype": "auto",
        },
        "vllm": {"max_num_seqs": 256, "gpu_memory_utilization": 0.8, "max_num_batched_tokens": 8192},
    }
    moves = ("cap", "no-graphs", "more-pool", "less-memory", "fewer-graphs", "retractions", "chunk")
    for engine, settings in said.items():
        knobs = EngineKnobs(engine, settings)
        tried = [k for move in moves for k in knobs.named(move)] + list(knobs.graphs_up_to(900))
        evidence = (Evidence("f", 1, "t"),)
        text = knobs_yaml([Finding("c", evidence, "a", knobs=(k,)) for k in tried])
        study = examples / "05-sglang-h200" / "study-llama-8b.yaml"
        document = yaml.safe_load(study.read_text())
        if engine == "vllm":
            document["workload"] |= {"kind": "vllm-offline", "flags": {}}
            document["guards"] = []
            document["space"], document["baseline"] = {"max_num_seqs": [1, 2]}, {"max_num_seqs": 1}
        else:
            document["workload"]["flags"] = {}
        path = study.with_name(f"{engine}.yaml")
        path.write_text(yaml.safe_dump(document))
        checked(path, yaml.safe_load(text), merge=False)


@pytest.mark.parametrize("name", ["direct-1h2o.out", "semidirect-1h2o-2ranks.out", "partly-cached-2h2o.out"])
def test_check_accepts_the_knobs_of_an_nwchem_output(examples: Path, name: str) -> None:
    done = ridgeline("diagnose", "--as-knobs", SAMPLES / "nwchem" / name)
    fragment = yaml.safe_load(done.stdout)
    assert fragment["space"]
    checked(examples / "02-nwchem-water" / "study.yaml", fragment, merge=True)


def test_where_there_is_no_knob_the_yaml_says_so() -> None:
    done = ridgeline("diagnose", "--as-knobs", SAMPLES / "bindings" / "openmpi-2ranks.txt")
    assert done.returncode == 0 and yaml.safe_load(done.stdout) is None and "no finding names a knob" in done.stdout


def test_a_knob_offers_something_beside_what_ran() -> None:
    assert knob("sglang", "a", 1, [1]) == () and knob("sglang", "a", None, [1]) == ()
    with pytest.raises(ValueError, match="nothing beside"):
        KnobToTry("sglang", "a", (1,), 1)


@pytest.mark.parametrize(
    ("program", "kinds"),
    [
        ("sglang", "sglang-offline or sglang-serve"),
        ("vllm", "vllm-offline or vllm-serve"),
        ("engine", "sglang-offline or sglang-serve or vllm-offline or vllm-serve"),
        ("nwchem", "nwchem"),
    ],
)
def test_advice_names_the_kinds_of_study_that_take_its_knobs(program: str, kinds: str) -> None:
    text = knobs_yaml([Finding("c", (Evidence("f", 1, "t"),), "a", knobs=knob(program, "x", 1, [2]))])
    assert text.startswith(f"# study of kind {kinds}: ")


def test_a_claim_with_a_line_break_cannot_break_the_yaml() -> None:
    claim = "bad\nspace: [1]\x1b[31m #x"
    tried = knob("sglang", "page_size", 1, [16])
    text = knobs_yaml([Finding(claim, (Evidence("f", 1, "t"),), "a", knobs=tried)])
    assert yaml.safe_load(text) == {"space": {"page_size": [1, 16]}, "baseline": {"page_size": 1}}
