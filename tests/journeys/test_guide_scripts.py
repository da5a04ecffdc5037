"""Every study of the guides renders scripts that an expert would submit: on Slurm and on PBS, on one node and on two.

What is rendered is held against what accepts it: directives against a real Slurm (`sbatch --test-only`, on nodes of the
size of a DGX) and against the request and the node that a PBS server printed; srun's options against srun, those of
Open MPI against a short list; the engine's flags against the lists of its release; all of it against the shell.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.preview import doubts, rehearse
from ridgeline.errors import StudyError
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.flags import engine_flags
from ridgeline.serving.engines.releases import parse_version
from tests.slurm_cluster import SlurmCluster, plain_environment
from tests.workloads.engine.test_guide import blocks, merged

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SAMPLE = Path(__file__).parents[1] / "samples" / "batch" / "aspire2a-plus.txt"
ENGINES = ("tune-sglang", "tune-vllm")
STUDIES = {"tune-nwchem": 0, "my-cluster": 1}  # guides with one study, and which block it is
RUNGS = [(guide, index) for guide in ENGINES for index in range(len(blocks(GUIDES / f"{guide}.md")))]
RUNGS += list(STUDIES.items())

SIZE = {"nodes": 2, "gpus_per_node": 8, "cores_per_node": 112, "memory_per_node": "1880 GiB"}
SITES = {
    "slurm": {"batch": "slurm", "queue": "gpu", "launcher": "srun", **SIZE},
    "pbs": {
        "batch": "pbs",
        "queue": "normal",
        "account": "90000001",
        "launcher": "openmpi",
        "modules": ["cuda"],
        **SIZE,
    },
}
# what the engines' benchmarks take beside the flags of the engine itself
OWN_FLAGS = {
    "sglang": {"dataset_name", "dataset_path", "num_prompts", "seed", "result_filename", "skip_warmup"},
    "vllm": {"dataset_name", "dataset_path", "num_prompts", "seed", "output_json", "num_warmups", "headless", "host",
             "port"},
}  # fmt: skip
MPIRUN = {"-np": r"\d+", "--map-by": r"ppr:\d+:node", "--bind-to": "none|core|socket", "--allow-run-as-root": None}


def own(guide: str, index: int) -> dict[str, Any]:
    return merged(GUIDES / f"{guide}.md", index)


def study_of(guide: str, index: int, nodes: int, site: dict[str, Any] | None) -> dict[str, Any]:
    """A rung as its guide says it, on so many nodes; `site` None leaves the guide's own."""
    path = GUIDES / f"{guide}.md"
    study = deepcopy(merged(path, index) if guide in ENGINES else blocks(path)[index])
    asked = study.get("job", {}).get("nodes", 1)
    if nodes < asked:
        study = on_one_node(study)
    elif nodes > asked:
        study["job"] = {**study.get("job", {}), "nodes": nodes}
        if "node_hours" in study.get("budget", {}):
            study["budget"]["node_hours"] *= nodes / asked  # as many runs as the guide's budget holds
        if guide in ENGINES:
            study["workload"]["flags"] = {**study["workload"].get("flags", {}), "tp": nodes}
            study["job"]["gpus"] = study["job"].get("gpus", 1)
    if site is not None:
        study["site"] = site
    return study


def on_one_node(study: dict[str, Any]) -> dict[str, Any]:
    """As the guide says: eight GPUs instead of sixteen, and no second node."""
    text = re.sub(r"(?<![\w.])16(?![\w.])", "8", yaml.safe_dump(study))
    found = yaml.safe_load(text)
    found["space"] = {name: list(dict.fromkeys(values)) for name, values in found["space"].items()}
    found["job"].pop("nodes")
    return found


def rendered(folder: Path, study: dict[str, Any]) -> tuple[CheckedStudy, Path]:
    """The study as `check` accepts it, and the run folder of its first trial with all that would be submitted."""
    for name in ("my-molecule.xyz", "solver", "input.dat"):
        (folder / name).write_text("1\n\nHe 0 0 0\n")
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    checked = check_study(folder / "study.yaml")
    (first,) = rehearse(folder / "study.yaml", SearchQuestion(), 1, folder / "out")
    (run,) = (folder / "out" / "runs").iterdir()
    (run / "run.sh").write_text(first.script)
    return checked, run


def cases() -> list[Any]:
    found = []
    for guide, index in RUNGS:
        for batch in SITES:
            for nodes in (1, 2):
                found.append(pytest.param(guide, index, batch, nodes, id=f"{guide}-{index}-{batch}-{nodes}"))
    return found


@pytest.mark.slurm
@pytest.mark.parametrize(("guide", "index", "batch", "nodes"), cases())
def test_every_rung_renders_what_batch_system_launcher_and_engine_accept(
    slurm: SlurmCluster, tmp_path: Path, guide: str, index: int, batch: str, nodes: int
) -> None:
    study = study_of(guide, index, nodes, SITES[batch])
    if batch == "pbs" and guide == "my-cluster":
        study["workload"]["run"] = study["workload"]["run"].replace("srun --ntasks=", "mpirun -np ")
    if study["workload"]["kind"] == "vllm-offline" and nodes > 1:
        with pytest.raises(StudyError, match="use vllm-serve"):
            rendered(tmp_path, study)
        return
    checked, run = rendered(tmp_path, study)
    assert doubts(checked) == []
    for script in run.glob("*.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True)
    text = (run / "run.sh").read_text()
    if batch == "slurm":
        assert_slurm_takes(slurm, run / "run.sh")
    else:
        assert_pbs_takes(text, nodes)
        assert text.index("module load cuda") < text.index("timeout -k")
    gpus = checked.study.job.resources(checked.study.space.settings(checked.study.baseline)).gpus
    assert_share(text, gpus)
    if guide in ENGINES:
        assert_session(run, nodes, "srun" if batch == "slurm" else "openmpi")


@pytest.mark.slurm
@pytest.mark.parametrize(("guide", "index"), [rung for rung in RUNGS if rung[0] in ENGINES and "site" in own(*rung)])
def test_a_site_written_into_a_guides_study_stands_as_it_is(
    slurm: SlurmCluster, tmp_path: Path, guide: str, index: int
) -> None:
    study = study_of(guide, index, own(guide, index)["job"]["nodes"], None)
    checked, run = rendered(tmp_path, study)
    assert checked.study.site.name != "local"
    assert doubts(checked) == []
    at_baseline = checked.study.space.settings(checked.study.baseline)
    assert checked.workload.remarks(at_baseline), "how the nodes meet is said"
    if checked.study.site.batch == "slurm":
        assert_slurm_takes(slurm, run / "run.sh")
        assert "#SBATCH --exclusive" in (run / "run.sh").read_text()
    else:
        assert_pbs_takes((run / "run.sh").read_text(), 2)


def test_the_site_of_my_cluster_loads_and_takes_a_job(tmp_path: Path) -> None:
    site, study, *parts = blocks(GUIDES / "my-cluster.md")
    assert site["batch"] == "slurm"
    script = next(part for part in parts if set(part) == {"options"})
    (tmp_path / "my-cluster.yaml").write_text(yaml.safe_dump(site))
    checked, run = rendered(tmp_path, study)
    assert checked.study.site.name == "my-cluster"
    text = (run / "run.sh").read_text()
    for line in ("#SBATCH --partition=compute", "#SBATCH --account=ab12", "module load openmpi/4.1.5"):
        assert line in text
    (tmp_path / "my-job.sh").write_text('#!/bin/sh\n#SBATCH --time=5\neval "$RIDGELINE_COMMAND"\n')
    (tmp_path / "my-cluster.yaml").write_text(yaml.safe_dump({**site, **script}))
    again = tmp_path / "again"
    again.mkdir()
    (again / "my-cluster.yaml").write_text(yaml.safe_dump({**site, **script}))
    (again / "my-job.sh").write_text((tmp_path / "my-job.sh").read_text())
    assert "#SBATCH --time=5\n" in (rendered(again, study)[1] / "run.sh").read_text()


def assert_slurm_takes(slurm: SlurmCluster, script: Path) -> None:
    """A real sbatch reads the directives, and slurmctld says where and when the job would start."""
    done = slurm.run("sbatch", "--test-only", str(script), check=False)
    assert done.returncode == 0, done.stderr + script.read_text()[:1500]
    assert "to start at" in done.stderr


@cache
def pbs_node() -> dict[str, int]:
    """What a node of a real PBS cluster has, from the output of a job that used all of it."""
    found = re.search(r"\(\S+?:ncpus=(\d+):mpiprocs=\d+:ngpus=(\d+):mem=(\d+)kb\)", SAMPLE.read_text())
    assert found
    cores, gpus, memory_kb = map(int, found.groups())
    return {"ncpus": cores, "ngpus": gpus, "mem": memory_kb // 1024}


def assert_pbs_takes(script: str, nodes: int) -> None:
    """The requests that we know PBS to take, each once, within what a real node has; no server is asked."""
    lines = re.findall(r"^#PBS (-\w) (.*)$", script, re.MULTILINE)
    assert len(lines) == script.count("#PBS "), "every directive is an option and its value"
    plain = {option: value for option, value in lines if option != "-l"}
    assert re.fullmatch(r"[A-Za-z][\w.+-]{0,14}", plain["-N"])
    assert plain["-r"] == "n"
    assert "-q" in plain
    assert re.fullmatch(r"\S+", plain.get("-P", "x"))
    wanted = dict(value.split("=", 1) for option, value in lines if option == "-l")
    assert set(wanted) <= {"walltime", "select", "place"}
    assert re.fullmatch(r"\d\d+:[0-5]\d:[0-5]\d", wanted["walltime"])
    assert re.fullmatch(r"(free|pack|scatter)(:(excl|exclhost|shared))?", wanted.get("place", "free"))
    if nodes > 1:
        assert wanted["place"].startswith("scatter"), "else PBS may put both chunks on one node"
    count, *parts = wanted["select"].split(":")
    assert int(count) == nodes
    chunk = dict(part.split("=") for part in parts)
    assert set(chunk) <= {"ncpus", "mpiprocs", "ompthreads", "ngpus", "mem"}
    for name, most in pbs_node().items():
        assert int(chunk.get(name, "0").removesuffix("mb")) <= most, f"{name} of {wanted['select']}"
    assert int(chunk["mpiprocs"]) <= int(chunk["ncpus"])


def assert_share(script: str, gpus: int) -> None:
    """A job with GPUs has the cores and the memory that belong to them; one without has the whole node."""
    share = gpus / 8 if gpus else 1
    tasks = int((re.search(r"--ntasks-per-node=(\d+)", script) or [0, 1])[1])
    cores = re.search(r"--cpus-per-task=(\d+)|ncpus=(\d+)", script)
    memory = re.search(r"--mem=(\d+)M|mem=(\d+)mb", script)
    assert cores
    if "#SBATCH --exclusive" in script:  # a whole node is asked for as such, with all its memory
        assert share == 1
        assert "#SBATCH --mem=0" in script
        return
    assert memory
    assert tasks * int(cores[1] or 0) + int(cores[2] or 0) >= 0.8 * share * 112
    assert int(memory[1] or memory[2]) == int(share * 1880 * 1024)


def assert_session(run: Path, nodes: int, launcher: str) -> None:
    session = json.loads((run / "session.json").read_text())
    command = (run / "engine.sh").read_text().partition("exec ")[2]
    assert_engine_takes(session["engine"], session["asked"]["version"], command, nodes)
    starts = [session["start"], *(step["start"] for step in session["prepare"])]
    if nodes == 1:
        assert all(start.startswith("sh ./") for start in starts)
        return
    for start in starts:
        if start.startswith("sh ./"):
            continue  # a step of one node
        options, python, program = start.partition(f" {shlex.quote(sys.executable)} ")
        assert python and "ridgeline.serving.workloads.engine.session.rank" in program
        assert_launcher_takes(launcher, options)


def assert_launcher_takes(launcher: str, options: str) -> None:
    if launcher == "srun":
        tried = [*options.split(), "--test-only", "--partition=gpu", "true"]
        done = subprocess.run(tried, capture_output=True, text=True, env=plain_environment())
        assert done.returncode == 0, done.stderr
        assert "--cpu-bind=none" in options, "an engine places its own threads"
        return
    words = options.rpartition(")")[2].split()
    while words:
        option = words.pop(0)
        assert option in MPIRUN, option
        if (takes := MPIRUN[option]) is not None:
            assert re.fullmatch(takes, words.pop(0))


def assert_engine_takes(engine: str, version: str, command: str, nodes: int) -> None:
    """Every flag is one of the release, and no interpreter is a folder."""
    known, release = engine_flags(engine), parse_version(version) or engine_named(engine).latest
    # the program of vLLM's benchmark is text of its own
    words = shlex.split(re.sub(r"\$\(\[.*?\]\s*\|\|\s*echo (\S+)\)", r"\1", command))
    assert re.search(r"python3?$", words[0]) or "apptainer" in command, words[0]
    names = [word[2:].replace("-", "_") for word in words if word.startswith("--") and " " not in word]
    for name in names:
        flag = known.flags.get(name) or known.flags.get(name.removeprefix("no_"))
        assert name in OWN_FLAGS[engine] or (flag is not None and flag.there(release)), f"--{name} of {engine}"
    if "headless" in names:
        assert "vllm.entrypoints.cli.main serve" in command, "nothing else of vLLM heeds it"
    spans = {"sglang": {"nnodes", "node_rank", "dist_init_addr"}, "vllm": {"nnodes", "node_rank", "master_addr"}}
    assert (spans[engine] <= set(names)) == (nodes > 1)
