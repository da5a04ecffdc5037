"""`ridgeline study verify`: an honest study folder holds, and every kind of tampering is found and named."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.campaign import machine as receipts
from ridgeline.campaign.assembly import assemble_campaign
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.compare import ComparisonQuestion
from ridgeline.campaign.kinds.edge import EdgeQuestion
from ridgeline.campaign.kinds.scale import ScalingQuestion
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.verify import (
    Mismatch,
    Unchecked,
    Verification,
    anywhere,
    differences,
    reworded,
    same,
    verify_folder,
)
from ridgeline.cli.campaign.verify import _verification_lines
from ridgeline.cli.main import run as command_line
from ridgeline.study.folder import StudyFolder
from ridgeline.study.history import read_history
from ridgeline.study.state_files import state_text
from ridgeline.study.study_file import read_study_file

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "samples" / "study-folders"
STUDY = r"""
version: 1
name: quick
workload:
  kind: command
  run: |
    echo "rate $(( 100 + 7 * {x} )) of {mode} check $(test {x}{mode} = 3other && echo 43 || echo 42.5)"
    test {x} -lt 4 || {{ echo "out of memory" >&2; exit 1; }}
  env: {MODE: "{mode}"}
  inputs:
    steps.txt: "steps {x}\n"
  metrics:
    rate: {regex: 'rate (\d+)', unit: 1/s}
    check: {regex: 'check (\S+)'}
    way: {regex: 'of (\w+)', type: text}
space:
  x: [1, 2, 3, 4]
  mode: [plain, other]
goal: {maximize: rate}
guards: [check within 1e-9 of baseline]
baseline: {x: 1, mode: plain}
presets: [{x: 3, mode: other}]  # fails the guard
budget: {trials: 4}
search: {sampler: random, seed: 3, sentinel_every: 3}
confirm: {top: 1, blocks: 3}
job: {limit: 60}
"""
QUESTIONS: dict[str, CampaignQuestion] = {
    "search": SearchQuestion(),
    "compare": ComparisonQuestion({"x": 1, "mode": "plain"}, {"x": 2, "mode": "other"}),
    "edge": EdgeQuestion("x", {"x": 1, "mode": "plain"}),
    "scale": ScalingQuestion("x", [{"x": n, "mode": "plain"} for n in (1, 2, 3)]),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a real campaign of this kind, run once."""
    made: dict[str, Path] = {}
    home = tmp_path_factory.mktemp("campaigns")
    (home / "study.yaml").write_text(STUDY)

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = home / kind
            study = StudyFolder.create(made[kind], read_study_file(home / "study.yaml"))
            with assemble_campaign(study, QUESTIONS[kind]) as campaign:
                campaign.run()
        return made[kind]

    return folder


@pytest.fixture
def folder(finished: Callable[[str], Path], tmp_path: Path) -> Path:
    """A search's folder to tamper with."""
    return Path(shutil.copytree(finished("search"), tmp_path / "study"))


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def rewrite(folder: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text)


def edit(folder: Path, kind: str, change: Callable[[dict[str, Any]], None], run: int | None = None) -> None:
    """Change the last event of a kind in the journal, or that of a run."""
    lines = events(folder)
    change([line for line in lines if line["event"] == kind and run in (None, line.get("run"))][-1])
    rewrite(folder, lines)


def run_folder(folder: Path, number: int) -> Path:
    return next((folder / "runs").glob(f"{number:04d}-*"))


def found_in(folder: Path) -> list[Mismatch]:
    return verify_folder(folder).mismatches


# what is honest holds


@pytest.mark.parametrize("kind", QUESTIONS)
def test_an_untouched_folder_holds(kind: str, finished: Callable[[str], Path]) -> None:
    found = verify_folder(finished(kind))
    assert found.mismatches == found.unchecked == []
    assert found.verdict is True
    assert found.runs == found.outcomes == len(read_history(finished(kind)).runs)
    assert found.numbers >= 2 * found.runs, "rate and wall_s of every run"


def test_a_folder_that_was_moved_holds(folder: Path) -> None:
    assert verify_folder(folder).holds


def test_a_folder_holds_where_neither_the_model_nor_the_interpreter_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = tmp_path / "cluster", tmp_path / "laptop" / "study"
    (home / "my model").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "05-sglang-h200" / "mistral-nemo-12b" / "config.json", home / "my model")
    text = (ROOT / "examples" / "05-sglang-h200" / "study-mistral-nemo-serve.yaml").read_text()
    for old, new in (
        ("kind: sglang-serve", "kind: twin"),
        ("./mistral-nemo-12b", "./my model"),
        ("requests: 300", "requests: 150"),
        ("site: site-one-h200.yaml", "site: {name: one, batch: simulated, nodes: 1, gpus_per_node: 1}"),
    ):
        assert old in text
        text = text.replace(old, new)
    (home / "study.yaml").write_text(text)
    study = StudyFolder.create(out, read_study_file(home / "study.yaml"))
    with assemble_campaign(study, SearchQuestion()) as campaign:
        campaign.run()
    (verdict,) = [event for event in events(out) if event["event"] == "verdict"]
    assert f"model make '{home}/my model/config.json' 'models/my model'" in verdict["verdict"]["paste"]
    shutil.rmtree(home)
    monkeypatch.setattr(sys, "executable", "/usr/lib/another venv/bin/python3.12")
    found = verify_folder(out)
    assert found.mismatches == found.unchecked == []
    assert found.verdict is True


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def test_folders_of_earlier_versions_hold(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLES / name, tmp_path / "study"))
    here = {"FOLDER": folder.resolve(), "PYTHON": sys.executable, "HOST": platform.node()}
    here["PACKAGE"] = Path(ridgeline.__file__).parent
    for file in (path for path in folder.rglob("*") if path.is_file()):
        file.write_text(re.sub(r"@(FOLDER|PYTHON|HOST|PACKAGE)@", lambda m: str(here[m[1]]), file.read_text()))
    found = verify_folder(folder)
    assert found.mismatches == []
    assert found.verdict is (True if "finished" in name else None)
    gaps = [gap for gap in found.unchecked if "another release" not in gap.why]
    assert bool(gaps) == ("finished" in name), "run folders that the sample leaves out are said"


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in ROOT.glob("examples/*/results/*/study.yaml")), ids=lambda path: path.name
)
def test_the_results_of_the_examples_hold(folder: Path) -> None:
    """Each as its release derived it; one of them was concluded from a block on two machines, which is said."""
    found = found_in(folder)
    if folder.name != "llama-8b":
        assert found == []
        return
    (one,) = found
    assert one.what == "the verdict, by today's rules"
    assert "block 3 of 3: stopped in the middle and resumed" in one.found


def test_figures_of_a_headline_may_have_other_digits_but_no_other_value() -> None:
    exact = (1.2164659128575352, 3.0910)
    assert reworded("1.216x baseline", "1.22x baseline", exact=exact)
    assert reworded("a difference of 309.1%", "a difference of 4.09x", exact=exact)
    assert not reworded("1.217x baseline", "1.22x baseline", exact=exact), "it rounds to the same, and is not it"
    assert not reworded("1.216x baseline", "1.22x baseline")


def test_looking_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    verify_folder(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# what was tampered with is found


def test_a_measurement_edited_in_the_journal(folder: Path) -> None:
    def faster(event: dict[str, Any]) -> None:
        next(row for row in event["measurements"] if row[0] == "rate")[1] *= 2

    edit(folder, "ended", faster, run=4)
    found = found_in(folder)
    raw = [each for each in found if each.what == "rate"]
    assert [(each.run, Path(each.file).name) for each in raw] == [(4, "stdout")]
    assert raw[0].stated == 2 * raw[0].found
    assert any(each.file.endswith("result.json") for each in found)


def test_a_text_edited_in_the_journal(folder: Path) -> None:
    edit(folder, "ended", lambda event: event["texts"].update(way="sideways"), run=2)
    assert any(each.what == "way" and each.stated == "sideways" and each.run == 2 for each in found_in(folder))


def test_an_outcome_edited_in_the_journal(folder: Path) -> None:
    failed = next(run for run in read_history(folder).runs.values() if run.outcome and run.outcome.kind != "ok")
    edit(folder, "ended", lambda event: event.update(outcome={"kind": "hang", "reason": "x"}), run=failed.number)
    assert any(each.what == "the outcome" and each.run == failed.number for each in found_in(folder))


@pytest.mark.parametrize("field", ["estimate", "low", "high", "p_value", "blocks"])
def test_a_number_edited_in_the_verdict(folder: Path, field: str) -> None:
    def better(event: dict[str, Any]) -> None:
        event["verdict"]["comparisons"][0][field] += 1

    edit(folder, "verdict", better)
    assert [each.what for each in found_in(folder)] == [f"the verdict's comparisons[0].{field}"]
    assert verify_folder(folder).verdict is False


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_number_edited_in_a_headline(kind: str, finished: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(kind), tmp_path / "study"))
    change = re.compile(r"\d+(\.\d+)?")
    edit(folder, "verdict", lambda e: e["verdict"].update(headline=change.sub("977", e["verdict"]["headline"], 1)))
    assert [each.what for each in found_in(folder)] == ["the verdict's headline"]


def test_another_setting_named_as_the_winner(folder: Path) -> None:
    edit(folder, "verdict", lambda event: event["verdict"]["winner"].update(x=1))
    assert any(each.what == "the verdict's winner.x" for each in found_in(folder))


def test_another_setting_to_paste(folder: Path) -> None:
    winner = read_history(folder).verdict.details["winner"]  # type: ignore[union-attr]
    swapped = {"plain": "other", "other": "plain"}[winner["mode"]]
    edit(folder, "verdict", lambda e: e["verdict"].update(paste=e["verdict"]["paste"].replace(winner["mode"], swapped)))
    assert [each.what for each in found_in(folder)] == ["the verdict's paste"]


def test_a_number_edited_in_result_json(folder: Path) -> None:
    path = run_folder(folder, 3) / "result.json"
    path.write_text(path.read_text().replace('"exit_code": 0', '"exit_code": 3'))
    (found,) = found_in(folder)
    assert (found.run, found.stated, found.found) == (3, 3, 0)
    assert found.file.endswith("result.json")


def test_a_number_added_to_result_json(folder: Path) -> None:
    path = run_folder(folder, 3) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bonus": 5}))
    assert [each.what for each in found_in(folder)] == ["bonus, against the journal"]


def test_a_number_taken_out_of_result_json(folder: Path) -> None:
    path = run_folder(folder, 3) / "result.json"
    path.write_text(json.dumps({name: v for name, v in json.loads(path.read_text()).items() if name != "measurements"}))
    assert [each.what for each in found_in(folder)] == ["measurements, against the journal"]


def test_an_exit_code_edited_in_the_run_folder(folder: Path) -> None:
    rewrite_exit(folder, 3, lambda text: text.replace("exit_code=0", "exit_code=3"))
    (found,) = found_in(folder)
    assert (Path(found.file).name, found.what, found.stated, found.found) == ("result.json", "exit_code", 0, "3")


def test_a_loose_exit_file_is_held_against_the_journal_too(folder: Path) -> None:
    """As earlier releases left it."""
    text = state_text(run_folder(folder, 3), "exit")
    (run_folder(folder, 3) / "exit").write_text(text.replace("exit_code=0", "exit_code=3"))
    (found,) = found_in(folder)
    assert (Path(found.file).name, found.what, found.stated, found.found) == ("exit", "exit_code", 0, "3")


def rewrite_exit(folder: Path, run: int, change: Callable[[str], str]) -> None:
    """Change what a run's exit file said when it was folded into result.json."""
    path = run_folder(folder, run) / "result.json"
    result = json.loads(path.read_text())
    result["books"]["exit"]["text"] = change(result["books"]["exit"]["text"])
    path.write_text(json.dumps(result))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_script_of_another_setting(folder: Path) -> None:
    edited(run_folder(folder, 2) / "run.sh", "100 + 7 * ", "900 + 7 * ")
    (found,) = found_in(folder)
    assert (found.run, Path(found.file).name, found.what) == (2, "run.sh", "the script of this setting")
    assert "900 +" in found.stated
    assert "100 +" in found.found


def test_another_place_with_a_space_in_its_name_is_only_another_place() -> None:
    plain = "exec /usr/bin/python3 /opt/ridgeline/workloads/player.py /home/me/runs/0001-a 'two words'"
    spaced = "exec '/a b/.venv/bin/python3' '/a b/ridgeline/workloads/player.py' '/my studies/runs/0001-a' 'two words'"
    assert anywhere(spaced) == anywhere(plain)
    assert anywhere(spaced) != anywhere(plain.replace("two words", "two  words"))
    assert anywhere(spaced) != anywhere(plain.replace("player", "payer"))


def test_a_line_added_to_a_script(folder: Path) -> None:
    path = run_folder(folder, 2) / "run.sh"
    path.write_text(path.read_text() + "echo rate 999\n")
    assert [(each.stated, each.found) for each in found_in(folder)] == [("echo rate 999", "ends here")]


def test_an_environment_of_another_setting(folder: Path) -> None:
    script = run_folder(folder, 2) / "run.sh"
    script.write_text(re.sub("export MODE=.*", "export MODE=fast", script.read_text()))
    found = {(Path(each.file).name, each.what) for each in found_in(folder)}
    assert found == {("run.sh", "the script of this setting"), ("result.json", "the environment")}


def test_an_input_of_another_setting(folder: Path) -> None:
    path = run_folder(folder, 2) / "steps.txt"
    path.write_text("steps 77\n")
    later_s = read_history(folder).runs[2].ending.ended_s + 3600  # long after the run that might have written it itself
    os.utime(path, (later_s, later_s))
    (found,) = found_in(folder)
    assert (found.run, Path(found.file).name, found.what) == (2, "steps.txt", "a file the run was given")


def test_what_was_predicted_of_a_run_may_be_said_otherwise_today(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.campaign.verify.PREDICTED", "steps.txt")
    path = run_folder(folder, 2) / "steps.txt"
    path.write_text("steps 77\n")
    assert found_in(folder) == []


def test_a_file_the_program_itself_wrote_into_is_no_mismatch(folder: Path) -> None:
    path = run_folder(folder, 2) / "steps.txt"
    ending = read_history(folder).runs[2].ending
    path.write_text("steps 77\n")
    os.utime(path, (ending.ended_s, ending.ended_s))
    found = verify_folder(folder)
    assert found.holds
    assert [(each.run, each.why) for each in found.unchecked] == [(2, "was changed while the run was running")]


def test_a_duration_that_the_run_did_not_take(folder: Path) -> None:
    rewrite_exit(folder, 3, lambda text: re.sub(r"(?m)^(up_ended_s|ended_s)=.*", r"\1=99999999999", text))
    assert [(each.run, each.what) for each in found_in(folder)] == [(3, "how long the run took, s")]


@pytest.mark.parametrize("more_s", [0.5, -0.5])
def test_a_duration_that_is_off_by_half_a_second(folder: Path, more_s: float) -> None:
    """Shorter as well as longer: by both clocks that the node has."""

    def moved(line: re.Match[str]) -> str:
        return f"{line[1]}={float(line[2]) + more_s:.3f}"

    rewrite_exit(folder, 3, lambda text: re.sub(r"(?m)^(up_ended_s|ended_s)=(.*)", moved, text))
    assert [(each.run, each.what) for each in found_in(folder)] == [(3, "how long the run took, s")]


@pytest.mark.parametrize("clock", ["ended_s", "up_ended_s"])
def test_a_clock_that_was_set_during_a_run_is_no_mismatch(folder: Path, clock: str) -> None:
    """The other one tells how long it took."""
    text = state_text(run_folder(folder, 3), "exit")
    took_s = read_history(folder).runs[3].ending.duration_s
    # on a busy machine the shell reads one clock well after the other: here both say what the journal says
    for first, last in (("started_s", "ended_s"), ("up_began_s", "up_ended_s")):
        began = re.search(rf"(?m)^{first}=(.+)", text)
        assert began is not None
        text = re.sub(rf"(?m)^{last}=.+", f"{last}={float(began[1]) + took_s:.3f}", text)
    rewrite_exit(folder, 3, lambda _: re.sub(rf"(?m)^{clock}=.*", f"{clock}=99999999999", text))
    assert found_in(folder) == []


def test_a_measurement_edited_by_a_millionth(folder: Path) -> None:
    def slightly(event: dict[str, Any]) -> None:
        next(row for row in event["measurements"] if row[0] == "rate")[1] *= 1 + 1e-6

    edit(folder, "ended", slightly, run=4)
    assert [each.run for each in found_in(folder) if each.what == "rate"] == [4]


@pytest.mark.parametrize("place", [2, 4])
def test_the_unit_and_the_origin_of_a_measurement_are_part_of_it(folder: Path, place: int) -> None:
    def renamed(event: dict[str, Any]) -> None:
        next(row for row in event["measurements"] if row[0] == "rate")[place] = {2: "1/h", 4: "modelled"}[place]

    edit(folder, "ended", renamed, run=4)
    assert any(each.what == "rate" and each.run == 4 for each in found_in(folder))


@pytest.mark.parametrize(
    ("stated", "found", "alike"),
    [
        (1.0, 1.0 + 1e-12, True),  # another machine's libm
        (1.0, 1.0 + 1e-6, False),
        (0.0, 1e-15, True),
        (0.0, 1e-6, False),
        (1, 1.0, True),
        (True, 1, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1, 2, 3], False),
        ("1", 1, False),
    ],
)
def test_what_counts_as_the_same(stated: Any, found: Any, alike: bool) -> None:
    assert same(stated, found) is alike
    assert bool(list(differences({"at": stated}, {"at": found}))) is not alike


def test_what_is_stated_and_not_found_is_a_difference_and_what_is_found_beyond_is_none() -> None:
    assert list(differences({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}})) == [("a.b[1].c", 2, 3)]
    assert list(differences({"a": 1}, {})) == [("a", 1, "nothing")]
    assert list(differences({}, {"a": 1})) == []


def test_a_folder_of_another_release_is_not_held_to_its_wording(folder: Path) -> None:
    lines = events(folder)
    for line in lines:
        if line["event"] == "opened":
            line["receipt"]["ridgeline"] = "0.0.9"
    rewrite(folder, lines)
    edited(run_folder(folder, 2) / "run.sh", "started=$(date", "began=$(date")
    assert verify_folder(folder).holds
    edited(run_folder(folder, 2) / "run.sh", "100 + 7 * ", "900 + 7 * ")
    found = verify_folder(folder)
    assert found.holds
    assert any(each.run == 2 and "another release wrote it" in each.why for each in found.unchecked)


def test_another_setting_under_confirmation(folder: Path) -> None:
    edit(folder, "confirm", lambda event: event["candidates"][0].update(x=17))
    assert any(each.what == "a setting under confirmation" for each in found_in(folder))


def test_a_receipt_of_another_shape(folder: Path) -> None:
    edit(folder, "opened", lambda event: event.update(receipt="fast machine"))
    (found,) = found_in(folder)
    assert "not a whole `opened` event" in found.found


def test_a_damaged_result_json(folder: Path) -> None:
    path = run_folder(folder, 3) / "result.json"
    path.write_text(path.read_text()[:40])
    assert [(each.run, Path(each.file).name) for each in found_in(folder)] == [(3, "result.json")]


@pytest.mark.parametrize("change", [lambda text: text.replace("rate 1", "rate 9"), lambda text: ""])
def test_a_run_s_output_edited_or_truncated(folder: Path, change: Callable[[str], str]) -> None:
    path = run_folder(folder, 2) / "stdout"
    path.write_text(change(path.read_text()))
    assert ("rate", 2) in [(each.what, each.run) for each in found_in(folder)]


def test_a_run_folder_removed(folder: Path) -> None:
    shutil.rmtree(run_folder(folder, 5))
    (found,) = found_in(folder)
    assert found.run == 5
    assert found.found == "is not there"


def test_a_script_removed(folder: Path) -> None:
    (run_folder(folder, 5) / "run.sh").unlink()
    assert [(each.run, Path(each.file).name) for each in found_in(folder)] == [(5, "run.sh")]


def lines_of(run: int, lines: list[dict[str, Any]]) -> list[int]:
    trial = next(line["trial"] for line in lines if line["event"] == "run" and line["run"] == run)
    return [i for i, line in enumerate(lines) if line.get("run") == run or line.get("trial") == trial]


def test_the_journal_cut_off_in_the_middle(folder: Path) -> None:
    lines = events(folder)
    rewrite(folder, lines[: lines_of(6, lines)[0]])
    found = found_in(folder)
    assert found
    assert all(re.match(r"runs/\d{4}-", each.file) for each in found), "runs that the journal does not know"


def test_a_run_taken_out_of_the_journal(folder: Path) -> None:
    lines = events(folder)
    gone = lines_of(6, lines)
    rewrite(folder, [line for i, line in enumerate(lines) if i not in gone])
    (found,) = found_in(folder)
    assert "trial 7 follows trial 5" in found.found


def test_a_second_try_taken_out_of_the_journal(folder: Path) -> None:
    """Numbers of runs have no gap either; here all later ones were made one larger."""
    lines = events(folder)
    rewrite(folder, [{**line, "run": line["run"] + 1} if line.get("run", 0) > 4 else line for line in lines])
    assert any(each.what == "the numbers of the runs" and each.run == 5 for each in found_in(folder))


def test_the_end_of_a_run_taken_out_of_the_journal(folder: Path) -> None:
    last = max(read_history(folder).runs)
    rewrite(folder, [line for line in events(folder) if (line["event"], line.get("run")) != ("ended", last)])
    assert any(each.what == "the end of a run before the verdict" and each.run == last for each in found_in(folder))


def test_a_damaged_line(folder: Path) -> None:
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    lines[5] = lines[5][:20] + "\n"
    (folder / "journal.jsonl").write_text("".join(lines))
    (found,) = found_in(folder)
    assert "journal.jsonl:6" in found.found


def test_a_swapped_setting(folder: Path) -> None:
    trial = read_history(folder).runs[6].trial

    def swap(event: dict[str, Any]) -> None:
        event["point"]["mode"] = event["settings"]["mode"] = "other" if event["point"]["mode"] == "plain" else "plain"

    lines = events(folder)
    swap(next(line for line in lines if line["event"] == "trial" and line["trial"] == trial))
    rewrite(folder, lines)
    whats = {each.what for each in found_in(folder) if each.run == 6}
    assert "settings.mode, against the journal" in whats
    assert "the run's folder, which is named after its setting" in whats


def test_settings_that_do_not_follow_from_the_point(folder: Path) -> None:
    edit(folder, "trial", lambda event: event["settings"].update(x=4))
    assert any(each.what.endswith("x, against its point") for each in found_in(folder))


def test_a_changed_question(folder: Path) -> None:
    path = folder / "study.yaml"
    path.write_text(path.read_text().replace("maximize", "minimize"))
    assert any(each.file == "study.yaml" and "goal changed" in each.found for each in found_in(folder))


# what cannot be checked is said, and is no failure


def test_an_output_that_is_gone_is_not_checkable(folder: Path) -> None:
    (run_folder(folder, 2) / "stdout").unlink()
    found = verify_folder(folder)
    assert found.holds
    assert {(each.run, Path(each.file).name, each.why) for each in found.unchecked} == {(2, "stdout", "is gone")}


def test_what_is_declared_as_trimmed_is_not_checkable(folder: Path) -> None:
    shutil.rmtree(run_folder(folder, 5))
    path = run_folder(folder, 2) / "stdout"
    path.write_text("")
    (folder / "trimmed.txt").write_text("# to save space\nruns/0005-*\nruns/0002-*/stdout\n")
    found = verify_folder(folder)
    assert found.holds
    assert {each.run for each in found.unchecked} == {2, 5}


def test_a_workload_that_is_not_installed_is_not_checkable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline import catalog

    # another table, since an entry that is put back comes last
    others = {name: place for name, place in catalog.TABLE["workloads"].items() if name != "command"}
    monkeypatch.setitem(catalog.TABLE, "workloads", others)
    found = verify_folder(folder)
    assert found.holds
    assert found.numbers == 0
    assert "the workload command cannot be used here" in found.unchecked[0].why


def test_another_wording_is_no_mismatch(folder: Path) -> None:
    edit(folder, "verdict", lambda e: e["verdict"].update(headline=e["verdict"]["headline"].replace("baseline", "it")))
    found = verify_folder(folder)
    assert found.holds
    assert ["headline" in each.why for each in found.unchecked] == [True], "but both wordings are shown"


@pytest.mark.parametrize(
    ("now", "alike"), [("-6% to +8%, 3 blocks", True), ("+6% to +8%", False), ("-6% to +9%", False)]
)
def test_wording_may_change_and_figures_may_not(now: str, alike: bool) -> None:
    assert reworded("from -6% to +8%", now) is alike


# the verb


def leave(*arguments: object) -> int:
    try:
        command_line([str(argument) for argument in arguments])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_the_verb_leaves_with_0_or_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("study", "verify", folder) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: everything holds\n")
    (run_folder(folder, 2) / "stdout").write_text("rate 999 of plain check 42.5\n")
    assert leave("study", "verify", folder) == 1
    assert re.search(r"run 2, runs/0002-\S+/stdout: rate: stated 107.0, found 999.0", capsys.readouterr().out)
    assert leave("study", "verify", folder, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is False
    assert told["mismatches"][0] | {"file": ""} == {"file": "", "what": "rate", "stated": 107, "found": 999, "run": 2}


# receipts


def test_every_opening_leaves_a_receipt(folder: Path) -> None:
    (receipt,) = verify_folder(folder).receipts
    assert receipt["host"] == platform.node()
    assert receipt["ridgeline"] == ridgeline.__version__
    assert receipt["seed"] == 3
    assert receipt.keys() >= {"cpu", "cores", "gpus", "kernel", "load", "python", "command"}
    with assemble_campaign(StudyFolder.open(folder)) as campaign:
        campaign.run()
    assert len(verify_folder(folder).receipts) == 2
    assert receipt["host"] in "\n".join(_verification_lines(verify_folder(folder)))


def test_a_folder_without_a_receipt_says_so() -> None:
    assert any("no receipt" in line for line in _verification_lines(Verification("x")))


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "PROC", tmp_path)
    card = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    assert receipts._gpus() == [("NVIDIA H200", "550.54.15")]


def test_a_machine_that_tells_nothing_still_gives_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "PROC", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert receipts._gpus() == []
    assert receipts._cpu_model()


def test_a_run_that_somebody_repeated_by_hand_is_no_stranger(folder: Path) -> None:
    run = next((folder / "runs").iterdir())
    shutil.copytree(run, run.with_name(f"{run.name}.by-hand-4711"))
    assert found_in(folder) == []
    shutil.copytree(run, run.with_name(f"{run.name}-again"))
    assert [each.what for each in found_in(folder)] == ["a run's folder"]


def test_what_several_runs_cannot_show_for_one_reason_is_one_line_and_files_keep_their_own() -> None:
    found = Verification("x")
    found.unchecked += [Unchecked(f"runs/000{n}-a/run.sh", "another release", n) for n in (1, 2)]
    found.unchecked += [Unchecked("builds/one/log", "gone"), Unchecked("builds/two/log", "gone")]
    lines = list(_verification_lines(found))
    assert lines[lines.index("not checkable:") + 1 :] == [
        "  run.sh of runs 1, 2: another release",
        "  builds/one/log: gone",
        "  builds/two/log: gone",
    ]
