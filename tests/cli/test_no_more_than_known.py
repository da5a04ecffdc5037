"""No face says more than the runs show: broken limits, old verdicts, simulated figures, and what has no verdict."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import ridgeline as api
from ridgeline.campaign.status import answer_on_paper, read_status
from ridgeline.cli.text.snapshot import snapshot_of
from ridgeline.cli.text.wording import status_lines
from ridgeline.errors import ExitCode
from ridgeline.report.markdown import markdown
from ridgeline.report.studies import StudySeen, project_sections
from tests.command_line import ridgeline

RESULTS = Path(__file__).parents[2] / "examples" / "05-sglang-h200" / "results"
OVER = "over the limit: TTFT p95 2,339 ms (limit 2,000) and ITL p95 59.39 ms (limit 50)"


def faces(name: str, tmp_path: Path) -> dict[str, str]:
    """What each face shows first of this folder."""
    folder = tmp_path / name
    shutil.copytree(RESULTS / name, folder)
    best = ridgeline("best", folder)
    found = {"best": best.stdout.splitlines()[0], "status": "\n".join(status_lines(read_status(folder), 0.0))}
    for form, file in (("html", "report.html"), ("md", "report.md"), ("slides", "slides.html")):
        assert ridgeline("report", folder, "--format", form).returncode == 0
        found[form] = (folder / file).read_text()
    # in large: the headline of the card, and no ratio beside it
    found["html"] = re.findall(r"<p class=(?:ratio|headline)>.*?</p>", found["html"])[0]
    found["slides"] = re.findall(r"<p class=(?:ratio|headline)>.*?</p>", found["slides"])[0]
    found["md"] = next(line for line in found["md"].splitlines() if line.startswith("**")).replace("\\", "")
    found["dashboard"] = snapshot_text(folder)
    found["API"] = str(api.open(folder))
    found["JSON"] = json.loads(ridgeline("best", folder, "--json").stdout)["statement"]
    return found


def snapshot_text(folder: Path) -> str:
    now = snapshot_of(read_status(folder), 0.0, {})
    return f"{now.gain} {now.headline}"


def test_a_broken_limit_of_the_question_is_in_every_headline(tmp_path: Path) -> None:
    for face, text in faces("mistral-nemo-serve", tmp_path).items():
        assert OVER in re.sub(r"<[^>]*>", "", text), face
        assert not re.search(r"<strong>2\.5", text), f"{face}: the gain alone is the largest type"
    told = json.loads(ridgeline("status", tmp_path / "mistral-nemo-serve", "--json").stdout)["broken_limits"]
    assert [(row["metric"], row["limit"]) for row in told] == [("ttft_p95_ms", 2000), ("itl_p95_ms", 50)]
    assert all(row["measured"] > row["limit"] for row in told)
    assert told[0]["reference"] == pytest.approx(5392, rel=0.05), "and what the baseline does, to compare"


def test_an_old_verdict_that_does_not_stand_today_is_not_provable_on_every_face(tmp_path: Path) -> None:
    for face, text in faces("llama-8b", tmp_path).items():
        assert "not provable" in text.lower(), face
        assert "onfirmed:" not in text and not re.search(r"<strong>1\.1", text), face
    folder = tmp_path / "llama-8b"
    done = ridgeline("best", folder, "--script", tmp_path / "run.sh")
    assert done.returncode == 1
    assert "block 3 of 3: stopped in the middle and resumed, perhaps on another machine" in done.stderr
    assert (tmp_path / "run.sh").read_text().splitlines()[1].startswith("# NOT AN ANSWER: not provable")
    assert not api.open(folder) and api.open(folder).best is None
    assert ridgeline("study", "verify", folder).returncode == 1


def test_old_verdicts_that_stand_have_todays_interval() -> None:
    """The first protocol gave each look its own level; today the first verdict leaves some of the error to others."""
    found = read_status(RESULTS / "llama-8b-compare").answer
    assert found.confirmed and found.candidate is not None and found.candidate.gain is not None
    gain = found.candidate.gain
    assert (gain.low, gain.high) == (pytest.approx(1.0118, abs=5e-5), pytest.approx(1.0913, abs=5e-5)), (
        "over blocks alone: their order was not drawn, so it shows nothing by itself"
    )


TWIN = """\
version: 1
name: predicted
workload: {kind: twin, model: llama-8b, gpu: h100, traffic: {dataset: "fixed:64:8", requests: 8}}
space: {max_running_requests: [1, 8]}
goal: {maximize: total_tok_s}
baseline: {max_running_requests: 1}
budget: {trials: 1}
job: {gpus: 1}
stages: {baseline: {repeats: 1}, search: {sentinel_every: 0}, confirm: {top: 1, blocks: 3}}
site: {batch: simulated, nodes: 1, options: {prefix: sim, seed: 1, noise: 0.01}}
"""


def test_the_twins_own_error_is_that_of_the_goal(tmp_path: Path) -> None:
    """Joules of a token rest on watts, too, and a first token on more than the speed."""
    asked = "twin simulate --model llama-8b --gpu h100 --traffic fixed:64:8 --requests 8 --max-running-requests 8"
    answer = json.loads(ridgeline(*asked.split(), "--json").stdout)
    predicted = {"joules_per_output_token": answer["joules_per_output_token"], "ttft_p95_ms": answer["ttft_ms"]["p95"]}
    for metric, value in predicted.items():
        text = TWIN.replace("maximize: total_tok_s", f"minimize: {metric}")
        (tmp_path / "study.yaml").write_text(text)
        done = ridgeline("tune", "study.yaml", "--out", metric, cwd=tmp_path)
        low, high = (bound / value for bound in answer["interval"][metric])
        said = re.search(r"the real figure is (\S+) to (\S+) times", done.stdout + done.stderr)
        assert said is not None, done.stdout + done.stderr
        assert [float(said[1]), float(said[2])] == pytest.approx([low, high], abs=0.011), metric


def test_a_simulated_gain_states_the_twins_own_error_and_is_never_added_to_measured_ones(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(TWIN)
    done = ridgeline("tune", "study.yaml", "--out", "twin", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = r"the model's own error is not in it \(90%: the real figure is (\S+) to (\S+) times the"
    error = re.search(said, done.stdout)
    assert error is not None and 0.4 < float(error[1]) < 1 < float(error[2]) < 2.5
    assert "Confirmed in simulation" in done.stdout
    assert "own error is not in it (90%: the real figure is" in (tmp_path / "twin" / "report.html").read_text()
    folders = [("sim", tmp_path / "twin"), ("real", RESULTS / "qwen2.5-7b")]
    seen = [StudySeen(n, (s := read_status(p)).study, s.history, answer_on_paper(s)) for n, p in folders]
    page = markdown("both", "", project_sections(seen)).replace("\\", "")
    assert "1 of 1 measured study confirmed a better setting: 1.13x the baseline" in page
    assert "1 of 1 simulated study confirmed a better setting" in page
    hours = {one.name: one.history.node_hours for one in seen}
    assert f"{hours['real']:.3g} node-hours" in page, "what was spent stands alone"
    assert f"{sum(hours.values()):.3g} node-hours" not in page or f"{hours['sim']:.3g}" == "0"
    for line in page.splitlines():
        if line.startswith(("| sim", "| real")):
            assert ("simulated" if line.startswith("| sim") else "measured") in line, line


STUDY = """\
version: 1
name: quick
workload: {kind: command, run: 'sleep 0.01; echo rate $((100 * {x}))', metrics: {rate: {regex: 'rate (.*)'}}}
space: {x: [1, 2, 3]}
goal: {maximize: rate}
baseline: {x: 1}
budget: BUDGET
stages: {baseline: {repeats: 1}, search: {sentinel_every: 0}, confirm: CONFIRM}
"""


def study(confirm: str, budget: str = "{trials: 2}") -> str:
    return STUDY.replace("BUDGET", budget).replace("CONFIRM", confirm)


def go_on(told: str, cwd: Path) -> int:
    """The command that was printed, pasted."""
    line = next(line.strip() for line in told.splitlines() if line.strip().startswith("ridgeline resume"))
    return ridgeline(*shlex.split(line)[1:], cwd=cwd).returncode


@pytest.mark.parametrize(
    ("confirm", "budget"),
    [
        ("{top: 0}", "{trials: 2}"),  # no confirmation was asked for
        ("{top: 1, blocks: 3}", "{trials: 2, node_hours: 0.0000001}"),  # there was no room for any
        ("{top: 1, blocks: 3}", "{trials: 2, wall: 0.05s}"),
    ],
)
def test_without_a_verdict_the_command_that_leads_to_one_can_be_pasted(
    tmp_path: Path, confirm: str, budget: str
) -> None:
    (tmp_path / "study.yaml").write_text(study(confirm, budget))
    out = tmp_path / "a folder"
    done = ridgeline("tune", "study.yaml", "--out", out, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    for _ in range(12):  # time on a busy machine may be short once more, and then it is said again
        told = ridgeline("best", out)
        if told.returncode == 0:
            break
        assert told.returncode == 1 and json.loads(ridgeline("best", out, "--json").stdout)["answered"] is False
        go_on(told.stdout, tmp_path)
    assert ridgeline("best", out).returncode == 0
    assert ridgeline("study", "verify", out).returncode == 0


def test_a_machine_that_gets_slower_all_the_time_is_caught_up_with(tmp_path: Path) -> None:
    """Each run takes longer than all that the advice could know of, and blocks are cut in the middle."""
    slower = "echo >> ../../../ran; sleep $(awk 'END {print 0.002 * 1.3 ^ NR}' ../../../ran);"
    text = study("{top: 1, blocks: 3}", "{trials: 2, node_hours: 0.0000001}").replace("sleep 0.01;", slower)
    (tmp_path / "study.yaml").write_text(text.replace("run: '", 'run: "').replace("{x}))'", '{x}))"'))
    assert ridgeline("tune", "study.yaml", "--out", "out", cwd=tmp_path).returncode == 1
    for _ in range(6):
        if (told := ridgeline("best", "out", cwd=tmp_path)).returncode == 0:
            break
        assert go_on(told.stdout, tmp_path) in (0, 1), "what is printed is taken"
    assert told.returncode == 0


def test_two_blocks_are_refused_with_the_smallest_number_that_works(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(study("{top: 1, blocks: 2}"))
    for verb in ("check", "tune"):
        done = ridgeline(verb, "study.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "2 blocks can never give a verdict; use 3 or more" in done.stderr
    (tmp_path / "study.yaml").write_text(study("{top: 1, blocks: 3}"))
    assert ridgeline("check", "study.yaml", cwd=tmp_path).returncode == 0


def test_check_says_which_limit_binds_and_what_would_hold_the_confirmation(tmp_path: Path) -> None:
    text = study("{top: 1, blocks: 3, repeats: 1, warmup: never}", "{trials: 2, wall: 5m, node_hours: 1}")
    (tmp_path / "study.yaml").write_text(f"{text}job: {{limit: 1m}}\n")
    told = ridgeline("check", "study.yaml", cwd=tmp_path).stdout
    # baseline, one trial, and three blocks of two runs: 8 runs of at most a minute
    assert "budget.wall: 5m holds the baseline, one trial and 3 blocks of confirmation (8 runs)" in told
    assert "only if a run takes at most 37s" in told and "`wall: 8m` is always enough" in told
    assert "budget.node_hours: " not in told, "an hour is enough"
    assert "budget.wall ends it: nothing is begun after 0.0833 node-hours" in told
    enough = text.replace("wall: 5m", "wall: 8m")
    (tmp_path / "study.yaml").write_text(f"{enough}job: {{limit: 1m}}\n")
    assert "is always enough" not in ridgeline("check", "study.yaml", cwd=tmp_path).stdout


INTERRUPT = """
import os, pathlib, signal, threading, time
def wait():
    journal = pathlib.Path("studies/s/journal.jsonl")
    while not journal.exists() or '"event":"submitted"' not in journal.read_text():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=wait, daemon=True).start()
"""


def test_who_stops_is_told_of_jobs_that_go_on(tmp_path: Path, pbs_standin: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "study.yaml").write_text(f"""\
version: 1
name: s
site: {{batch: pbs, nodes: 1, poll_s: 0.2}}
workload:
  kind: command
  run: "while [ ! -e {go} ]; do sleep 0.05; done; echo rate {{a}}"
  metrics: {{rate: {{regex: 'rate (\\d+)'}}}}
space: {{a: [1, 2]}}
goal: {{maximize: rate}}
baseline: {{a: 1}}
confirm: {{top: 0}}
""")
    stopped = ridgeline("tune", "study.yaml", cwd=tmp_path, before=INTERRUPT)
    go.touch()
    assert stopped.returncode == ExitCode.INTERRUPTED, stopped.stderr
    lines = (tmp_path / "studies/s/journal.jsonl").read_text().splitlines()
    tickets = [event["ticket"] for event in map(json.loads, lines) if event["event"] == "submitted"]
    names = ", ".join(ticket.split()[0] for ticket in tickets)
    assert f"Jobs left to the batch system, for resume to read: {names}." in stopped.stderr
    assert "left to" not in ridgeline("resume", "studies/s", cwd=tmp_path).stderr
