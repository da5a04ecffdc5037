"""GPUs, links and fabrics: known by any spelling, extended by a user's file, refused with a reason."""

import pytest

from ridgeline.errors import InputError
from ridgeline.serving.hardware.cluster import GIB, gpu_names, list_hardware, load_gpu, make_cluster
from ridgeline.serving.twin.calibration import read_calibration


@pytest.mark.parametrize("name", sorted(gpu_names()))
def test_shipped_gpus_are_complete(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.flops["bf16"] > gpu.flops["fp32"]
    assert 23 * GIB < gpu.memory_bytes < 300 * GIB
    assert gpu.source
    assert gpu.fabric in {fabric.name for fabric in list_hardware().fabrics}
    assert name in gpu_names()


def test_the_names_people_use_are_known() -> None:
    assert {"b300", "gb200", "gb300", "mi300x", "rtx-pro-6000"} <= set(gpu_names())
    assert load_gpu("gb200").domain == 72


def test_known_numbers() -> None:
    assert load_gpu("h100").flops_of("fp8") == pytest.approx(1.979e15, rel=0.001)
    assert load_gpu("h200").memory_bytes == 143_771 * 2**20
    assert load_gpu("h800").link.bytes_s < load_gpu("h100").link.bytes_s
    # no FP8 tensor cores: weights are unpacked and multiplied in 16 bits
    assert load_gpu("a100").flops_of("fp8") == load_gpu("a100").flops["bf16"]


def test_spelling_does_not_matter() -> None:
    assert load_gpu("H100-80GB") == load_gpu("h100") == load_gpu("NVIDIA_H100")


def test_rails_are_shared_by_the_gpus_of_a_node() -> None:
    fabric = make_cluster("h200", 2, 8, "ib-ndr").fabric
    assert fabric.bytes_s_per_gpu(8) == pytest.approx(50e9)
    assert make_cluster("h200", 2, 8, "roce-200").fabric.bytes_s_per_gpu(8) == pytest.approx(25e9 * 2 / 8)
    assert fabric.bytes_s_per_gpu(1) == pytest.approx(50e9)


def test_a_cluster_names_itself() -> None:
    cluster = make_cluster("h800", 13)
    assert str(cluster) == "13 x 8 H800"
    assert cluster.gpus == 104


def test_a_users_file_adds_and_replaces(tmp_path, monkeypatch) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "gpus:\n"
        "  h100-nvl: {generation: hopper, memory_mib: 95830, bandwidth_gb_s: 3938, tflops: {fp32: 60, bf16: 835},\n"
        "             link: bridge, fabric: eth-100}\n"
        "links:\n  bridge: {gb_s: 300, latency_us: 2}\n"
    )
    monkeypatch.setenv("RIDGELINE_HARDWARE", str(own))
    assert load_gpu("h100-nvl").memory_bytes == 95_830 * 2**20
    assert load_gpu("h100").memory_bytes == 81_559 * 2**20


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gpus: {x: {generation: hopper}}", "missing"),
        ("gpus: [", "YAML"),
        ("gpu: {}", "gpus, links, fabrics"),
        (
            "gpus: {x: {generation: h, memory_mib: -1, bandwidth_gb_s: 1, tflops: {}, link: pcie4, fabric: ib-ndr}}",
            "memory_mib",
        ),
    ],
)
def test_a_broken_file_is_refused(tmp_path, monkeypatch, text, word) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    monkeypatch.setenv("RIDGELINE_HARDWARE", str(own))
    with pytest.raises(InputError, match=word):
        load_gpu("x")


def test_a_missing_file_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RIDGELINE_HARDWARE", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        load_gpu("h100")


def test_unknown_names_and_empty_clusters_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean h100"):
        load_gpu("h10")
    with pytest.raises(InputError, match="fabric"):
        make_cluster("h100", 2, fabric="string and cans")
    with pytest.raises(InputError, match="no GPU"):
        make_cluster("h100", 0)


def test_a_number_with_an_exponent_is_a_number_in_files_of_ones_own(tmp_path, monkeypatch) -> None:
    # PyYAML wants a sign in an exponent; study files and people do not
    own = tmp_path / "ours.yaml"
    own.write_text(
        "gpus: {mine: {generation: hopper, sms: 100, memory_mib: 8e4, bandwidth_gb_s: 4.8e3, "
        "tflops: {bf16: 1e3, fp16: 1E3, fp32: 5e1}, link: nvlink4, fabric: ib-ndr}}\n"
    )
    monkeypatch.setenv("RIDGELINE_HARDWARE", str(own))
    gpu = load_gpu("mine")
    assert (gpu.bandwidth_bytes_s, gpu.memory_bytes) == (4.8e12, 8e4 * 2**20)
    calibration = tmp_path / "site.yaml"
    calibration.write_text("factors: {compute: 1.2e0, memory: 9e-1}\nspread: 1e-1\n")
    found = read_calibration(calibration)
    assert (found.factors.compute, found.factors.memory, found.spread) == (1.2, 0.9, 0.1)
