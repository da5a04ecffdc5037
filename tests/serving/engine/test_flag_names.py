"""What the planner and the twin print is understood by the release they print it for."""

from __future__ import annotations

import pytest

from ridgeline.serving.engine.flag_names import flag_names
from ridgeline.workloads.engine.flags import read_table

RELEASES = [(0, 4, n) for n in range(8, 11)] + [(0, 5, n) for n in range(1, 24)]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: ".".join(map(str, release)))
def test_every_name_is_a_flag_of_the_release(release: tuple[int, ...]) -> None:
    table = read_table("sglang")
    for setting, words in flag_names(release).items():
        for flag in (word for word in words.split() if word.startswith("--")):
            assert table[flag[2:].replace("-", "_")].there(release), f"{setting}: {flag} is no flag of {release}"


@pytest.mark.parametrize(
    ("setting", "release", "words"),
    [
        # as server_args.py of the release's wheel has it; each pair stands on both sides of a boundary
        ("attention_dp", (0, 5, 21), "--enable-dp-attention --dp-size"),
        ("attention_dp", (0, 5, 22), "--attn-dp-size"),
        ("graph_max_bs", (0, 5, 13), "--cuda-graph-max-bs"),
        ("graph_max_bs", (0, 5, 14), "--cuda-graph-max-bs-decode"),
        ("no_graph", (0, 5, 13), "--disable-cuda-graph"),
        ("no_graph", (0, 5, 14), "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"),
        ("a2a", (0, 4, 10), "--enable-deepep-moe"),
        ("a2a", (0, 5, 1), "--moe-a2a-backend deepep"),
        ("ep", (0, 4, 10), "--enable-ep-moe --ep-size"),
        ("ep", (0, 5, 1), "--ep-size"),
    ],
)
def test_the_release_at_which_a_name_changed(setting: str, release: tuple[int, ...], words: str) -> None:
    assert flag_names(release)[setting] == words


def test_the_line_stands_for_its_newest_release() -> None:
    assert flag_names((0, 5)) == flag_names((0, 5, 23))
