"""A cluster that is not there: pretended times, nodes and mishaps, the same for the same seed, also after a crash."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import SiteError
from ridgeline.executors.simulated import SimulatedExecutor
from ridgeline.records.run import Cause, Ending, Job, Resources
from ridgeline.records.site import Site


def site(nodes: int = 4, **options: object) -> Site:
    return Site(name="pretended", batch="simulated", nodes=nodes, options={"seed": 7, "prefix": "dgx", **options})


def job(folder: Path, name: str, command: str = "echo 600 > took_s", **more: object) -> Job:
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    return Job(name, home, command, **more)  # type: ignore[arg-type]


def ending(executor: SimulatedExecutor, one: Job) -> Ending:
    ticket = executor.submit(one)
    while not (found := executor.poll([ticket])):
        executor.wait(1.0)
    return found[ticket]


def speed_of(executor: SimulatedExecutor, one: Job) -> float:
    line = next(line for line in executor.script(one).splitlines() if "RIDGELINE_SPEED" in line)
    return float(line.split("=")[1])


def test_node_hours_are_those_of_the_cluster(tmp_path: Path) -> None:
    end = ending(SimulatedExecutor(site()), job(tmp_path, "0001", resources=Resources(nodes=2)))
    assert (end.cause, end.exit_code) == (Cause.EXITED, 0)
    assert end.duration_s == pytest.approx(600)
    assert len(end.nodes) == 2
    assert all(node.startswith("dgx00") for node in end.nodes)


def test_the_clock_moves_on_from_run_to_run_and_over_a_restart(tmp_path: Path) -> None:
    first = ending(SimulatedExecutor(site()), job(tmp_path, "0001"))
    second = ending(SimulatedExecutor(site()), job(tmp_path, "0002"))
    assert second.started_s >= first.ended_s
    assert second.duration_s == pytest.approx(600)


def test_a_controller_that_came_back_is_told_the_same_ending(tmp_path: Path) -> None:
    one = job(tmp_path, "0001")
    told = ending(SimulatedExecutor(site()), one)
    second = SimulatedExecutor(site())
    ticket = second.find(one)
    assert ticket is not None
    assert second.poll([ticket])[ticket] == told


def test_limits_hold_in_pretended_time(tmp_path: Path) -> None:
    end = ending(SimulatedExecutor(site()), job(tmp_path, "0001", limit_s=300.0))
    assert end.cause is Cause.TIME_LIMIT
    assert "300 s" in end.reason
    assert end.duration_s == pytest.approx(300)


def test_the_same_seed_gives_the_same_fates_and_another_seed_others(tmp_path: Path) -> None:
    def fates(seed: int) -> list[tuple[str, ...]]:
        executor = SimulatedExecutor(site(6, seed=seed, noise=0.02, spread=0.01))
        scripts = [executor.script(job(tmp_path, f"{n:04d}", resources=Resources(nodes=2))) for n in range(20)]
        return [tuple(line for line in s.splitlines() if "RIDGELINE_" in line and "export" in line) for s in scripts]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)


def test_a_slow_node_slows_the_jobs_on_it_and_no_others(tmp_path: Path) -> None:
    executor = SimulatedExecutor(site(3, slow={"dgx002": 0.81}))
    speeds = {n: speed_of(executor, job(tmp_path, n, on_nodes=(n,))) for n in ("dgx001", "dgx002", "dgx003")}
    assert speeds == pytest.approx({"dgx001": 1.0, "dgx002": 0.81, "dgx003": 1.0})
    both = job(tmp_path, "both", on_nodes=("dgx001", "dgx002"), resources=Resources(nodes=2))
    assert speed_of(executor, both) == pytest.approx(0.81), "the others wait for the slowest"


def test_noise_scatters_runs_around_the_truth(tmp_path: Path) -> None:
    executor = SimulatedExecutor(site(1, noise=0.05))
    logs = [math.log(speed_of(executor, job(tmp_path, f"{n:04d}"))) for n in range(400)]
    mean = sum(logs) / len(logs)
    assert abs(mean) < 0.01
    assert 0.04 < math.sqrt(sum((x - mean) ** 2 for x in logs) / len(logs)) < 0.06


def test_faults_and_hangs_come_about_as_often_as_said_and_in_the_right_words(tmp_path: Path) -> None:
    executor = SimulatedExecutor(site(faults=0.2, hangs=0.2))
    ends = [ending(executor, job(tmp_path, f"{n:04d}", silence_limit_s=100.0)) for n in range(40)]
    causes = Counter(end.cause for end in ends)
    assert set(causes) == {Cause.EXITED, Cause.NODE_FAILED, Cause.SILENCE}
    assert 2 <= causes[Cause.NODE_FAILED] <= 18
    assert 2 <= causes[Cause.SILENCE] <= 18
    for end in ends:
        if end.cause is Cause.NODE_FAILED:
            assert end.nodes[0] in end.reason
            assert end.duration_s < 600
        if end.cause is Cause.SILENCE:
            assert 100 < end.duration_s < 700


def test_a_hang_without_a_silence_limit_runs_into_the_wall_limit(tmp_path: Path) -> None:
    executor = SimulatedExecutor(site(hangs=0.999))
    end = ending(executor, job(tmp_path, "0001", limit_s=1000.0))
    assert end.cause is Cause.TIME_LIMIT
    assert end.duration_s == pytest.approx(1000)


@given(nodes=st.integers(1, 8), wanted=st.integers(1, 8), name=st.text("abc0123456789-", min_size=1, max_size=12))
def test_nodes_are_of_the_site_distinct_and_not_the_avoided(nodes: int, wanted: int, name: str) -> None:
    executor = SimulatedExecutor(site(nodes))
    one = Job(name, Path("/nowhere") / name, "true", resources=Resources(nodes=wanted), avoid_nodes=("dgx001",))
    if wanted > nodes:
        with pytest.raises(SiteError, match=r"lower job\.nodes"):
            executor.script(one)
        return
    line = next(line for line in executor.script(one).splitlines() if "RIDGELINE_NODES" in line)
    chosen = line.split("=")[1].strip("'").split()
    assert len(set(chosen)) == wanted
    assert set(chosen) <= {f"dgx{n:03d}" for n in range(1, nodes + 1)}
    assert "dgx001" not in chosen or wanted > nodes - 1


def test_a_job_without_pretended_time_counts_as_it_was(tmp_path: Path) -> None:
    end = ending(SimulatedExecutor(site()), job(tmp_path, "0001", "sleep 0.1"))
    assert 0.1 <= end.duration_s < 30


@pytest.mark.parametrize("text", ["soon", "nan", "-5", ""])
def test_nonsense_in_the_time_file_is_not_believed(tmp_path: Path, text: str) -> None:
    end = ending(SimulatedExecutor(site()), job(tmp_path, "0001", f"echo '{text}' > took_s"))
    assert end.cause is Cause.EXITED
    assert 0 <= end.duration_s < 30


def test_a_slow_node_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(SiteError, match=r"dgx009.*dgx001 to dgx004"):
        SimulatedExecutor(site(slow={"dgx009": 0.9}))


def test_what_befell_a_run_can_be_read_in_its_folder(tmp_path: Path) -> None:
    one = job(tmp_path, "0001", resources=Resources(nodes=2))
    end = ending(SimulatedExecutor(site()), one)
    placed = json.loads((one.folder / "placement.json").read_text())
    assert tuple(placed["nodes"]) == end.nodes
    assert placed["started_s"] == end.started_s
