"""ridgeline diagnose, as a person or a script meets it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ridgeline.diagnose.base import Analyzer, Quote, RawFinding, cited, diagnose, kinds_of
from ridgeline.records.finding import Finding
from tests import command_line

SAMPLES = Path(__file__).parent.parent / "samples"


def ridgeline(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.ridgeline("diagnose", *arguments)


def test_findings_with_lines_and_advice() -> None:
    done = ridgeline(SAMPLES / "mpip" / "nwchem-waiting.mpiP")
    assert done.returncode == 0
    assert "warning: 83% of MPI time is waiting" in done.stdout
    assert "68: Iprobe " in done.stdout
    assert "-> The busiest rank computes 1.56 times the mean" in done.stdout


def test_nothing_to_report_is_said() -> None:
    done = ridgeline(SAMPLES / "bindings" / "openmpi-2ranks.txt")
    assert done.returncode == 0 and done.stdout.strip().endswith("nothing to report")


def test_json_is_one_document() -> None:
    files = [SAMPLES / "nwchem" / "not-converged.out", SAMPLES / "bindings" / "openmpi-2ranks.txt"]
    done = ridgeline("--json", *files)
    document = json.loads(done.stdout)
    assert [f["kinds"] for f in document["files"]] == [["nwchem-out"], ["bindings"]]
    finding = document["files"][0]["findings"][0]
    assert finding["severity"] == "fault" and finding["evidence"][0]["line"] == 345
    assert document["files"][1]["findings"] == []


def test_an_unknown_file_is_told_which_kinds_there_are(tmp_path: Path) -> None:
    strange = tmp_path / "letter.txt"
    strange.write_text("Dear all,\n")
    done = ridgeline(strange, SAMPLES / "bindings" / "openmpi-2ranks.txt")
    assert done.returncode == 2
    assert "nothing to report" in done.stdout, "the other file is still diagnosed"
    assert "not recognised" in done.stderr and "sglang-log" in done.stderr and "mpip" in done.stderr


def test_of_a_folder_what_is_known_is_diagnosed_and_a_study_folder_names_a_run() -> None:
    folder = SAMPLES.parents[1] / "examples/05-sglang-h200/results/mistral-nemo-serve"
    (run,) = (folder / "runs").glob("0003-*")
    done = ridgeline("--json", run)
    assert done.returncode == 0, done.stderr
    assert [Path(each["file"]).name for each in json.loads(done.stdout)["files"]] == ["engine.log"]
    whole = ridgeline(folder)
    assert whole.returncode == 2 and f"name one of its runs, for example {folder / 'runs'}" in whole.stderr


def test_values_to_try_are_other_than_what_ran_and_kinds_stand_in_a_column(tmp_path: Path) -> None:
    done = ridgeline(SAMPLES / "sglang/offline-llama8b-h200-default.log")
    assert "try: chunked_prefill_size 4096 or 2048 instead of 8192" in " ".join(done.stdout.split())
    (tmp_path / "letter.txt").write_text("Dear all,\n")
    rows = ridgeline(tmp_path / "letter.txt").stderr.splitlines()[1:]
    assert len({re.match(r"  \S+ +", row).end() for row in rows}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_what_is_no_file_is_named(tmp_path: Path, what: str) -> None:
    done = ridgeline(tmp_path if what == "folder" else tmp_path / "missing")
    assert done.returncode == 2 and str(tmp_path) in done.stderr and "Traceback" not in done.stderr


def test_an_empty_and_a_binary_file_are_only_unknown(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("binary", bytes(range(256)) * 50)):
        path = tmp_path / name
        path.write_bytes(content)
        done = ridgeline(path)
        assert done.returncode == 2 and "not recognised" in done.stderr


def test_a_job_output_of_several_kinds_gets_the_findings_of_each(tmp_path: Path) -> None:
    parts = ("bindings/openmpi-map-by-node.txt", "nwchem/not-converged.out", "ipm/banner.txt", "batch/gadi.txt")
    path = tmp_path / "job.o123"
    path.write_text("".join((SAMPLES / p).read_text() + "\n" for p in parts))
    document = json.loads(ridgeline("--json", path).stdout)["files"][0]
    assert document["kinds"] == ["nwchem-out", "ipm", "batch-footer", "bindings"]
    assert {"fault", "advice"} <= {f["severity"] for f in document["findings"]}


def echo(source: str, lines: Iterable[str]) -> list[Finding]:
    rows = list(lines)
    return cited(source, rows, [RawFinding("seen", tuple(Quote(i) for i in range(1, len(rows) + 1)), "none")])


@pytest.mark.parametrize(
    "line",
    [
        "server_args=ServerArgs(model_path='/m', api_key='SECRETVALUE', port=1)",
        "non-default args: {'api_key': ['SECRETVALUE'], 'port': 1}",
        "+ vllm serve m --api-key SECRETVALUE --port 1",
        "Authorization: Bearer SECRETVALUE123",
        "export HF_TOKEN=hf_SECRETVALUE0123456789",
        "OPENAI_API_KEY=SECRETVALUE",
    ],
)
def test_keys_never_appear_in_quotes(line: str) -> None:
    (finding,) = echo("f", [line])
    assert "SECRETVALUE" not in finding.evidence[0].text
    assert "(hidden)" in finding.evidence[0].text


def test_a_long_line_is_quoted_around_what_matters() -> None:
    line = "x" * 500 + " token usage: 0.99 " + "y" * 500
    (finding,) = cited("f", [line], [RawFinding("c", (Quote(1, "token usage"),), "a")])
    assert "token usage: 0.99" in finding.evidence[0].text and len(finding.evidence[0].text) < 240


def test_a_claim_without_a_line_to_show_is_dropped() -> None:
    assert cited("f", ["only line"], [RawFinding("c", (Quote(0), Quote(7)), "a")]) == []


def test_another_persons_analyzer_takes_part(tmp_path: Path) -> None:
    mine = Analyzer("my-log", "log of my program", re.compile("^MYPROGRAM"), echo)
    path = tmp_path / "log"
    path.write_text("MYPROGRAM 1.0\n")
    assert diagnose(path, [mine]).findings[0].evidence[0].text == "MYPROGRAM 1.0"


def test_the_end_of_a_long_file_is_looked_at_too() -> None:
    mine = Analyzer("my-log", "log", re.compile("^THE MARK$"), echo)
    assert kinds_of([*["filler"] * 50_000, "THE MARK"], [mine]) == [mine]


def test_the_catalog_names_each_analyzer_by_its_kind() -> None:
    from ridgeline import catalog

    assert all(catalog.part("analyzers", name).kind == name for name in catalog.shipped("analyzers"))


GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "diagnose.md"


def test_the_guides_example_works() -> None:
    code = GUIDE.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(code, names)
    analyzer = names["ANALYZER"]
    assert isinstance(analyzer, Analyzer)
    (finding,) = analyzer.analyze("log", ["stencil 4", "WARNING: slow path", "WARNING: slow path"])
    assert finding.claim == "the slow path was taken 2 times" and finding.evidence[0].line_number == 2


def test_the_guide_lists_every_kind() -> None:
    from ridgeline import catalog

    assert all(f"`{name}`" in GUIDE.read_text() for name in catalog.shipped("analyzers"))
