"""Limits of power and clock as knobs: set before the engine starts, read back, given back; refused with the reason."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.expression import Expression
from ridgeline.records.outcome import Kind
from ridgeline.records.run import OWN_LOG
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.failures import FailureCause, cause_of
from ridgeline.serving.engines.sglang.engine import SGLANG
from ridgeline.serving.engines.vllm.engine import VLLM
from ridgeline.serving.hardware.gpu_limits import CLOCK, POWER_LIMIT
from ridgeline.serving.workloads.engine.session.held_gpus import held_gpus
from ridgeline.serving.workloads.engine.session.process import EngineFailed
from tests.workloads.engine.studies import run_for_real, sglang_serve, study, trial, with_standin
from tests.workloads.engine.test_several_nodes import SRUN, two_nodes

UUID = "GPU-84398e68-7bc8-980f-d824-f82cbe8ef16c"
LOAD = {"input_tokens": 12, "output_tokens": 20, "requests": 12}
# Stands for nvidia-smi 570 on an H200, in its words: what it was told last is in a file, as the driver has it.
NVIDIA_SMI = f"""#!{sys.executable} -IS
import json, os, pathlib, sys
home = pathlib.Path(__file__).parent
uuid = "{UUID}"[:-1] + os.environ.get("SLURM_PROCID", "c")  # every node has its own
path = home / ("gpu.json" if uuid == "{UUID}" else uuid + ".json")
state = json.loads(path.read_text() if path.exists() else (home / "start.json").read_text())
name, bus = sys.argv[1:], "00000000:C1:00.0"
with (home / "calls").open("a") as calls:
    calls.write(" ".join(name) + chr(10))
said = dict(option.removeprefix("--").split("=", 1) if "=" in option else (option[2:], "") for option in name)
facts = {{"uuid": uuid, "power.limit": state["limit"], "mig.mode.current": state["mig"], "name": "NVIDIA H200",
         "memory.used": "500", "memory.total": "143771"}}
if said.get("id", "").startswith("MIG-"):
    print("No devices were found"); sys.exit(6)
if "query-gpu" in said:
    print(", ".join(facts[column] for column in said["query-gpu"].split(",")))
    sys.exit()
if said.get("id", uuid) != uuid:
    print("No devices were found"); sys.exit(6)
if state["mood"] == "forbidden":
    print(f"Failed to set power management limit for GPU {{bus}}: Insufficient Permissions" if "power-limit" in said
          else f"The current user does not have permission to change clocks for GPU {{bus}}.")
    print("Terminating early due to previous errors."); sys.exit(4)
if state["mood"] == "asked to end":
    os.kill(os.getpid(), 15)
if "power-limit" in said:
    watts = float(said["power-limit"])
    if not 200 <= watts <= 700:
        print(f"Provided power limit {{watts:.2f}} W is not a valid power limit which should be between 200.00 W and "
              f"700.00 W for GPU {{bus}}"); sys.exit(2)
    print(f"Power limit for GPU {{bus}} was set to {{watts:.2f}} W from {{state['limit']}} W.")
    watts = max(watts, 450) if state["mood"] == "lavish" else watts
    state["limit"] = state["limit"] if state["mood"] == "deaf" else f"{{watts:.2f}}"
elif "lock-gpu-clocks" in said and state["mood"] == "old":
    print(f"Setting locked GPU clocks is not supported for GPU {{bus}}.")
    print("Treating as warning and moving on.")
elif "lock-gpu-clocks" in said:
    state["clock"] = said["lock-gpu-clocks"]
    print(f'GPU clocks set to "(gpuClkMin {{state["clock"]}})" for GPU {{bus}}')
elif "reset-gpu-clocks" in said:
    state["clock"] = ""
print("All done.")
path.write_text(json.dumps(state))
"""


class StandInGpu:
    def __init__(self, folder: Path) -> None:
        self._state, self._calls, self._folder = folder / "gpu.json", folder / "calls", folder
        self.set(limit="700.00", clock="", mood="willing", mig="Disabled")

    def set(self, **changes: str) -> None:
        known = json.loads(self._state.read_text()) if self._state.exists() else {}
        self._state.write_text(json.dumps(known | changes))
        (self._folder / "start.json").write_text(json.dumps(known | changes))

    @property
    def limit(self) -> tuple[str, str]:
        state = json.loads(self._state.read_text())
        return state["limit"], state["clock"]

    @property
    def told(self) -> list[str]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [line.rpartition(" ")[2] for line in lines if "query" not in line]

    @property
    def limits_of_nodes(self) -> list[str]:
        return [json.loads(path.read_text())["limit"] for path in sorted(self._folder.glob("GPU-*.json"))]


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInGpu:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StandInGpu(tool.parent)


def limited(folder: Path):
    knobs = {POWER_LIMIT: ["default", 500, 150], CLOCK: ["default", 1500]}
    asked = with_standin(study(folder, "sglang-serve", knobs, goal="output_tok_s", traffic=LOAD, warmup=3))
    return asked, sglang_serve(asked)


def test_the_engine_runs_under_the_limits_and_the_gpu_has_its_own_again_afterwards(
    tmp_path: Path, gpu: StandInGpu
) -> None:
    gpu.set(limit="650.00")
    asked, workload = limited(tmp_path)
    outcome, _ = run_for_real(workload, asked, tmp_path / "runs" / "1", gpu_power_limit=500, gpu_clock=1500)
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    assert gpu.told == [
        "--power-limit=500", "--lock-gpu-clocks=1500,1500", "--power-limit=650.00", "--reset-gpu-clocks"
    ]  # fmt: skip
    assert gpu.limit == ("650.00", "")
    measured = json.loads((tmp_path / "runs" / "1" / "measured.json").read_text())
    assert measured["gpu_limits"] == {UUID: {POWER_LIMIT: 500.0, CLOCK: 1500.0}}
    assert not records(tmp_path)


def records(folder: Path) -> list[Path]:
    return list((folder / "cache" / "ridgeline" / "gpu-limits").glob("*.json"))


def test_a_default_leaves_gpus_as_their_operator_has_them(tmp_path: Path, gpu: StandInGpu) -> None:
    gpu.set(limit="300.00", clock="900,900", mood="forbidden")
    asked, workload = limited(tmp_path)
    outcome, _ = run_for_real(workload, asked, tmp_path / "runs" / "1", gpu_power_limit="default", gpu_clock="default")
    assert outcome.kind is Kind.OK or "load generator" in outcome.reason, outcome
    assert gpu.told == []
    assert gpu.limit == ("300.00", "900,900")


def kill_while_holding(asked: dict[str, float]) -> None:
    program = f"""
import os
from ridgeline.serving.workloads.engine.session.held_gpus import held_gpus
with held_gpus({asked!r}):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("next_asks", [{}, {POWER_LIMIT: 500.0}, {CLOCK: 1800.0}])
def test_the_next_session_undoes_what_a_killed_one_left(
    tmp_path: Path, gpu: StandInGpu, next_asks: dict[str, float]
) -> None:
    gpu.set(limit="650.00")
    kill_while_holding({POWER_LIMIT: 400.0, CLOCK: 1200.0})
    assert gpu.limit == ("400.00", "1200,1200")
    with held_gpus(next_asks):
        watts = "500.00" if POWER_LIMIT in next_asks else "650.00"
        assert gpu.limit == (watts, "1800,1800" if CLOCK in next_asks else "")
    assert gpu.limit == ("650.00", "")
    assert not records(tmp_path)


def test_a_limit_that_an_operator_has_set_since_stays(tmp_path: Path, gpu: StandInGpu) -> None:
    gpu.set(limit="650.00")
    kill_while_holding({POWER_LIMIT: 400.0})
    gpu.set(limit="600.00")
    with held_gpus({POWER_LIMIT: 500.0}):
        assert gpu.limit == ("500.00", "")
        gpu.set(limit="300.00")
    assert gpu.limit == ("300.00", "")
    assert not records(tmp_path)


@pytest.mark.parametrize("next_asks", [{}, {POWER_LIMIT: 500.0}])
def test_nobody_undoes_the_limits_of_a_session_that_runs(
    tmp_path: Path, gpu: StandInGpu, next_asks: dict[str, float]
) -> None:
    with held_gpus({POWER_LIMIT: 400.0}):
        with pytest.raises(EngineFailed, match=f"by another session: process {os.getpid()}") as failed:
            held_gpus(next_asks).__enter__()
        assert failed.value.cause.name == "gpu-in-use"
        assert gpu.limit == ("400.00", "")
    assert gpu.limit == ("700.00", "")


def test_sessions_on_other_gpus_of_a_node_mind_their_own(
    tmp_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_gpus({POWER_LIMIT: 400.0}):
        monkeypatch.setenv("SLURM_PROCID", "1")
        with held_gpus({}):
            pass
        with held_gpus({POWER_LIMIT: 300.0}):
            assert gpu.limits_of_nodes == ["300.00"]
        assert gpu.limits_of_nodes == ["700.00"]
        assert gpu.limit == ("400.00", "")
        monkeypatch.delenv("SLURM_PROCID")
    assert gpu.limit == ("700.00", "")


def test_a_limit_that_a_driver_makes_another_is_refused_and_given_back(gpu: StandInGpu) -> None:
    gpu.set(mood="lavish")
    with pytest.raises(EngineFailed, match="was to be limited to 400 W and is at 450") as failed:
        held_gpus({POWER_LIMIT: 400.0}).__enter__()
    assert failed.value.cause.name == "gpu-limits"
    assert gpu.limit == ("700.00", "")


def test_a_limit_that_could_not_be_given_back_is_not_set(tmp_path: Path, gpu: StandInGpu) -> None:
    gpu.set(limit="[N/A]")
    with pytest.raises(EngineFailed, match=r"does not tell its power limit: \[N/A\]") as failed:
        held_gpus({POWER_LIMIT: 400.0}).__enter__()
    assert failed.value.cause.name == "gpu-limits"
    assert not gpu.told and not records(tmp_path)


@pytest.mark.parametrize("content", ['{"gpu_po', "[]", '{"gpu_power_limit": "--power-limit=650.00"}'])
def test_a_record_that_nobody_can_read_is_told(tmp_path: Path, gpu: StandInGpu, content: str) -> None:
    kill_while_holding({POWER_LIMIT: 400.0})
    (record,) = records(tmp_path)
    record.write_text(content)
    with pytest.raises(EngineFailed, match=f"{record.name} cannot be read"), held_gpus({}):
        pass


def test_what_cannot_be_undone_is_no_ground_to_measure_on(tmp_path: Path, gpu: StandInGpu) -> None:
    kill_while_holding({POWER_LIMIT: 400.0})
    gpu.set(mood="forbidden")
    with pytest.raises(EngineFailed, match="still held to what a session that was killed set"), held_gpus({}):
        pass
    assert records(tmp_path), "the next one can still undo it"


def test_a_stop_while_a_limit_is_set_gives_it_back(
    tmp_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends a session by SystemExit, wherever it is."""

    def stopped(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done = run(command, **options)
        if "--power-limit=400" in command:
            raise SystemExit(143)
        return done

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", stopped)
    with pytest.raises(SystemExit), held_gpus({POWER_LIMIT: 400.0}):
        pass
    assert gpu.limit == ("700.00", "")
    assert not records(tmp_path)


def test_a_driver_that_does_not_answer_leaves_what_undoes_it(
    tmp_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have set the limit before it hung."""

    def hangs(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done = run(command, **options)
        if any(word.startswith("--power-limit=") for word in command):
            raise subprocess.TimeoutExpired(command, 20.0)
        return done

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(EngineFailed) as failed, held_gpus({POWER_LIMIT: 400.0}):
        pass
    assert failed.value.cause.name == "gpu-broken"
    assert records(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    gpu.set(limit="400.00")
    with held_gpus({}):
        assert gpu.limit == ("700.00", "")


def test_a_limit_that_cannot_be_given_back_keeps_nothing_else_from_it(
    tmp_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hangs(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--power-limit=700.00" in command:
            raise subprocess.TimeoutExpired(command, 20.0)
        return run(command, **options)

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", hangs)
    with held_gpus({POWER_LIMIT: 400.0, CLOCK: 1200.0}):
        pass
    assert gpu.limit == ("400.00", "")
    assert "keeps the limits of this run: nvidia-smi --power-limit=700.00" in capsys.readouterr().err
    assert records(tmp_path)


def test_records_of_another_node_are_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    record = tmp_path / "cache" / "ridgeline" / "gpu-limits" / "GPU-of-another-node.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"gpu_power_limit": {"set": "400", "undo": "--power-limit=700.00"}}')
    with held_gpus({}) as held:
        assert held == {}
    assert record.exists()


def test_who_is_asked_to_end_while_a_limit_is_given_back_ends_after_that(
    gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_to_end(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--power-limit=700.00" in command:
            os.kill(os.getpid(), signal.SIGTERM)
        return run(command, **options)

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", asked_to_end)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit), held_gpus({POWER_LIMIT: 400.0, CLOCK: 1200.0}):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert gpu.limit == ("700.00", "")


def test_an_end_that_all_of_a_job_is_asked_for_does_not_stop_what_gives_a_limit_back(gpu: StandInGpu) -> None:
    """Batch systems send SIGTERM to every process, nvidia-smi too."""
    with held_gpus({POWER_LIMIT: 400.0, CLOCK: 1200.0}):
        gpu.set(mood="asked to end")
    assert gpu.limit == ("700.00", "")


@pytest.mark.parametrize("visible", ["0", "MIG-5f3a"])
def test_slices_of_a_gpu_are_not_held(gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu.set(mig="Enabled")
    with pytest.raises(EngineFailed, match=r"slices of a GPU \(MIG\) share its limits") as failed:
        held_gpus({POWER_LIMIT: 400.0}).__enter__()
    assert failed.value.cause.name == "gpu-limits"
    assert gpu.told == []


def test_nothing_is_touched_where_nothing_is_asked(gpu: StandInGpu) -> None:
    with held_gpus({}) as held:
        assert held == {}
    assert gpu.told == []


@pytest.mark.parametrize(
    ("mood", "changes", "words"),
    [
        ("forbidden", {POWER_LIMIT: 500}, "Insufficient Permissions"),
        ("forbidden", {CLOCK: 1500}, "does not have permission to change clocks"),
        ("willing", {POWER_LIMIT: 150}, "should be between 200.00 W and 700.00 W"),
        ("deaf", {POWER_LIMIT: 500}, "was to be limited to 500 W and is at 700.00"),
        ("old", {CLOCK: 1500}, "locked GPU clocks is not supported"),
    ],
)
def test_a_driver_that_does_not_do_it_refuses_the_setting_in_its_own_words(
    tmp_path: Path, gpu: StandInGpu, mood: str, changes: dict[str, int], words: str
) -> None:
    gpu.set(mood=mood)
    asked, _ = limited(tmp_path)
    outcome, _ = run_for_real(sglang_serve(asked), asked, tmp_path / "runs" / "1", **changes)
    assert outcome.kind is Kind.REJECTED, outcome
    assert words in str(outcome)
    assert "leave the knob out" in str(outcome)
    assert gpu.limit == ("700.00", "")


@pytest.mark.parametrize(
    ("tool", "kind", "words"),
    [
        ("", "gpu-limits", "nvidia-smi was not found"),
        ("#!/bin/sh\necho No devices were found", "gpu-broken", "no GPU"),
        ('#!/bin/sh\nprintf "caf\\\\351"', "gpu-broken", "no GPU: caf"),
    ],
)
def test_a_host_without_gpus_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, kind: str, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if tool:
        (tmp_path / "nvidia-smi").write_text(tool)
        (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(EngineFailed, match=words) as failed, held_gpus({POWER_LIMIT: 500.0}):
        pass
    assert failed.value.cause.name == kind


@pytest.mark.parametrize("mood", ["willing", "forbidden"])
def test_each_of_several_nodes_holds_its_own(tmp_path: Path, gpu: StandInGpu, mood: str) -> None:
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    gpu.set(mood=mood)
    asked = two_nodes(tmp_path, "sglang-serve", interface="lo")
    knobs = limited(tmp_path)[0].space.knobs
    asked = replace(asked, space=replace(asked.space, knobs=(*asked.space.knobs, knobs[0])))
    asked = replace(asked, baseline={**asked.baseline, POWER_LIMIT: 500})
    outcome, reading = run_for_real(sglang_serve(asked), asked, tmp_path / "runs" / "1")
    if mood == "forbidden":
        assert outcome.kind is Kind.REJECTED, outcome
        assert "Insufficient Permissions" in str(outcome)
    else:
        assert reading.metrics["successful_requests"] == 12, outcome
        assert gpu.told.count("--power-limit=500") == 2
    assert gpu.limits_of_nodes == (["700.00", "700.00"] if mood == "willing" else [])


@pytest.mark.parametrize("name", ["gpu-limits", "gpu-in-use", "gpu-broken"])
@pytest.mark.parametrize("engine", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_what_a_session_on_another_node_says_is_the_cause(engine: ServingEngine, name: str) -> None:
    said = FailureCause(name, 0, "GPU 1 is at 700.00", at_start=True).marked_line(OWN_LOG)
    log = engine.read([said, "srun: error: node002: task 1: Exited with exit code 1"])
    cause = cause_of(log.failures, log.weights_loaded)
    assert cause is not None
    assert cause.name == name


def test_a_clock_that_was_not_kept_is_no_measurement_of_it(tmp_path: Path, gpu: StandInGpu) -> None:
    asked, workload = limited(tmp_path)
    run_for_real(workload, asked, tmp_path / "runs" / "1", gpu_clock=1500)
    path = tmp_path / "runs" / "1" / "measured.json"
    measured = json.loads(path.read_text())

    def read(mhz: float) -> str:
        from ridgeline.records.run import Cause, Ending, Resources, Run

        path.write_text(json.dumps({**measured, "monitor": {"gpu_sm_mean_mhz": mhz}}))
        ending = Ending(Cause.EXITED, 0, None, started_s=1.0, ended_s=2.0)
        return workload.read(Run(1, 1, 1, path.parent, Resources(), ending)).unverified

    assert read(1510.0) == ""
    assert "gpu_clock 1500: the GPUs ran at 1980 MHz" in read(1980.0)
    assert gpu.limit == ("700.00", "")


@pytest.mark.parametrize(
    ("values", "gpu_name", "words"),
    [
        ([-1], "", "give a number of watts above zero"),
        (["much"], "", "'much' is no limit"),
        ([800], "h200", "800 W is more than the 700 W that H200 has at most"),
        ([800], "", ""),
        ([500], "mi300x", "only those of NVIDIA's GPUs"),
        (["default", 500, 12.5], "h200", ""),
    ],
)
def test_values_that_no_driver_takes_are_refused_by_check(
    tmp_path: Path, values: list[object], gpu_name: str, words: str
) -> None:
    asked = study(tmp_path, "sglang-serve", {POWER_LIMIT: values}, goal="output_tok_s", gpu=gpu_name)
    problems = [problem.message for problem in sglang_serve(asked).problems()]
    assert [words in problem for problem in problems] == [True] * bool(words)


def test_a_limit_among_the_flags_is_told_where_it_belongs(tmp_path: Path) -> None:
    asked = study(tmp_path, "sglang-serve", goal="output_tok_s", flags={POWER_LIMIT: 500})
    assert "make it a knob in `space`" in sglang_serve(asked).problems()[0].message


@pytest.mark.parametrize(
    ("derived", "gpu_name", "words"),
    [
        ("'a500' if mem_fraction_static > 0.5 else 'b'", "", "gpu_power_limit: 'a500' is no limit"),
        ("mem_fraction_static > 0.5", "", "gpu_power_limit: True is no limit"),
        ("1000 * mem_fraction_static", "h200", "800 W is more than the 700 W"),
    ],
)
def test_a_derived_limit_is_looked_at_too(tmp_path: Path, derived: str, gpu_name: str, words: str) -> None:
    asked = study(tmp_path, "sglang-serve", goal="output_tok_s", gpu=gpu_name)
    asked = replace(asked, space=replace(asked.space, derived={POWER_LIMIT: Expression.parse(derived)}))
    workload = sglang_serve(asked)
    assert workload.problems() == []
    assert words in str(workload.refusal(trial(asked).settings))


@pytest.mark.parametrize("face", ["paste", "comments"])
def test_what_a_person_pastes_sets_the_limits_and_no_flag_of_the_engine(tmp_path: Path, face: str) -> None:
    asked, workload = limited(tmp_path)
    shown: dict[str, Callable[..., str]] = {
        "paste": workload.paste, "comments": lambda settings: workload.prepare(
            trial(asked, **settings), tmp_path / "run").command,
    }  # fmt: skip
    text = shown[face]({POWER_LIMIT: 500, CLOCK: 1500})
    assert "--power-limit=500" in text
    assert "--lock-gpu-clocks=1500,1500" in text
    assert "--gpu-" not in text
    assert "nvidia-smi" not in workload.paste({POWER_LIMIT: "default", CLOCK: "default"})


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_pasted_server_gives_gpus_back_when_it_ends(
    tmp_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    gpu.set(limit="650.00")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID)
    asked = study(tmp_path, "sglang-serve", {POWER_LIMIT: [500], CLOCK: [1500]}, goal="output_tok_s")
    text = sglang_serve(asked).paste({POWER_LIMIT: 500, CLOCK: 1500})
    done = subprocess.run([shell, "-c", text], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert "'sglang.launch_server'" in done.stderr, "which nothing here has"
    assert gpu.told == [
        "--power-limit=500", "--lock-gpu-clocks=1500,1500", "--power-limit=650.00", "--reset-gpu-clocks"
    ]  # fmt: skip
    assert all(f"--id={UUID}" in call for call in (tmp_path / "bin" / "calls").read_text().splitlines()), "not others'"
