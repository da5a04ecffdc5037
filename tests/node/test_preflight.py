"""Looking at a node before GPU hours are spent on it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, ReadError
from ridgeline.serving.node import preflight
from ridgeline.serving.node.amd_smi import AmdGpu, from_amd_smi, from_rocm_smi, read_gpus
from ridgeline.serving.node.nvml import _rows_of
from ridgeline.serving.node.preflight import (
    KNOWN_BAD,
    Check,
    FileQuota,
    NodeReport,
    _hca_line,
    _HcaPort,
    _known_bad,
    _list_ports,
    _network_check,
    _read_quota,
    _version_checks,
    compare_nodes,
    node_from,
    read_nodes,
)
from ridgeline.serving.verbs.preflight import _comparison_text, _node_text


def test_only_active_infiniband_ports_are_exported(tmp_path: Path) -> None:
    for device, port, state, layer, rate in [
        ("mlx5_1", "1", "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)"),
        ("mlx5_10", "1", "4: ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)"),
        ("mlx5_10", "2", "1: DOWN", "InfiniBand", "10 Gb/sec (4X SDR)"),
    ]:
        folder = tmp_path / device / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(state + "\n")
        (folder / "link_layer").write_text(layer + "\n")
        (folder / "rate").write_text(rate + "\n")
    ports = _list_ports(tmp_path)
    assert ports == [
        _HcaPort("mlx5_1", 1, "InfiniBand", True, "400 Gb/sec (4X NDR)"),
        _HcaPort("mlx5_10", 1, "Ethernet", True, "100 Gb/sec (4X EDR)"),
        _HcaPort("mlx5_10", 2, "InfiniBand", False, "10 Gb/sec (4X SDR)"),
    ]
    # without the = NCCL would take mlx5_10, an Ethernet port, for the name mlx5_1
    assert _hca_line(ports) == "export NCCL_IB_HCA='=mlx5_1:1'"
    check = _network_check(ports)
    assert check.status == "warn" and "400 Gb/sec" in check.detail
    assert "mlx5_10:1 Ethernet, left out" in check.detail
    assert "mlx5_10:2 InfiniBand but not active" in check.detail
    assert _list_ports(tmp_path / "none") == []


@given(st.text(max_size=600))
def test_readers_take_any_text(text: str) -> None:
    assert all(quota.files >= 0 for quota in _read_quota(text))


def test_ethernet_only_has_no_line() -> None:
    ports = [_HcaPort("mlx5_0", 1, "Ethernet", True)]
    assert _hca_line(ports) is None
    assert "NCCL_SOCKET_IFNAME" in _network_check(ports).detail
    assert _network_check([]).status == "skip"


LFS = """\
Disk quotas for usr alice (uid 1001):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
       /scratch 1234567* 1000000 2000000    6d23h  150000  200000  202000       -
uid 1001 is using default block quota setting
"""
LONG = """\
Disk quotas for user bob (uid 1002):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nfs-server.example.org:/export/home
                 500       0       0       0    9000       0       0       0
/dev/sda1         10       0       0       0     700*    500     600       0
"""


def test_file_quotas() -> None:
    assert _read_quota(LFS) == [FileQuota("/scratch", 150000, 200000)]
    assert _read_quota(LFS)[0].left == 50000
    nfs, disk = _read_quota(LONG)
    assert nfs == FileQuota("nfs-server.example.org:/export/home", 9000, None)
    assert disk.left == 0
    assert _read_quota("") == []


def test_a_quota_that_runs_out_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "quotas", lambda folder: [FileQuota("/scratch", 195_000, 202_000)])
    check = preflight.file_check(tmp_path)
    assert check.status == "warn"
    assert "7,000 of 202,000 files left on /scratch; prune" in check.detail
    monkeypatch.setattr(preflight, "quotas", lambda folder: [FileQuota("/a", 0, 500_000), FileQuota("/b", 0, 400_000)])
    assert preflight.file_check(tmp_path) == Check("files", "ok", "400,000 of 400,000 files left on /b")
    monkeypatch.setattr(preflight, "quotas", lambda folder: [FileQuota("/home", 5, None)])
    assert preflight.file_check(tmp_path).status == "ok"


def test_lfs_is_asked_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "lfs"
    fake.write_text(f"#!/bin/sh\ncat <<'EOF'\n{LFS}EOF\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert preflight.quotas(tmp_path)[0].filesystem == "/scratch"


def test_busy_ports_are_named() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        check = preflight.port_check([port])
        assert check.status == "warn"
        assert str(port) in check.detail
    assert preflight.port_check([port]).status == "ok"


def test_scratch_must_be_there_and_writable(tmp_path: Path) -> None:
    assert preflight.scratch_check(tmp_path).status in ("ok", "warn")
    nowhere = preflight.scratch_check(tmp_path / "nowhere")
    assert nowhere.status == "fail" and "is not a folder on this node" in nowhere.detail


def test_a_scratch_or_shared_memory_with_little_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, status in ((preflight.SCRATCH_BYTES, "ok"), (preflight.SCRATCH_BYTES - 1, "warn")):
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert preflight.scratch_check(tmp_path).status == status
    for free, status in ((preflight.SHARED_MEMORY_BYTES, "ok"), (preflight.SHARED_MEMORY_BYTES - 1, "warn")):
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert preflight.shared_memory_check(tmp_path).status == status
    assert preflight.shared_memory_check(tmp_path / "none").status == "warn"


def test_locked_memory_matters_for_infiniband_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 << 20, 64 << 20))
    assert preflight.locked_memory_check(uses_infiniband=True).status == "fail"
    assert "limited to 64 MiB" in preflight.locked_memory_check(uses_infiniband=True).detail
    assert preflight.locked_memory_check(uses_infiniband=False).status == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert preflight.locked_memory_check(uses_infiniband=True).status == "ok"


def test_processors_without_bfloat16_are_told_how_to_start() -> None:
    assert "--dtype float32" in preflight.processor_check("flags : sse avx2 avx512f").detail
    assert "float32" not in preflight.processor_check("flags : avx512_bf16").detail
    assert "float32" not in preflight.processor_check("Features : fp asimd bf16").detail


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({"driver": "525.60.13", "cuda": "12.8"}, None),
        ({"driver": "470.82.01", "cuda": "12.8"}, "fail"),
        ({"driver": "570.124.06", "cuda": "13.0"}, "fail"),
        ({"driver": "580.65.06", "cuda": "13.0"}, None),
        ({"driver": "580.65.06", "sglang": "0.5.2", "cuda": "12.6"}, "warn"),
        ({"driver": "580.65.06", "sglang": "0.5.2", "cuda": "12.9"}, None),
        ({"nccl": "2.30.4"}, "warn"),
        ({"nccl": "2.30.3"}, None),
        ({"vllm": "0.8.0", "nccl": "2.21.5"}, "warn"),
        ({"vllm": "0.8.0"}, None),
        ({"driver": "unknown", "cuda": "12.8"}, None),
    ],
)
def test_known_bad_pairs(versions: dict[str, str], status: str | None) -> None:
    found = {row.status for row in _known_bad(versions)}
    assert found == ({status} if status else set())
    assert len(_version_checks(versions)) == 1 + len(found)


def test_every_known_bad_row_says_why_and_can_match() -> None:
    for row in KNOWN_BAD:
        assert len(row.reason) > 20
        inside = {name: ".".join(map(str, low or (1,))) for name, (low, _) in row.parts.items()}
        assert row in _known_bad(inside), row.reason


AMD = Path(__file__).parents[1] / "samples" / "amd-smi"


def amd_gpus(metric: str = "metric-mi300x") -> list[AmdGpu]:
    texts = [(AMD / f"{name}.json").read_text() for name in ("static-mi300x", metric, "process-mi300x")]
    return from_amd_smi(*texts)


def test_amd_smi_tells_what_nvml_does() -> None:
    first, second = amd_gpus()
    assert (first.name, first.driver) == ("AMD Instinct MI300X", "6.19.14")
    assert (first.total_bytes, first.used_bytes) == (196_592 * 2**20, 17_153 * 2**20)
    assert (first.util, first.power_w, first.temperature_c) == (0.94, 612, 71)
    assert (first.sm_mhz, first.memory_mhz, first.pcie) == (2105, 900, "16 x 32 GT/s")
    assert (first.uncorrectable, first.xgmi_uncorrectable, first.throttled) == (0, 0, ())
    assert (first.processes, second.processes) == (("llama-server 28389",), ())
    assert second.power_w is None, "N/A is no figure"


def test_rocm_smi_tells_what_it_can() -> None:
    (gpu,) = from_rocm_smi((AMD / "rocm-smi-mi350x.json").read_text())
    assert (gpu.name, gpu.driver, gpu.total_bytes) == ("0x75b0", "6.14.14", 308_902_100_992)
    assert (gpu.util, gpu.power_w, gpu.temperature_c, gpu.sm_mhz) == (0.99, 266, 60, 173)
    assert gpu.processes == ("sglang::schedul 710898",), "the other one holds no memory"
    assert gpu.uncorrectable is None
    assert "errors are not counted" in preflight.health_check([gpu]).detail


def test_a_warning_before_the_json_is_passed_over() -> None:
    text = (AMD / "metric-mi300x.json").read_text()
    assert len(from_amd_smi("", f"WARNING: user is not in the render group\n{text}")) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "No GPU", '{"gpu_data": [3]}', '[{"gpu": 0, "ecc": "N/A"}]'])
def test_what_amd_smi_prints_may_be_anything(text: str) -> None:
    for gpu in from_amd_smi(text, text, text):
        assert gpu.total_bytes is None
    assert from_rocm_smi(text) == []


def test_health_of_amd_gpus() -> None:
    healthy = preflight.health_check(amd_gpus())
    assert (healthy.status, "no errors" in healthy.detail, "612 W" in healthy.detail) == ("ok", True, True)
    assert preflight.memory_check(preflight.amd_states(amd_gpus())).detail.startswith("in use: gpu0 16.8 of 192 GiB")
    assert "by llama-server 28389" in preflight.memory_check(preflight.amd_states(amd_gpus())).detail
    throttled = preflight.health_check(amd_gpus("metric-radeon"))
    assert (throttled.status, "gpu0 throttled" in throttled.detail) == ("warn", True)
    first, second = amd_gpus()
    hot = preflight.health_check([first, replace(second, throttled=("socket thermal",), pcie="8 x 32 GT/s")])
    assert hot.status == "warn"
    assert "gpu1 throttled: socket thermal; gpu1 PCIe 8 x 32 GT/s, the others 16 x 32 GT/s" in hot.detail
    broken = preflight.health_check([first, replace(second, xgmi_uncorrectable=2)])
    assert broken.status == "fail"
    assert "gpu1 2 uncorrectable XGMI errors; take the node out" in broken.detail


def test_a_node_with_amd_gpus_runs_amds_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(OSError, match="neither amd-smi nor rocm-smi"):
        read_gpus()
    tool = tmp_path / "rocm-smi"
    tool.write_text(f"#!/bin/sh\ncat '{AMD}/rocm-smi-mi350x.json'\n")
    tool.chmod(0o755)
    assert [gpu.name for gpu in read_gpus()] == ["0x75b0"]
    tool = tmp_path / "amd-smi"
    tool.write_text(f"#!/bin/sh\ncat '{AMD}'/$1-mi300x.json\n")
    tool.chmod(0o755)
    monkeypatch.setattr(preflight, "AMD_DRIVER", tmp_path)
    report = preflight.check_node("/no/python", tmp_path)
    checks = {check.name: check for check in report.checks}
    assert checks["gpu memory"].status == "warn"
    assert checks["gpu health"].status == "ok"
    assert report.versions["driver"] == "6.19.14"


def test_gpu_memory_in_use_is_named() -> None:
    gpus = preflight.gpu_states(
        _rows_of("NVIDIA H200, 143771, 4, 570.124.06\nNVIDIA H200, 143771, 70000, 570.124.06\njunk\n", 4)
    )
    assert len(gpus) == 2
    assert preflight.memory_check(gpus[:1]).status == "ok"
    check = preflight.memory_check(gpus)
    assert check.status == "warn"
    assert "gpu1 68.4 of 140 GiB" in check.detail


def probed(matmul: list[float], **changes: Any) -> preflight.GpuProbe:
    gpus = [
        {"matmul_flops": [rate] * 5, "copy_bytes_s": [3e12] * 5, "from_host_bytes_s": [5e10] * 5} for rate in matmul
    ]
    return preflight.GpuProbe(gpus=gpus, **changes)


def test_rates_and_the_slow_gpu_of_a_node() -> None:
    one = preflight.rate_checks(probed([7e14]), "python3")
    assert [check.status for check in one] == ["ok", "ok", "ok", "skip"]
    assert "700 TFLOP/s" in one[0].detail
    pair = preflight.rate_checks(probed([7e14, 6.5e14, 6.7e14, 6.9e14]), "python3")
    assert (pair[0].status, pair[0].detail) == ("ok", "680 TFLOP/s bf16 each"), "the middle of the two in the middle"
    limit = preflight.rate_checks(probed([1e15, 1e15, 0.96e15, 0.94e15, 1e15]), "python3")
    assert limit[0].detail == "1,000 TFLOP/s bf16 each, but gpu3 940", "5% are allowed"
    eight = preflight.rate_checks(
        probed([7e14] * 7 + [5e14], all_reduce_bytes_s=[4e11] * 5, peer_access=True), "python3"
    )
    assert eight[0].status == "warn"
    assert "gpu7 500" in eight[0].detail
    assert (eight[3].status, "400 GB/s" in eight[3].detail) == ("ok", True)
    apart = preflight.rate_checks(probed([7e14] * 2, all_reduce_bytes_s=[2e10] * 5, peer_access=False), "python3")
    assert "no NVLink" in apart[3].detail
    broken = preflight.rate_checks(probed([7e14] * 2), "python3")
    assert broken[3].status == "fail"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "exit code 3"),
        ("echo rubbish", "failed under"),
        ("echo why >&2; echo CUDA is broken >&2; exit 1", "(exit code 1): CUDA is broken"),
        ('echo \'{"versions": {}, "gpus": [], "skipped": "torch sees no GPU"}\'', "torch sees no GPU"),
        ("echo '[]'", "failed under"),
    ],
)
def test_a_python_that_cannot_measure_is_skipped_with_the_reason(tmp_path: Path, script: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    result = preflight.probe_gpus(str(python))
    assert words in result.skipped
    assert preflight.rate_checks(result, str(python))[0].status == "skip"
    assert "no such program" in preflight.probe_gpus(str(tmp_path / "none")).skipped


def test_the_probe_runs_without_anything_of_ours(tmp_path: Path) -> None:
    """Under the engine's Python there is no ridgeline, and often no torch."""
    done = subprocess.run([sys.executable, "-I", str(preflight.PROBE)], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["gpus"] or "torch" in facts["skipped"]


def test_a_host_without_gpu_says_what_it_skips(tmp_path: Path) -> None:
    node = preflight.check_node(sys.executable, tmp_path, [0])
    skipped = {check.name for check in node.checks if check.status == "skip"}
    if isinstance(preflight.list_gpus(), str):
        assert {"gpu memory", "gpu rates"} <= skipped
    assert not [check for check in node.checks if not check.detail]
    assert node_from(json.loads(json.dumps(node.as_json()))) == node
    assert node.host in _node_text(node)


def node(name: str, matmul: float, noise: float = 0.004, driver: str = "570.1", status: Any = "ok") -> NodeReport:
    values = tuple(matmul * (1 + noise * (n % 3 - 1)) for n in range(5))
    check = Check("gpu matmul", status, "", "TFLOP/s", {"gpu0": values, "gpu1": values})
    return NodeReport(name, (check,), {"driver": driver})


def test_the_slow_node_is_named() -> None:
    result = compare_nodes([node("a", 700), node("b", 702), node("c", 590), node("d", 698)])
    assert [difference.node for difference in result.slow] == ["c"]
    assert "node c is 16% slower than its peers" in _comparison_text(result)
    assert result.as_json()["slow"][0]["speed"] == pytest.approx(0.84, abs=0.02)


def test_rates_are_compared_each_with_its_own_kind() -> None:
    def both(name: str, copy: float) -> NodeReport:
        more = Check("gpu copy", "ok", "", "GB/s", {"gpu0": tuple(copy * (1 + 0.002 * n) for n in range(6))})
        return NodeReport(name, (*node(name, 700).checks, more), {})

    result = compare_nodes([both("a", 3000), both("b", 3010), both("c", 2500), both("d", 2990)])
    assert [(difference.node, difference.rate) for difference in result.slow] == [("c", "gpu copy")]


@pytest.mark.parametrize(
    ("ports", "status", "says"),
    [
        ([("a", "Active", "400"), ("b", "Active", "400")], "ok", "2 InfiniBand ports active at 400"),
        ([("a", "Active", "400"), ("b", "Active", "")], "ok", "2 InfiniBand ports active at 400"),
        ([("a", "Active", "400"), ("b", "Active", "200")], "warn", "the slowest sets the pace"),
        ([("a", "Active", "400"), ("b", "Down", "400")], "warn", "b:1 InfiniBand but not active"),
    ],
)
def test_ports_that_are_down_or_of_another_speed_are_a_warning(ports: Any, status: str, says: str) -> None:
    check = _network_check([_HcaPort(name, 1, "InfiniBand", state == "Active", rate) for name, state, rate in ports])
    assert check.status == status
    assert says in check.detail


def test_small_and_noisy_differences_are_not_tickets() -> None:
    alike = compare_nodes([node("a", 700), node("b", 693), node("c", 705)])
    assert not alike.slow
    assert "no slow node" in _comparison_text(alike)
    noisy = compare_nodes([node("a", 700, noise=0.2), node("b", 640, noise=0.2)])
    assert not noisy.slow


def test_other_versions_and_failures_are_named_too() -> None:
    result = compare_nodes([node("a", 700), node("b", 700, driver="550.2"), node("c", 700, status="fail")])
    assert result.mixed == ("driver differs: 570.1 on a, c; 550.2 on b",)
    assert result.failed[0].startswith("c: gpu matmul")
    nothing = compare_nodes([NodeReport("a", ()), NodeReport("b", ())])
    assert "no rates to compare" in _comparison_text(nothing)


def test_files_to_compare(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(node(name, 700).as_json()))
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    assert [n.host for n in read_nodes(paths)] == ["a", "b"]
    with pytest.raises(InputError, match="two files or more"):
        read_nodes(paths[:1])
    with pytest.raises(InputError, match="more than one file"):
        read_nodes([paths[0], paths[0]])
    with pytest.raises(InputError, match="no such file"):
        read_nodes([*paths, tmp_path / "c.json"])
    (tmp_path / "bad.json").write_text('{"preflight": 1, "host": "x"}')
    with pytest.raises(ReadError, match=r"bad\.json"):
        read_nodes([paths[0], tmp_path / "bad.json"])
