"""Energy of a run: RAPL's counters over their turns, the power of GPUs, Slurm's accounting."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.executors import energy
from ridgeline.executors.dialect import JobReply
from ridgeline.executors.energy import ENERGY_FILE, measured_joules, meters_missing_here
from ridgeline.executors.local import LocalExecutor
from ridgeline.executors.slurm import Slurm
from ridgeline.records.run import Cause, Job, Resources
from ridgeline.records.site import Prices, Site, counted_twice


def test_counters_are_added_over_zones_and_over_their_turns(tmp_path: Path) -> None:
    samples = [(1_000_000, 9_000_000), (4_000_000, 9_500_000), (2_000_000, 1_000_000)]
    lines = [f"rapl intel-rapl:0 {a} 5000000\nrapl intel-rapl:0:1 {b} 10000000\n" for a, b in samples]
    (tmp_path / ENERGY_FILE).write_text("".join(lines))
    assert measured_joules(tmp_path, ("rapl",), 10.0) == pytest.approx(3 + 3 + 0.5 + 1.5)
    assert measured_joules(tmp_path, ("rapl", "nvidia-smi"), 10.0) is None, "half of the energy is not the energy"
    (tmp_path / ENERGY_FILE).write_text("".join(lines) + "0, 100.0\n1, 50.00\n0, 200.0\n1, [N/A]\n")
    assert measured_joules(tmp_path, ("rapl", "nvidia-smi"), 10.0) == pytest.approx(8 + 10 * (150 + 50))
    assert measured_joules(tmp_path / "nowhere", ("rapl",), 10.0) is None


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ("0, 100.0\n1, [Unknown Error]\n0, 200.0\n1, [N/A]\n", "one of two GPUs never said what it draws"),
        ("0, 100.0\n" * 2, "samples of two seconds say nothing of a minute"),
        ("0, 100.0\n" * 60 + "1, 90.0\n", "a GPU that was lost in the first second drew more than it said"),
    ],
)
def test_the_power_of_a_part_of_the_gpus_or_of_the_time_is_no_energy(tmp_path: Path, samples: str, why: str) -> None:
    (tmp_path / ENERGY_FILE).write_text(samples)
    assert measured_joules(tmp_path, ("nvidia-smi",), 60.0) is None, why


def test_the_counters_of_gpus_are_added(tmp_path: Path) -> None:
    (tmp_path / ENERGY_FILE).write_text("nvml 0 1000\nnvml GPU-1 9000\nnvml 0 4000\nnvml GPU-1 9500\n")
    assert measured_joules(tmp_path, ("nvml",), 10.0) == pytest.approx(3 + 0.5)
    (tmp_path / ENERGY_FILE).write_text("nvml 0 1000\nnvml GPU-1 9000\nnvml 0 4000\n")
    assert measured_joules(tmp_path, ("nvml",), 10.0) is None, "a GPU that was lost leaves no sum"
    (tmp_path / ENERGY_FILE).write_text("nvml 0 4000\nnvml 0 1000\n")
    assert measured_joules(tmp_path, ("nvml",), 10.0) is None, "the driver was loaded again"
    (tmp_path / ENERGY_FILE).write_text("nvml 0 1000\nnvml 1 none\nnvml 0 4000\nnvml 1 none\n")
    assert measured_joules(tmp_path, ("nvml",), 10.0) is None, "one GPU does not tell"


# As two users showed it (lovoo/ipmi_exporter, issue 18; openbmc/phosphor-host-ipmid, issue 167: no sensor).
BOARD = """
    Instantaneous power reading:                   215 Watts
    Minimum during sampling period:                162 Watts
    Maximum during sampling period:                276 Watts
    Average power reading over sample period:      176 Watts
    IPMI timestamp:                           Wed Feb 15 12:49:51 2017
    Sampling period:                          01131466 Seconds.
    Power reading state is:                   activated

"""
NO_SENSOR = """
    Instantaneous power reading:                     0 Watts
    Minimum during sampling period:                  0 Watts
    Maximum during sampling period:                  0 Watts
    Average power reading over sample period:        0 Watts
    IPMI timestamp:                           Thu Jan  1 00:00:00 1970
    Sampling period:                          00000000 Seconds.
    Power reading state is:                   deactivated
"""


def test_a_board_controllers_power_is_taken_over_the_time_of_the_run(tmp_path: Path) -> None:
    (tmp_path / ENERGY_FILE).write_text(BOARD + BOARD.replace("215", "185"))
    assert measured_joules(tmp_path, ("ipmi",), 10.0) == pytest.approx(2000.0), "not the board's own mean of 13 days"
    (tmp_path / ENERGY_FILE).write_text(NO_SENSOR)
    assert measured_joules(tmp_path, ("ipmi",), 10.0) is None, "a board without a sensor says 0 Watts"
    assert "ipmi counts whole nodes" in counted_twice(Prices(meters=("ipmi", "nvml")))


def ipmitool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "ipmitool").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ipmitool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_run_sh_asks_the_board_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reading").write_text(BOARD)
    ipmitool(tmp_path / "bin", f'[ "$*" = "dcmi power reading" ] && cat {tmp_path}/reading', monkeypatch)
    folder = tmp_path / "run"
    folder.mkdir()
    executor = LocalExecutor(Site(prices=Prices(meters=("ipmi",))))
    program = f"touch {tmp_path}/started; while [ ! -e {tmp_path}/over ]; do sleep 0.05; done"
    ticket = executor.submit(Job("job", folder, program, resources=Resources(), limit_s=600.0))
    while not (tmp_path / "started").exists():
        executor.wait(0.05)
    executor.wait(1.0)  # it is asked at once and then every second: one sample is enough
    (tmp_path / "over").touch()
    while not (endings := executor.poll([ticket])):
        executor.wait(5.0)
    ending = endings[ticket]
    assert ending.leftovers == ()
    assert ending.usage["joules"] == pytest.approx(215.0 * ending.duration_s)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'Could not open device at /dev/ipmi0: No such file or directory' >&2; exit 1",
            "Could not open device at",
        ),
        (f"cat <<'END'\n{NO_SENSOR}END", "it reads 0 Watts: the board has no power sensor"),
    ],
)
def test_check_says_why_a_board_controller_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    ipmitool(tmp_path / "bin", script, monkeypatch)
    (said,) = meters_missing_here(("ipmi",))
    assert said.startswith("ipmi: `ipmitool dcmi power reading` gives no reading (") and why in said
    ipmitool(tmp_path / "bin", f"cat <<'END'\n{BOARD}END", monkeypatch)
    assert meters_missing_here(("ipmi",)) == []


def powercap(folder: Path) -> Path:
    """Two packages with their DRAM and cores, and the whole machine beside them."""
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}
    for zone, name in zones.items():
        (folder / zone).mkdir(parents=True)
        for file, text in (("name", name), ("energy_uj", "1000000"), ("max_energy_range_uj", "9000000")):
            (folder / zone / file).write_text(f"{text}\n")
    return folder


def test_run_sh_reads_the_meters_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zones = powercap(tmp_path / "powercap")
    monkeypatch.setattr(energy, "POWERCAP", str(zones))
    tools = tmp_path / "bin"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 0, 120.0; echo up > $SMI_STARTED; exec sleep 600\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("SMI_STARTED", str(tmp_path / "smi-started"))
    site = Site(prices=Prices(meters=("rapl", "nvidia-smi")))
    folder = tmp_path / "run"
    folder.mkdir()
    # the program itself moves the counters: two joules of the package, one of the DRAM
    program = (
        f"while [ ! -s {tmp_path}/smi-started ]; do sleep 0.05; done; echo 3000000 > {zones}/intel-rapl:0/energy_uj; "
        f"echo 2000000 > {zones}/intel-rapl:0:1/energy_uj; echo 5000000 > {zones}/intel-rapl:1/energy_uj; exit 3"
    )
    executor = LocalExecutor(site)
    ticket = executor.submit(Job("job", folder, program, resources=Resources(), limit_s=600.0))
    while not (endings := executor.poll([ticket])):
        executor.wait(5.0)
    ending = endings[ticket]
    assert ending.exit_code == 3, "the meters leave the exit code as it is"
    assert ending.leftovers == (), "and end with the run"
    assert ending.usage["joules"] == pytest.approx(3.0 + 120.0 * ending.duration_s)
    beside = LocalExecutor(replace(site, jobs_at_once=2, cores_per_node=2))
    if beside.slots > 1:
        assert "2 jobs run at once" in beside.doubts(Resources())[0]


@pytest.mark.parametrize(
    ("smi", "joules"),
    [
        ("trap '' USR1 TERM; echo 0, 120.0; echo up > $SMI_STARTED; while :; do sleep 600; done", 120.0),
        ("echo 0, 50.0; exit 9", None),  # and nobody knows what the GPU drew after that
    ],
)
def test_a_meter_that_hangs_or_ends_is_no_fault_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smi: str, joules: float | None
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{smi}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SMI_STARTED", str(tmp_path / "smi-started"))
    (tmp_path / "run").mkdir()
    # the program ends once the meter hangs, or once the shell beside it has noted that the meter ended
    hangs = f"while [ ! -s {tmp_path}/smi-started ]; do sleep 0.05; done"
    ended = f"while ! grep -q ended {tmp_path}/tmp.*; do sleep 0.05; done 2>/dev/null"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    job = Job("job", tmp_path / "run", hangs if joules else ended, resources=Resources(), limit_s=60.0)
    executor = LocalExecutor(Site(prices=Prices(meters=("nvidia-smi",))))
    ticket = executor.submit(job)
    while not (endings := executor.poll([ticket])):
        executor.wait(5.0)
    assert endings[ticket].cause is Cause.EXITED, endings[ticket]
    expected = {} if joules is None else {"joules": pytest.approx(joules * endings[ticket].duration_s)}
    assert {name: value for name, value in endings[ticket].usage.items() if name == "joules"} == expected


NVML_STAND_IN = """
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = (void *)(size_t)(index + 1); return index > 1; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) { *gpu = (void *)2; return strcmp(uuid, "GPU-b"); }
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *count) {
  FILE *file = fopen(gpu == (void *)1 ? "COUNTS/0" : "COUNTS/1", "r");
  if (file == 0) return 3;
  int read = fscanf(file, "%llu", count);
  fclose(file);
  return read != 1;
}
"""


@pytest.mark.parametrize(("visible", "joules"), [("", 3.0 + 7.0), ("1", 7.0), ("GPU-b", 7.0), ("0,1", 10.0)])
def test_run_sh_asks_the_drivers_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, joules: float
) -> None:
    """A stand-in with the driver's own function names, since no test machine has an NVIDIA GPU."""
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(NVML_STAND_IN.replace("COUNTS", str(tmp_path)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    for gpu in "01":
        (tmp_path / gpu).write_text("1000")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    folder = tmp_path / "run"
    folder.mkdir()
    executor = LocalExecutor(Site(prices=Prices(meters=("nvml",))))
    program = f"echo 4000 > {tmp_path}/0; echo 8000 > {tmp_path}/1"
    ticket = executor.submit(Job("job", folder, program, resources=Resources(), limit_s=600.0))
    while not (endings := executor.poll([ticket])):
        executor.wait(5.0)
    assert endings[ticket].usage["joules"] == pytest.approx(joules)


def test_a_file_that_a_program_calls_energy_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", str(powercap(tmp_path / "powercap")))
    (tmp_path / "run").mkdir()
    executor = LocalExecutor(Site(prices=Prices(meters=("rapl",))))
    job = Job("job", tmp_path / "run", "echo E=-76.4 > energy", resources=Resources(), limit_s=60.0)
    ticket = executor.submit(job)
    while not (endings := executor.poll([ticket])):
        executor.wait(5.0)
    assert (tmp_path / "run" / "energy").read_text() == "E=-76.4\n"
    assert "joules" in endings[ticket].usage


def test_without_meters_the_script_is_as_before(tmp_path: Path) -> None:
    job = Job("job", tmp_path, "true")
    plain = LocalExecutor(Site()).script(job)
    assert LocalExecutor(Site(prices=Prices(node_hour=1.0, node_watts=300.0))).script(job) == plain
    metered = LocalExecutor(Site(prices=Prices(meters=("rapl",)))).script(job)
    assert subprocess.run(["sh", "-n"], input=metered, text=True, check=False).returncode == 0


def test_meters_take_no_part_of_the_runs_time(tmp_path: Path) -> None:
    script = LocalExecutor(Site(prices=Prices(meters=("nvml",)))).script(Job("job", tmp_path, "./program"))
    counters = 'python3 -c "$ridgeline_gpu_counters"'
    parts = [counters, "started=", "./program", "ended=", counters]
    places = [script.index(parts[0]), *(script.rindex(part) for part in parts[1:])]
    assert places == sorted(places)


def test_check_says_which_meter_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(energy, "NVML_LIBRARY", "libno-such-driver.so.1")
    every = ("rapl", "nvml", "nvidia-smi", "ipmi")
    assert tuple(text.split(":")[0] for text in meters_missing_here(every)) == every
    assert "node_watts" in LocalExecutor(Site(prices=Prices(meters=("rapl",)))).doubts(Resources())[0]
    powercap(tmp_path)
    assert meters_missing_here(("rapl",)) == []


def test_slurm_counts_the_longest_step_and_not_their_sum() -> None:
    dialect = Slurm()
    assert dialect.energy_command("12")[-3:] == ["12", "-o", "JobID,ConsumedEnergyRaw"]
    answer = JobReply(0, "12|9100\n12.batch|4500\n12.extern|4600\n12.0|\n", "")
    assert dialect.read_energy(answer) == 4600.0
    assert dialect.read_energy(JobReply(0, "12|0\n12.batch|0\n", "")) is None
    assert dialect.read_energy(JobReply(1, "", "accounting storage is disabled")) is None
