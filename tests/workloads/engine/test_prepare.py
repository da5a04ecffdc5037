"""One-time steps: reached from a study, shown before anything runs, done once for what decides, given to the engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.errors import SiteError
from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.site import Site
from ridgeline.records.study import JobLimits, Study
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.workloads.engine.prepare import REHEARSE
from ridgeline.serving.workloads.engine.session.baked import (
    Manifest,
    NodeFolder,
    image_tool,
    make_image,
    make_tar,
    unpack,
)
from tests.workloads.engine.studies import (
    STANDIN,
    run_for_real,
    sglang_offline,
    sglang_serve,
    study,
    trial,
    vllm_offline,
    with_standin,
)

LOAD = {"input_tokens": 12, "output_tokens": 4, "requests": 8}
# scripts of SGLang's repository, as far as their arguments and results go
FUSED_MOE = """
import argparse, json, pathlib
flags = argparse.ArgumentParser()
flags.add_argument("--model", required=True); flags.add_argument("--tp-size", type=int, required=True)
flags.add_argument("--tune", action="store_true", required=True); flags.add_argument("--dtype")
args = flags.parse_args()
pathlib.Path(f"E=64,N={1024 // args.tp_size},device_name=GPU.json").write_text("{}")
print("tuned for tp", args.tp_size)
"""
DEEPEP = """
import argparse, pathlib
flags = argparse.ArgumentParser()
flags.add_argument("--nnodes", type=int, required=True); flags.add_argument("--node-rank", type=int, required=True)
flags.add_argument("--master-addr", required=True)
args = flags.parse_args()
pathlib.Path(f"rank{args.node_rank}").write_text("")
if not args.node_rank:
    pathlib.Path("deepep_tuned.json").write_text("{}")
"""


def checkout(folder: Path) -> Path:
    for name, text in (("fused_moe_triton/tuning_fused_moe_triton", FUSED_MOE), ("deepep/tuning_deepep", DEEPEP)):
        script = folder / "benchmark" / "kernels" / f"{name}.py"
        script.parent.mkdir(parents=True)
        script.write_text(text)
    return folder


def prepared(folder: Path, kind: str = "sglang-offline", **options: Any) -> Study:
    knobs = {"tp": [1, 2], "max_running_requests": [64, 128]}
    asked = with_standin(study(folder, kind, knobs, traffic=LOAD, **options))
    return replace(asked, job=JobLimits(gpus=Expression.parse("tp")))


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "ridgeline" / "prepared").iterdir())


def test_deepgemm_is_compiled_once_for_a_layout_and_again_for_another(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["deepgemm"])
    workload = sglang_offline(asked)
    for name, changes in (("one", {}), ("two", {"max_running_requests": 128}), ("three", {"tp": 2})):
        outcome, _ = run_for_real(workload, asked, tmp_path / name, **changes)
        assert outcome.kind is Kind.OK, outcome
    assert "compiling for tp 1" in (tmp_path / "one" / "prepare.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists(), "the batch does not decide which kernels there are"
    assert "compiling for tp 2" in (tmp_path / "three" / "prepare.log").read_text()
    assert len(kept(tmp_path)) == 2


def test_fused_moe_is_tuned_once_and_found_by_the_engine(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["fused-moe"], sources=str(checkout(tmp_path / "src")))
    workload = sglang_offline(asked)
    for name in ("one", "two"):
        outcome, _ = run_for_real(workload, asked, tmp_path / name)
        assert outcome.kind is Kind.OK, outcome
    (folder,) = kept(tmp_path)
    assert f"fused-MoE configs from {folder}\n" in (tmp_path / "two" / "engine.log").read_text()
    # fused_moe_triton_config.py looks there, and nowhere else below that folder
    assert (folder / "configs" / "triton_3_7_1" / "E=64,N=1024,device_name=GPU.json").is_file()
    assert not (tmp_path / "two" / "prepare.log").exists()


@pytest.mark.parametrize("kind", ["sglang-offline", "sglang-serve"])
def test_experts_are_counted_once_under_traffic_of_the_study(tmp_path: Path, kind: str) -> None:
    asked = prepared(tmp_path, kind, prepare=["eplb"], warmup=0)
    workload = sglang_serve(asked) if kind.endswith("serve") else sglang_offline(asked)
    for name in ("one", "two"):
        run_for_real(workload, asked, tmp_path / name)
    (folder,) = kept(tmp_path)
    assert (folder / "experts.pt").read_text() == str(LOAD["requests"])
    assert f"init_expert_location='{folder / 'experts.pt'}'" in (tmp_path / "two" / "engine.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists()


def test_deepep_is_tuned_on_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = 'while case "$1" in --*) true;; *) false;; esac; do shift; done\nSLURM_PROCID=1 "$@" &\n'
    tool = tmp_path / "bin" / "srun"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n{starts}SLURM_PROCID=0 "$@"\nwait %1 2>/dev/null\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    one = prepared(tmp_path, prepare=["deepep"], sources=str(checkout(tmp_path / "src")))
    assert "2 nodes or more" in (sglang_offline(one).refusal(trial(one).settings) or "")
    two = replace(one, job=JobLimits(nodes=Expression.parse("2")), site=Site(launcher="srun", gpus_per_node=1))
    workload = sglang_offline(two)
    assert workload.refusal(trial(two, tp=2).settings) is None
    run_for_real(workload, two, tmp_path / "run", tp=2)
    (folder,) = kept(tmp_path)
    assert {path.name for path in folder.iterdir()} >= {"rank0", "rank1", "deepep_tuned.json"}
    assert f"deepep_config='{folder / 'deepep_tuned.json'}'" in (tmp_path / "run" / "engine.log").read_text()


def test_what_is_set_in_the_study_goes_before_what_a_step_would_give(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["eplb"], flags={"init_expert_location": "mine.pt"})
    sglang_offline(asked).prepare(trial(asked), tmp_path / "run")
    script = (tmp_path / "run" / "engine.sh").read_text()
    assert "--init-expert-location mine.pt" in script
    assert "RIDGELINE_EXPERTS" not in script


def test_a_step_that_fails_ends_the_run_with_its_name_and_is_tried_again(tmp_path: Path) -> None:
    sources = checkout(tmp_path / "src")
    script = sources / "benchmark" / "kernels" / "fused_moe_triton" / "tuning_fused_moe_triton.py"
    script.write_text("raise SystemExit('no Ray here')")
    asked = prepared(tmp_path, prepare=["fused-moe"], sources=str(sources))
    workload = sglang_offline(asked)
    outcome, _ = run_for_real(workload, asked, tmp_path / "one")
    assert outcome.kind is Kind.CRASH
    assert "preparation fused-moe" in str(outcome)
    assert "no Ray here" in (tmp_path / "one" / "prepare.log").read_text()
    assert kept(tmp_path) == []
    script.write_text(FUSED_MOE)
    assert run_for_real(workload, asked, tmp_path / "two")[0].kind is Kind.OK


def keys(folder: Path, of: Study, **changes: Any) -> list[str]:
    sglang_offline(of).prepare(trial(of, **changes), folder)
    return [step["key"] for step in json.loads((folder / "session.json").read_text())["prepare"]]


def test_the_key_is_model_layout_and_release(tmp_path: Path) -> None:
    """The GPU's name is the node's to add."""
    steps = {"prepare": ["deepgemm"]}
    base = keys(tmp_path / "a", prepared(tmp_path, version="0.5.23", **steps))
    assert base == keys(tmp_path / "b", prepared(tmp_path, version="0.5.23", **steps), max_running_requests=128)
    for number, (other, changes) in enumerate(
        [
            (prepared(tmp_path, version="0.5.22", **steps), {}),
            (prepared(tmp_path, version="0.5.23", model="qwen2.5-7b", **steps), {}),
            (prepared(tmp_path, version="0.5.23", flags={"quantization": "fp8"}, **steps), {}),
            (prepared(tmp_path, version="0.5.23", **steps), {"tp": 2}),
        ]
    ):
        assert keys(tmp_path / f"c{number}", other, **changes) != base


def test_the_gpu_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    asked = prepared(tmp_path, prepare=["deepgemm"])
    for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        tool.write_text(f'#!/bin/sh\ncase "$1" in *name*) echo "{gpu}";; *) echo "500, 143771";; esac\n')
        tool.chmod(0o755)
        run_for_real(sglang_offline(asked), asked, tmp_path / gpu.replace(" ", "-"))
    assert ["-NVIDIA-H100-80GB-HBM3-" in p.name or "-NVIDIA-H200-" in p.name for p in kept(tmp_path)] == [True, True]


def test_steps_and_sources_are_checked_before_anything_runs(tmp_path: Path) -> None:
    (problem,) = sglang_offline(prepared(tmp_path, prepare=["fused-moe"])).problems()
    assert problem.where == ("workload", "prepare", 0)
    assert "sources" in problem.message
    asked = study(tmp_path, "vllm-offline", {"tp": [1]}, prepare=["deepgemm"])
    assert "no such step for vllm" in vllm_offline(asked).problems()[0].message


def test_a_dry_run_prints_the_exact_command_of_every_step(tmp_path: Path) -> None:
    sources = checkout(tmp_path / "src")
    workload = {
        "kind": "sglang-offline", "model": "deepseek-r1", "version": "0.5.23", "sources": str(sources),
        "prepare": [REHEARSE, *SGLANG.steps], "env": {"PYTHONPATH": str(STANDIN)},
    }  # fmt: skip
    text = {
        "version": 1, "name": "steps", "workload": workload, "space": {"tp": [16], "attn_dp": [16]},
        "goal": {"maximize": "total_tok_s"}, "baseline": {"tp": 16, "attn_dp": 16},
        "job": {"nodes": 2, "gpus": 8}, "site": {"batch": "slurm", "nodes": 2, "gpus_per_node": 8, "launcher": "srun"},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    command = [sys.executable, "-m", "ridgeline", "tune", "study.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in (
        "-m sglang.compile_deep_gemm --model-path",
        f"{sources}/benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py --model",
        f'{sources}/benchmark/kernels/deepep/tuning_deepep.py --nnodes 2 --node-rank "$rank"',
        "--expert-distribution-recorder-mode stat",
        '--deepep-config "$RIDGELINE_DEEPEP"',
        '--init-expert-location "$RIDGELINE_EXPERTS"',
        "-m sglang.benchmark.offline_throughput",
        "--attn-dp-size 16",
    ):
        assert words in done.stdout, words


@pytest.mark.parametrize("kind", ["sglang-offline", "sglang-serve"])
def test_baked_caches_are_filled_once_and_every_run_starts_from_them(tmp_path: Path, kind: str) -> None:
    asked = prepared(tmp_path, kind, goal="output_tok_s", prepare=["bake"])
    workload = sglang_offline(asked) if kind == "sglang-offline" else sglang_serve(asked)
    for name in ("one", "two"):
        outcome, reading = run_for_real(workload, asked, tmp_path / name)
        assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
        assert "kernels from" in (tmp_path / name / "engine.log").read_text()
        assert "starts from caches baked in" in (tmp_path / name / "stderr").read_text()
        assert "start_saved_s" in reading.metrics or kind == "sglang-offline", "it ends before it is seen to begin"
    assert "compiling kernels" in (tmp_path / "one" / "prepare.log").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists()


def test_a_baked_cache_of_another_release_is_baked_anew_and_says_so(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["bake"])
    workload = sglang_offline(asked)
    run_for_real(workload, asked, tmp_path / "one")
    (baked,) = kept(tmp_path)
    said = (baked / "done").read_text()
    (baked / "done").write_text(said.replace("0.5.15.post1", "0.5.14"))
    run_for_real(workload, asked, tmp_path / "two")
    assert "was baked by release 0.5.14, this is 0.5.15.post1: baked anew" in (tmp_path / "two" / "stderr").read_text()
    assert "compiling kernels" in (tmp_path / "two" / "prepare.log").read_text()
    assert (baked / "done").read_text().count("0.5.15.post1") == 1


def baked_tar(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Study, Path]:
    """A study of which one run has baked a tar, and that tar."""
    node_disk = folder / "disk"
    node_disk.mkdir()
    monkeypatch.setenv("TMPDIR", str(node_disk))
    asked = prepared(folder, prepare=["bake"], bake_into="tar", **options)
    outcome, _ = run_for_real(sglang_offline(asked), asked, folder / "one")
    assert outcome.kind is Kind.OK, outcome
    (kept_folder,) = kept(folder)
    (tar,) = kept_folder.glob("*.tar")
    return asked, tar


def test_a_baked_tar_is_unpacked_on_the_node_and_removed_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, tar = baked_tar(tmp_path, monkeypatch)
    assert sorted(path.name for path in tar.parent.iterdir()) == [tar.name, "done"], "one file and its manifest"
    with tarfile.open(tar) as opened:
        assert opened.getnames() == ["triton", "triton/kernel.so"]
    outcome, _ = run_for_real(sglang_offline(asked), asked, tmp_path / "two")
    assert outcome.kind is Kind.OK, outcome
    local = tmp_path / "disk" / f"ridgeline-{os.getuid()}" / tar.parent.name
    assert f"kernels from {local}/triton" in (tmp_path / "two" / "engine.log").read_text(), "and at the same path again"
    assert f"baked in {tar}, unpacked to {local}" in (tmp_path / "two" / "stderr").read_text()
    assert not (tmp_path / "two" / "prepare.log").exists()
    assert not local.exists()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda tar: tar.write_bytes(tar.read_bytes()[:5000]), "is damaged: {tar} has 5000 of 10240 bytes"),
        (lambda tar: tar.write_bytes(b"x" + tar.read_bytes()[1:]), "is damaged: {tar} does not match its checksum"),
        (lambda tar: tar.unlink(), "is damaged: {tar} cannot be read (No such file or directory)"),
    ],
)
def test_a_damaged_tar_is_baked_anew_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any, said: str
) -> None:
    asked, tar = baked_tar(tmp_path, monkeypatch)
    harm(tar)
    outcome, _ = run_for_real(sglang_offline(asked), asked, tmp_path / "two")
    assert outcome.kind is Kind.OK, outcome
    assert f"{tar.parent} {said.format(tar=tar.name)}: baked anew" in (tmp_path / "two" / "stderr").read_text()
    assert "compiling kernels" in (tmp_path / "two" / "prepare.log").read_text()
    manifest = Manifest.of(tar.parent)
    assert manifest is not None
    assert not manifest.why_not(tar.parent, "0.5.15.post1", "", manifest.key)
    assert len(list(tar.parent.glob("*.tar"))) == 1


def test_a_manifest_of_another_release_gpu_or_model_is_not_used(tmp_path: Path) -> None:
    baked = Manifest("0.5.15", 12.0, 60.0, "NVIDIA H200", "abc")
    baked.write(tmp_path)
    assert Manifest.of(tmp_path) == baked
    assert baked.why_not(tmp_path, "0.5.15", "NVIDIA H200", "abc") == ""
    assert baked.why_not(tmp_path, "0.5.16", "NVIDIA H200", "abc") == "was baked by release 0.5.15, this is 0.5.16"
    assert baked.why_not(tmp_path, "0.5.15", "NVIDIA H100", "abc") == "was baked on NVIDIA H200, this is NVIDIA H100"
    assert baked.why_not(tmp_path, "0.5.15", "NVIDIA H200", "d") == "was baked for another model, layout or engine"
    (tmp_path / "done").write_text('{"release": "0.5.15", "ready_s": 12.0')
    assert Manifest.of(tmp_path) is None, "torn"


def test_two_jobs_on_one_node_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_SCRATCH", str(tmp_path))
    first, second = NodeFolder("bake-x"), NodeFolder("bake-x")
    assert first.path.name == "bake-x"
    assert second.path == first.path.with_name(f"bake-x-{os.getpid()}")
    first.give_back()
    assert NodeFolder("bake-x").path == first.path, "free again"


def test_a_tar_that_does_not_fit_on_the_node_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "torn.tar").write_bytes(b"x" * 600)
    with pytest.raises(SiteError, match=r"torn.tar cannot be unpacked to .*here on .*set the site's `scratch`"):
        unpack(tmp_path / "torn.tar", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_another_node_of_the_job_unpacks_the_tar_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "caches" / "triton").mkdir(parents=True)
    (tmp_path / "caches" / "triton" / "kernel.so").write_text("")
    make_tar(tmp_path / "caches", tmp_path / "caches.tar")
    run, local = tmp_path / "run", tmp_path / "disk" / "bake-x"
    run.mkdir()
    caches = {"folder": str(local), "tar": str(tmp_path / "caches.tar")}
    ranks = {"head": "127.0.0.1", "interface": "", "host_variable": "", "start": "1-1", "caches": caches}
    (run / "ranks.json").write_text(json.dumps(ranks))
    (run / "engine.sh").write_text(f"ls {local}/triton > seen\n")
    env = {**os.environ, "SLURM_PROCID": "1"}
    command = [sys.executable, "-m", "ridgeline.serving.workloads.engine.session.rank", str(run / "engine.sh")]
    subprocess.run(command, env=env, check=True, timeout=600)
    assert (run / "seen").read_text() == "kernel.so\n"
    assert not local.exists()


# what Apptainer does with these options, as far as they matter to an engine that looks for its caches
APPTAINER = """#!/bin/sh
echo "$@" >> "$APPTAINER_LOG"
[ "$1" = exec ] && shift
while :; do case "$1" in
  --bind) caches=${2%:*}; shift 2;;
  --overlay) image=${2%:ro}; shift 2;;
  --nv|--writable-tmpfs) shift;;
  *) break;;
esac; done
shift
if [ -n "$image" ]; then
  caches=$(mktemp -d)
  case "$image" in
    *.sqfs) unsquashfs -f -d "$caches" "$image" >/dev/null && caches=$caches/ridgeline-caches;;
    *) debugfs -R "rdump /upper/ridgeline-caches $caches" "$image" 2>/dev/null; caches=$caches/ridgeline-caches;;
  esac
fi
[ "$TRITON_CACHE_DIR" = /ridgeline-caches/triton ] && export TRITON_CACHE_DIR="$caches/triton"
exec "$@"
"""


WITH_TOOLS = f"{os.environ['PATH']}:/usr/sbin:/sbin"
READERS = {"mksquashfs": ["unsquashfs", "-l"], "mke2fs": ["debugfs", "-R", "ls -l /upper/ridgeline-caches/triton"]}


@pytest.mark.parametrize("tool", READERS)
def test_an_image_holds_the_caches_where_apptainer_looks(tmp_path: Path, tool: str) -> None:
    """Apptainer lays the top of a squashfs image over a container, and of an ext3 image its folder `upper`."""
    if (found := shutil.which(tool, path=WITH_TOOLS)) is None:
        pytest.skip(f"{tool} is not installed here")
    caches = tmp_path / "root" / "ridgeline-caches" / "triton"
    caches.mkdir(parents=True)
    (caches / "kernel.so").write_bytes(bytes(range(256)) * 40_000)
    make_image(found, tmp_path / "root", tmp_path / "image")
    read = [shutil.which(READERS[tool][0], path=WITH_TOOLS) or "", *READERS[tool][1:], str(tmp_path / "image")]
    shown = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    assert "kernel.so" in shown
    assert tool == "mke2fs" or "/ridgeline-caches/triton/kernel.so" in shown


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    tool = tmp_path / "mksquashfs"
    tool.write_text("#!/bin/sh\necho 'FATAL ERROR: Write failed because No space left on device' >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(SiteError, match=r"no image of the baked caches \(exit code 1\): FATAL ERROR: Write failed"):
        make_image(str(tool), tmp_path, tmp_path / "image")


def test_an_overlay_image_is_made_once_and_laid_over_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real tool that makes the image, and a stand-in for Apptainer that takes it apart again."""
    if not any(shutil.which(tool, path=WITH_TOOLS) for tool in READERS):
        pytest.skip("neither mksquashfs nor mke2fs is installed here")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apptainer").write_text(APPTAINER)
    (tools / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{WITH_TOOLS}")
    monkeypatch.setenv("APPTAINER_LOG", str(tmp_path / "apptainer.log"))
    install = {"container": "/images/sglang.sif", "python": sys.executable, "version": "0.5.15"}
    asked = prepared(tmp_path, prepare=["bake"], bake_into="overlay", engine="image", engines={"image": install})
    for name in ("one", "two"):
        outcome, _ = run_for_real(sglang_offline(asked), asked, tmp_path / name)
        assert outcome.kind is Kind.OK, outcome
        assert "kernels from" in (tmp_path / name / "engine.log").read_text()
    (folder,) = kept(tmp_path)
    (image,) = folder.glob("caches-*")
    assert {path.name for path in folder.iterdir()} == {image.name, "done"}
    fill, first, second = (tmp_path / "apptainer.log").read_text().splitlines()
    assert f"--bind {folder}/.filling-" in fill
    assert ":/ridgeline-caches /images/sglang.sif" in fill
    mounts = f"exec --nv --overlay {image}:ro --writable-tmpfs /images/sglang.sif {sys.executable} -m sglang"
    assert first.startswith(mounts)
    assert second.startswith(mounts)


def test_an_overlay_needs_an_apptainer_image(tmp_path: Path) -> None:
    asked = prepared(tmp_path, prepare=["bake"], bake_into="overlay")
    reason = sglang_offline(asked).refusal(trial(asked).settings)
    assert reason == (
        "bake_into: overlay is laid over an Apptainer image, and this engine runs in no container; use `bake_into: tar`"
    )
    alone = prepared(tmp_path, bake_into="tar")
    (problem,) = sglang_offline(alone).problems()
    assert problem.where == ("workload", "bake_into")
    assert "nothing is baked; add `prepare: [bake]`" in problem.message


def test_a_node_without_a_tool_for_images_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(SiteError, match=r"needs mksquashfs or mke2fs on .*; install squashfs-tools there, or use"):
        image_tool()
