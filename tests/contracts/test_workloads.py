"""Every workload of the catalog keeps the promises of ridgeline.testing.contracts.workloads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.records.space import Discrete, Space
from ridgeline.records.study import Goal, Study, WorkloadChoice
from ridgeline.testing import FunctionWorkload, ScriptedAnswer
from ridgeline.testing.contracts import held_to
from ridgeline.testing.contracts.workloads import WorkloadContract, WorkloadExample
from ridgeline.workloads.base import Workload, WorkloadFactory
from tests.workloads.engine.studies import study as engine_study
from tests.workloads.nwchem.runs import GUARD
from tests.workloads.nwchem.runs import SAMPLES as NWCHEM_SAMPLES
from tests.workloads.nwchem.runs import checked as nwchem_study


def test_every_workload_of_the_catalog_is_held_to_these_promises() -> None:
    assert set(catalog.names("workloads")) <= held_to(WorkloadContract)


def study(folder: Path, kind: str, options: dict[str, object]) -> Study:
    space = Space((Discrete("size", [1, 2, 4], ordered=True), Discrete("mode", ["a", "b c"], ordered=False)), {})
    return Study(
        "promises",
        WorkloadChoice(kind, options),
        space,
        Goal("rate", "maximize"),
        baseline={"size": 1, "mode": "a"},
        folder=folder,
    )


class TestCommand(WorkloadContract):
    name = "command"

    def example(self, folder: Path) -> WorkloadExample:
        (folder / "mesh.dat").write_text("mesh")
        (folder / "table.dat").write_text("table")
        options = {
            "run": "./app --size {size}",
            "env": {"MODE": "{mode}"},
            "inputs": {"in/app.in": "size = {size}\n"},
            "files": ["mesh.dat", {"link": "table.dat"}],
            "metrics": {"rate": {"regex": r"rate (\S+)"}},
        }
        return WorkloadExample(
            study(folder, self.name, options),
            lambda run: (run / "stdout").write_text("rate 4.5 GF/s\n"),
            value=4.5,
            pasted={"size": 4, "mode": "b c"},
        )


class TestPython(WorkloadContract):
    name = "python"

    def example(self, folder: Path) -> WorkloadExample:
        (folder / "objective.py").write_text("def rate(size, mode):\n    return 4.5\n")
        (folder / "mesh.dat").write_text("mesh")
        options = {"file": "objective.py", "function": "rate", "files": ["mesh.dat"], "env": {"MODE": "{mode}"}}
        return WorkloadExample(
            study(folder, self.name, options),
            lambda run: (run / "returned.json").write_text('{"rate": 4.5}'),
            value=4.5,
            pasted={"size": 4, "mode": "b c"},
        )


class TestFunction(WorkloadContract):
    name = "function"

    def factory(self) -> WorkloadFactory:
        def make(study: Study) -> Workload:
            return FunctionWorkload(
                study, lambda settings: ScriptedAnswer({"rate": 2.0 * float(settings["size"] or 0)})
            )

        return make

    def example(self, folder: Path) -> WorkloadExample:
        return WorkloadExample(
            study(folder, self.name, {}),
            lambda run: (run / "stdout").write_text('{"rate": 4.5}\n'),
            value=4.5,
            pasted={"size": 4, "mode": "b c"},
        )


class TestTwin(WorkloadContract):
    name = "twin"

    def example(self, folder: Path) -> WorkloadExample:
        knobs = (Discrete("tp", [1, 2], ordered=True), Discrete("max_running_requests", [8, 64], ordered=True))
        options = {"model": "llama-8b", "gpu": "h100", "traffic": {"dataset": "fixed:64:8", "requests": 20}}
        twin = replace(
            study(folder, self.name, options),
            space=Space(knobs, {}),
            goal=Goal("total_tok_s", "maximize"),
            baseline={"tp": 1, "max_running_requests": 8},
        )
        return WorkloadExample(twin, _write_twin_run, 4.5, {"tp": 2, "attention_backend": "fa3"}, log="sglang.log")


def _write_twin_run(run: Path) -> None:
    rows = {
        "Successful requests": 20,
        "Benchmark duration (s)": 320,
        "Total input tokens": 1280,
        "Total generated tokens": 160,
        "Total token throughput (tok/s)": 4.5,
    }
    block = "".join(f"{name}: {value}\n" for name, value in rows.items())
    (run / "sglang.log").write_text(f"=== Offline Throughput Benchmark Result ===\n{block}{'=' * 50}\n")
    (run / "bench.json").write_text("{}")


class TestNwchem(WorkloadContract):
    name = "nwchem"

    def example(self, folder: Path) -> WorkloadExample:
        found = nwchem_study(folder, "{grid: [fine, medium]}", more=f"baseline: {{grid: fine}}\n{GUARD}")
        water = replace(found.study, goal=Goal("nwchem_wall_s", "minimize"))
        sample = (NWCHEM_SAMPLES / "direct-1h2o.out").read_text()
        return WorkloadExample(water, lambda run: (run / "stdout").write_text(sample), 0.5, {"grid": "medium"})


OFFLINE = {
    "sglang": {
        "successful_requests": 1000,
        "total_latency": 10.0,
        "total_input_tokens": 40,
        "total_output_tokens": 5,
        "total_throughput": 4.5,
    },
    "vllm": {"num_requests": 1000, "elapsed_time": 10.0, "total_num_tokens": 45},
}


class EngineContract(WorkloadContract):
    """An engine's workload, offline or behind a server."""

    def example(self, folder: Path) -> WorkloadExample:
        serves = self.name.endswith("serve")
        served = {"summary": {"total_tok_s": 4.5, "successful_requests": 1000, "duration_s": 10.0}}
        log = "measured.json" if serves else "offline.jsonl"
        result = served if serves else OFFLINE[self.name.partition("-")[0]]

        def write_run(run: Path) -> None:
            (run / "engine.log").write_text("")
            (run / log).write_text(json.dumps(result))

        return WorkloadExample(engine_study(folder, self.name, {"tp": [1, 2]}), write_run, 4.5, {"tp": 2}, log)


class TestSglangOffline(EngineContract):
    name = "sglang-offline"


class TestSglangServe(EngineContract):
    name = "sglang-serve"


class TestVllmOffline(EngineContract):
    name = "vllm-offline"


class TestVllmServe(EngineContract):
    name = "vllm-serve"
