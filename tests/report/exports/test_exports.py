"""Exports into other formats, read back as their readers do: bytes of Parquet, folders of MLflow, a file of Optuna."""

from __future__ import annotations

import io
import os
import pty
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from ridgeline.campaign.status import CampaignStatus
from ridgeline.records.space import Continuous, Discrete, Space
from ridgeline.report.exports import parquet
from ridgeline.report.exports.mlflow import write_mlflow
from ridgeline.report.exports.optuna import write_optuna
from ridgeline.report.exports.parquet import write_parquet
from ridgeline.report.exports.prometheus import metrics_text
from ridgeline.study.history import read_history
from ridgeline.testing import ScriptedAnswer
from tests.campaign.harness import campaign, study


class Compact:
    """Thrift's compact protocol, read: structs as dicts by field number."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def byte(self) -> int:
        self.at += 1
        return self.text[self.at - 1]

    def varint(self) -> int:
        number = shift = 0
        while (byte := self.byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number += head >> 4
            fields[number] = self.value(head & 15)
        return fields

    def value(self, kind: int) -> Any:
        if kind in (5, 6):
            zigzag = self.varint()
            return (zigzag >> 1) ^ -(zigzag & 1)
        if kind == 8:
            length = self.varint()
            self.at += length
            return self.text[self.at - length : self.at]
        if kind == 12:
            return self.struct()
        assert kind == 9
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        return [self.value(head & 15) for _ in range(count)]


def bits(text: bytes, count: int) -> list[bool]:
    return [bool(text[at // 8] >> at % 8 & 1) for at in range(count)]


def read_parquet(text: bytes) -> list[dict[str, Any]]:
    assert text[:4] == text[-4:] == b"PAR1"
    (length,) = struct.unpack("<I", text[-8:-4])
    footer = Compact(text[-8 - length : -8]).struct()
    names = [element[4].decode() for element in footer[2][1:]]
    assert footer[2][0][5] == len(names)
    rows: list[dict[str, Any]] = [{} for _ in range(footer[3])]
    for name, chunk in zip(names, footer[4][0][1], strict=True):
        meta = chunk[3]
        assert meta[3] == [name.encode()] and meta[5] == len(rows)
        page = Compact(text[meta[9] : meta[9] + meta[7]])
        header = page.struct()
        body = page.text[page.at :]
        assert header[5][1] == len(rows) and header[2] == header[3] == len(body)
        (size,) = struct.unpack("<I", body[:4])
        levels = Compact(body[4 : 4 + size])
        assert levels.varint() == (len(rows) + 7) // 8 << 1 | 1
        present = bits(levels.text[levels.at :], len(rows))
        values = iter(plain(meta[1], body[4 + size :], sum(present)))
        for row, there in zip(rows, present, strict=True):
            row[name] = next(values) if there else None
    return rows


def plain(kind: int, body: bytes, count: int) -> list[Any]:
    if kind == 0:
        return list(bits(body, count))
    if kind in (2, 5):
        return list(struct.unpack(f"<{count}{'q' if kind == 2 else 'd'}", body))
    values = []
    for _ in range(count):
        (length,) = struct.unpack("<I", body[:4])
        values.append(body[4 : 4 + length].decode())
        body = body[4 + length :]
    return values


@pytest.mark.parametrize("count", [0, 1, 8, 9, 300])
def test_parquet_holds_every_value_in_its_type(count: int) -> None:
    table = [
        {"run": n, "big": -(2**40), "value": n / 3, "mixed": n if n % 2 else "two", "flag": n % 3 == 0}
        | {"sometimes": 1.5 if n % 5 == 0 else None, "text": "ü<&" * n, "empty": ""}
        | {f"more{k}": k for k in range(20)}
        for n in range(count)
    ]
    stream = io.BytesIO()
    write_parquet(table, stream)
    got = read_parquet(stream.getvalue())
    wanted = [{**row, "mixed": str(row["mixed"])} for row in table]
    assert got == wanted
    if count:
        assert [type(got[0][name]) for name in ("run", "value", "flag")] == [int, float, bool]


def hostile(root: Path) -> CampaignStatus:
    """A campaign with a crash, a knob that exists at times, and names that are no file names."""
    a, b = Discrete("../a b", (0, 1, 2), ordered=True), Continuous("b", 0.5, 8.0, log=True)
    c = Discrete("c", ("x/../y", True), ordered=False)
    question = study(root, name="../up\n", space=Space((a, b, c), {}), baseline={"../a b": 0, "b": 1.0, "c": True})
    question = replace(question, question="50% <faster>?")

    def answer(settings: Any) -> ScriptedAnswer:
        if settings["c"] == "x/../y":
            return ScriptedAnswer(exit_code=3, stderr="it: failed\n")
        return ScriptedAnswer({"rate": 10.0 + settings["b"], "got/../x": 1.0})

    done = campaign(root, question, answer)
    done.run()
    return CampaignStatus(done.question, question, read_history(root))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> CampaignStatus:
    return hostile(tmp_path_factory.mktemp("done"))


def test_an_mlflow_store_has_a_folder_for_each_run_and_stays_in_its_place(done: CampaignStatus, tmp_path: Path) -> None:
    store = tmp_path / "in" / "mlruns"
    for _ in range(2):  # written again, it is replaced
        assert write_mlflow(done.study, done.history, store) == len(done.history.runs)
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["mlruns"]
    (experiment,) = store.iterdir()
    meta = yaml.safe_load((experiment / "meta.yaml").read_text())
    assert meta["experiment_id"] == experiment.name and meta["name"] == "../up\n"
    runs = [path for path in experiment.iterdir() if path.is_dir() and path.name != "tags"]
    assert len(runs) == len(done.history.runs)
    states = [yaml.safe_load((run / "meta.yaml").read_text())["status"] for run in runs]
    failed = sum(run.outcome is not None and run.outcome.kind != "ok" for run in done.history.runs.values())
    assert failed and states.count(4) == failed
    one = next(run for run in runs if (run / "metrics" / "rate").exists())
    at, value, step = (one / "metrics" / "rate").read_text().split()
    assert int(at) > 1e12 and float(value) > 10 and step == "0"
    assert {p.name for p in (one / "params").iterdir()} == {"_a b", "b", "c"}
    assert (one / "metrics" / "got_.._x").exists()
    artifacts = {path.name: path for path in (one / "artifacts").iterdir()}
    assert "env" not in artifacts and artifacts["stdout"].is_symlink() and "rate" in artifacts["stdout"].read_text()


def test_an_optuna_storage_is_opened_by_optuna(done: CampaignStatus, tmp_path: Path) -> None:
    file = tmp_path / "optuna.log"
    for _ in range(2):
        assert write_optuna(done.study, done.history, file) == len(done.history.runs)
    assert [p.name for p in tmp_path.iterdir()] == ["optuna.log"]
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
    study = optuna.load_study(study_name="../up\n", storage=storage)
    assert study.direction.name == "MAXIMIZE"
    runs = [*done.history.runs.values()]
    assert [trial.value for trial in study.trials] == [run.metrics.get("rate") for run in runs]
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}
    assert [dict(t.params) for t in study.trials] == [dict(done.history.trials[run.trial].point) for run in runs]
    assert study.trials[0].user_attrs["stage"] == "baseline"


def test_prometheus_gets_one_head_for_each_name_and_escaped_labels(done: CampaignStatus) -> None:
    text = metrics_text(done.as_json(), "rate")
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert 'ridgeline_finished{study="../up\\n"} 1' in text.splitlines()
    ok = sum(run.outcome is not None and run.outcome.kind == "ok" for run in done.history.runs.values())
    assert f'ridgeline_runs_total{{study="../up\\n",outcome="ok"}} {ok}' in text.splitlines()
    assert "budget_node_hours" not in text, "what is not limited has no sample"


@pytest.mark.parametrize(
    ("presence", "verdict", "up"), [("here", None, 1), ("elsewhere", None, 1), ("gone", None, 0), ("here", "won", 0)]
)
def test_prometheus_knows_whether_somebody_is_at_work(presence: str, verdict: str | None, up: int) -> None:
    budget = {"trials": None, "wall_s": 60.0, "node_hours": None}
    status = {
        "name": "s", "unit": "", "budget": budget, "controller": {"presence": presence}, "verdict": verdict,
        "stopped": None, "outcomes": {"ok": 3}, "running": [], "trials": 2, "node_hours": 0.5, "wall_s": 30.0,
        "baseline": None, "paused": False, "best": None,
    }  # fmt: skip
    lines = metrics_text(status, "rate").splitlines()
    assert f'ridgeline_controller_up{{study="s"}} {up}' in lines
    assert f'ridgeline_finished{{study="s"}} {int(verdict is not None)}' in lines
    assert 'ridgeline_budget_seconds{study="s"} 60' in lines
    assert not [line for line in lines if "budget_trials" in line or "baseline_value" in line], "no limit, no sample"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None, ""], "INT64"),
        ([1, 2.5], "DOUBLE"),
        ([2.5], "DOUBLE"),
        ([True, None], "BOOLEAN"),
        ([True, 1], "BYTE_ARRAY"),
        ([1, "a"], "BYTE_ARRAY"),
        ([None, ""], "BYTE_ARRAY"),
    ],
)
def test_a_column_of_parquet_has_the_narrowest_type_that_holds_it(values: list[object], kind: str) -> None:
    assert parquet._kind(values).name == kind


def test_parquet_goes_to_a_pipe_as_to_a_file_but_not_to_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(Path(__file__).parents[2] / "samples" / "study-folders" / "search-finished", folder)
    asked = [sys.executable, "-m", "ridgeline", "study", "export", str(folder), "--format", "parquet"]
    piped = subprocess.run(asked, capture_output=True, check=True, timeout=600)
    subprocess.run([*asked, "--out", str(tmp_path / "runs.parquet")], capture_output=True, check=True, timeout=600)
    assert piped.stdout == (tmp_path / "runs.parquet").read_bytes() and read_parquet(piped.stdout)
    shown, terminal = pty.openpty()
    try:
        refused = subprocess.run(asked, stdout=terminal, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
    finally:
        os.close(shown)
        os.close(terminal)
    assert refused.returncode == 2 and "redirect it to a file, or write --out runs.parquet" in refused.stderr
    for form, what in (("mlflow", "a folder"), ("optuna", "a storage")):
        said = subprocess.run([*asked[:-1], form], capture_output=True, text=True, check=False, timeout=600)
        assert said.returncode == 2 and f"writes {what} of its own" in said.stderr and "terminal" not in said.stderr
