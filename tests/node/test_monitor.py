"""Watching GPUs and host while a run lasts."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ReadError
from ridgeline.serving.node import monitor as monitoring
from ridgeline.serving.node.monitor import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    Monitor,
    Sample,
    _cpu_share,
    _cpu_ticks,
    _line_of,
    _memory_used_bytes,
    _summary,
    read_samples,
)
from ridgeline.serving.node.nvml import GpuSample, Nvml, _rows_of, _visible, mebibytes


class TwoGpus:
    """A driver that counts: 100 W and 200 W, and joules that fit."""

    count = 2

    def __init__(self, counters: bool = True) -> None:
        self.closed = False
        self._counters = counters
        self._start_s = time.time()

    def read(self) -> tuple[GpuSample, ...]:
        passed = time.time() - self._start_s
        joules = [5000 + 100 * passed, 9000 + 200 * passed] if self._counters else [None, None]
        return (
            GpuSample(0.5, 2e9, 1900.0, 2600.0, 100.0, joules[0], 60.0),
            GpuSample(1.0, 3e9, 1500.0, 2600.0, 200.0, joules[1], 80.0),
        )

    def close(self) -> None:
        self.closed = True


def test_a_host_without_gpu_is_watched_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> TwoGpus:
        raise OSError("none is there")

    monkeypatch.setattr(monitoring, "Nvml", none)
    watching = Monitor(tmp_path / "run", interval_s=0.05)
    watching.start()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        math.sqrt(2.0)
    figures = watching.stop()
    assert 0 < figures["host_cpu_share"] <= 1
    assert figures["host_memory_peak_bytes"] > 1e7
    assert not [name for name in figures if name.startswith(("gpu", "power", "energy"))], "nothing is made up"
    assert watching.stop() == figures
    assert (tmp_path / "run" / "samples.csv").read_text().startswith("time_s,host_cpu_share,host_memory_bytes\n")


@pytest.mark.parametrize("counters", [True, False])
def test_gpus_give_use_memory_clocks_and_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: bool
) -> None:
    driver = TwoGpus(counters)
    monkeypatch.setattr(monitoring, "Nvml", lambda: driver)
    watching = Monitor(tmp_path, interval_s=0.05)
    watching.start()
    time.sleep(0.4)
    figures = watching.stop()
    assert driver.closed
    assert figures["gpu_util_mean"] == pytest.approx(0.75)
    assert figures["gpu_memory_peak_bytes"] == 3e9
    assert figures["gpu_sm_lowest_mhz"] == 1500
    assert figures["gpu_temperature_peak_c"] == 80
    assert figures["power_mean_w"] == pytest.approx(300)
    assert figures["energy_j"] == pytest.approx(
        300 * figures["monitored_s"], rel=0.5
    )  # the stand-in reads its own clock


def test_a_driver_that_goes_away_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(TwoGpus):
        def read(self) -> tuple[GpuSample, ...]:
            raise OSError("GPU is lost")

    monkeypatch.setattr(monitoring, "Nvml", Gone)
    watching = Monitor(tmp_path, interval_s=0.01)
    watching.start()
    time.sleep(0.1)
    assert watching.stop() == {}


def test_stop_ends_a_sleeping_monitor_at_once(tmp_path: Path) -> None:
    watching = Monitor(tmp_path, interval_s=60.0)
    watching.start()
    start = time.monotonic()
    assert "host_memory_peak_bytes" in watching.stop(), "one sample at the end, however short the run"
    assert time.monotonic() - start < 50


def test_a_monitor_that_never_started_has_nothing_to_say(tmp_path: Path) -> None:
    assert Monitor(tmp_path).stop() == {}


def test_power_without_a_counter_gives_energy_over_time() -> None:
    samples = [Sample(float(t), 0.1 * t, 1e9, (GpuSample(power_w=100.0 if t < 5 else 400.0),)) for t in range(10)]
    assert _summary(samples[5:])["power_mean_w"] == 400
    assert _summary(samples[5:])["energy_j"] == pytest.approx(1600)
    assert _summary(samples[:5])["energy_j"] == pytest.approx(400)
    assert _summary([]) == {}


numbers = st.one_of(st.none(), st.floats(0, 1e12).map(lambda value: round(value, 3)))
gpu_samples = st.builds(GpuSample, *([numbers] * len(GPU_COLUMNS)))


@given(st.integers(0, 3).flatmap(lambda n: st.lists(st.tuples(*([gpu_samples] * n)), max_size=5)))
def test_what_is_written_is_read_back(rows: list[tuple[GpuSample, ...]]) -> None:
    samples = [Sample(1000.0 + n, 0.5, None, gpus) for n, gpus in enumerate(rows)]
    count = len(rows[0]) if rows else 0
    header = [*HOST_COLUMNS, *(f"gpu{n}_{name}" for n in range(count) for name in GPU_COLUMNS)]
    text = ",".join(header) + "\n" + "".join(map(_line_of, samples))
    assert read_samples(io.StringIO(text)) == samples
    figures = _summary(samples)
    assert all(math.isfinite(value) for value in figures.values())


def test_a_row_cut_short_by_a_kill_is_left_out() -> None:
    whole = "time_s,host_cpu_share,host_memory_bytes\n1.0,0.5,100\n2.0,0.5,100\n"
    assert len(read_samples(io.StringIO(whole + "3.0,0."))) == 2
    assert len(read_samples(io.StringIO(whole + "x,0.5,1\n"))) == 2
    assert read_samples(io.StringIO("time_s,host_cpu_share,host_memory_bytes\n")) == []
    with pytest.raises(ReadError, match=r"not a samples\.csv"):
        read_samples(io.StringIO("hello\n"))
    with pytest.raises(ReadError):
        read_samples(io.StringIO(""))


def test_proc_files() -> None:
    assert _cpu_ticks("cpu  10 0 20 60 10 0 0 0 99 99\ncpu0 1 2 3\n") == (30, 100)
    assert _cpu_share((30, 100), (50, 140)) == 0.5
    assert _cpu_share((30, 100), (30, 100)) is None
    assert _memory_used_bytes("MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable: 40 kB\n") == 60 * 1024


def test_visible_gpus_follow_cuda() -> None:
    names = ["GPU-aaa1", "GPU-bbb2", "GPU-ccc3"]
    assert _visible(None, names) == [0, 1, 2]
    assert _visible("2,0", names) == [2, 0]
    assert _visible("GPU-bbb", names) == [1]
    assert _visible("", names) == []
    assert _visible("0,9,1", names) == [0]


def test_a_lost_gpu_is_no_row_of_nvidia_smi() -> None:
    (row,) = _rows_of("Unable to determine a handle: GPU is lost\n97, 71234, 1980, 2619, 412.55, 61\n", 6)
    assert row == ["97", "71234", "1980", "2619", "412.55", "61"]
    assert mebibytes("71234") == 71234 * 2**20 and mebibytes("[N/A]") is None


# the calls of NVIDIA's library that we use, with its own types: two GPUs, the second without an energy counter
LIBRARY = r"""
#include <stdio.h>
typedef struct { long index; } device;
static device devices[2] = {{0}, {1}};
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInitWithFlags(unsigned flags) { return flags; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **d) { *d = &devices[i]; return 0; }
int nvmlDeviceGetUUID(device *d, char *text, unsigned n) { snprintf(text, n, "GPU-%ld", d->index); return 0; }
int nvmlDeviceGetUtilizationRates(device *d, use_t *u) { u->gpu = 50 + 10 * d->index; u->memory = 1; return 0; }
int nvmlDeviceGetMemoryInfo(device *d, memory_t *m) {
  m->total = 150ull << 30; m->used = (70ull + d->index) << 30; m->free = m->total - m->used; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *j) {
  *j = 5000000000123ull; return d->index * 3; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *w) { *w = 412550; return 0; }
int nvmlDeviceGetClockInfo(device *d, int kind, unsigned *mhz) {
  *mhz = kind == 1 ? 1980 : kind == 2 ? 2619 : 0; return 0; }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *c) { *c = 61; return sensor; }
"""
ASK = """
import json
from dataclasses import asdict
from ridgeline.serving.node.nvml import Nvml
driver = Nvml()
print(json.dumps([asdict(sample) for sample in driver.read()]))
driver.close()
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_driver_library_is_called_by_its_own_types(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(LIBRARY)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"], cwd=tmp_path, check=True, capture_output=True
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    env.pop("CUDA_VISIBLE_DEVICES", None)

    def read(**more: str) -> list[dict[str, float | None]]:
        done = subprocess.run([sys.executable, "-c", ASK], env={**env, **more}, capture_output=True, check=True)
        found: list[dict[str, float | None]] = json.loads(done.stdout)
        return found

    first, second = read()
    assert first == {
        "util": 0.5, "memory_bytes": 70 * 2**30, "sm_mhz": 1980.0, "memory_mhz": 2619.0, "power_w": 412.55,
        "energy_j": 5000000000.123, "temperature_c": 61.0,
    }  # fmt: skip
    assert second["energy_j"] is None, "what a GPU does not support is left open"
    assert read(CUDA_VISIBLE_DEVICES="1") == [second]


def test_here_there_is_a_driver_or_a_reason() -> None:
    try:
        source = Nvml()
    except OSError as error:
        assert "libnvidia-ml.so.1" in str(error) or "driver" in str(error)
    else:
        assert len(source.read()) == source.count > 0
        source.close()
