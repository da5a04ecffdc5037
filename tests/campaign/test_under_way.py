"""What a run may write into its folder, and what is left of what it wrote beyond that."""

from __future__ import annotations

import os
from pathlib import Path

from ridgeline.campaign.under_way import cut_file, too_much_disk
from ridgeline.records.study import JobLimits


def filled(file: Path, size: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))
    os.sync()  # some file systems tell what a file takes only then
    return file


def test_a_folder_is_measured_with_all_its_files_and_without_what_links_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    filled(folder / "a", 1 << 20)
    filled(folder / "deep" / "b", 2 << 20)
    (folder / "model").symlink_to(filled(tmp_path / "weights", 8 << 20))
    with (folder / "sparse").open("wb") as hollow:
        hollow.truncate(1 << 40)
    assert too_much_disk(folder, 4 << 20) == ("", None)
    said, largest = too_much_disk(folder, 2 << 20)
    assert largest == folder / "deep" / "b"
    assert said.startswith("its folder took more than 2.097152 MB of disk, 2 of it 'b'")
    assert too_much_disk(tmp_path / "none", 1) == ("", None)


def test_only_a_file_of_the_run_itself_is_cut(tmp_path: Path) -> None:
    own = filled(tmp_path / "run" / "own", 3000)
    shared = filled(tmp_path / "input", 3000)
    (tmp_path / "run" / "hard").hardlink_to(shared)
    (tmp_path / "run" / "soft").symlink_to(own)
    for name in ("hard", "soft", "gone"):
        cut_file(tmp_path / "run" / name, 1000)
    assert (own.stat().st_size, shared.stat().st_size) == (3000, 3000)
    cut_file(own, 5000)
    assert own.stat().st_size == 3000
    cut_file(own, 1000)
    assert own.stat().st_size == 1000


def test_without_a_word_a_run_may_take_100_gib() -> None:
    assert JobLimits().disk_bytes == 100 * 2**30
