"""A public row is joined with the recipe that its sweep ran that day, for its load and the shape of each role."""

from collections.abc import Callable

import pytest

from benchmarks.twin import recipes
from benchmarks.twin.recipes import Recipe, launched, recipes_of
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.layout import Layout, parse_layout
from ridgeline.serving.engines.settings import EngineSettings, parse_engine
from ridgeline.serving.hardware.cluster import make_cluster
from ridgeline.serving.model.config import load_model

WORDS = {
    "day": "2026-02-07", "gpu": "h200", "precision": "fp8", "input_tokens": "1024", "output_tokens": "1024",
    "drafting": "none", "concurrencies": "4/32", "prefill_engines": "1", "prefill_tp": "8", "prefill_ep": "1",
    "prefill_attn_dp": "0", "prefill_chunk": "16384", "prefill_running": "64", "prefill_fraction": "0.8",
    "prefill_dealing": "", "decode_engines": "3", "decode_tp": "8", "decode_ep": "8", "decode_attn_dp": "1",
    "decode_running": "512", "decode_graph": "256", "decode_fraction": "0.85", "draft_tokens": "1",
    "draft_overlap": "0", "kv_dtype": "fp8", "backend": "fa3", "stream_interval": "30",
}  # fmt: skip
ROW = {
    "measured": "2026-02-07", "precision": "fp8", "input_tokens": "1024", "output_tokens": "1024",
    "concurrency": "32.0", "prefill_tp_size": "8", "prefill_attention_dp_size": "1", "prefill_moe_ep_size": "1.0",
    "prefill_num_workers": "", "decode_tp_size": "8", "decode_attention_dp_size": "1", "decode_num_workers": "",
}  # fmt: skip

NAMES = ("deepseek-r1", "qwen3.5-397b-a17b", "glm-5", "minimax-m2.5", "kimi-k2.5", "gpt-oss-120b")

Sheet = Callable[..., None]


@pytest.fixture
def sheet(monkeypatch: pytest.MonkeyPatch) -> Sheet:
    """Puts lines in place of the sheet's: each is what differs from `WORDS`."""

    def put(*lines: dict[str, str]) -> None:
        monkeypatch.setattr(recipes, "_recipes", lambda: tuple(Recipe(WORDS | line) for line in lines))

    return put


def joined(name: str, row: dict[str, str] | None = None, label: dict[str, str] | None = None) -> list[str]:
    """A word of every recipe that fits, the assumed one first."""
    return [recipe.words[name] for recipe in recipes_of(ROW | (row or {}), "h200", label or {})]


def test_a_row_takes_the_recipe_of_its_day_and_another_days_only_where_its_own_has_none(sheet: Sheet) -> None:
    sheet({}, {"day": "2026-03-18", "prefill_chunk": "65536"})
    assert joined("prefill_chunk") == ["16384"]
    assert joined("prefill_chunk", {"measured": "2026-03-18"}) == ["65536"]
    assert joined("prefill_chunk", {"measured": "2026-03-25"}) == ["16384", "65536"]


@pytest.mark.parametrize(
    "other",
    [
        {"concurrency": "64"},
        {"precision": "fp4"},
        {"input_tokens": "8192"},
        {"prefill_tp_size": "4"},
        {"prefill_moe_ep_size": "8"},
        {"decode_tp_size": "16"},
    ],
)
def test_another_load_length_or_shape_of_a_role_is_another_recipe(sheet: Sheet, other: dict[str, str]) -> None:
    sheet({})
    assert joined("day")
    assert not joined("day", other)


def test_attention_groups_count_as_ranks_of_their_role(sheet: Sheet) -> None:
    sheet({})
    assert joined("day", {"decode_tp_size": "1", "decode_attention_dp_size": "8"})
    assert not joined("day", {"decode_tp_size": "8", "decode_attention_dp_size": "8"})


def test_engines_that_a_row_states_must_be_the_recipes(sheet: Sheet) -> None:
    sheet({}, {"decode_engines": "6"})
    assert joined("decode_engines") == ["3", "6"]
    assert joined("decode_engines", {"prefill_num_workers": "1", "decode_num_workers": "6.0"}) == ["6"]
    assert joined("decode_engines", {"prefill_num_workers": "2", "decode_num_workers": "6"}) == []


def test_nobody_is_taken_to_draft_who_does_not_say_so(sheet: Sheet) -> None:
    sheet({"drafting": "mtp"}, {})
    assert joined("drafting") == ["none", "mtp"]
    assert joined("drafting", label={"spec_method": "mtp"}) == ["mtp"]


@pytest.mark.parametrize(("prefill", "decode", "fits"), [("8", "8", True), ("1", "1", True), ("32", "32", True),
                                                         ("4", "8", False)])  # fmt: skip
def test_a_sheet_without_shapes_is_joined_by_ranks_by_ones_or_by_all_gpus(
    sheet: Sheet, prefill: str, decode: str, fits: bool
) -> None:
    sheet({"day": "2025-12-21", "prefill_ep": "8"})
    row = {"measured": "2025-12-05", "prefill_tp_size": prefill, "decode_tp_size": decode}
    assert bool(joined("day", row)) == fits
    assert not joined("day", row | {"measured": "2026-02-09"})


def test_each_role_is_told_its_own() -> None:
    model = load_model("deepseek-r1")
    layout = parse_layout("P1D1", model)
    plain = Deployment(model, make_cluster("h200", 2, 8), layout, EngineSettings())
    told = Recipe(WORDS | {"prefill_dealing": "round_robin", "decode_running": ""}).told(plain)
    prefill, decode = told.role_settings("prefill"), told.role_settings("decode")
    assert (prefill.chunked_prefill_size, prefill.max_running_requests, prefill.mem_fraction) == (16384, 64, 0.8)
    assert (prefill.dealt_in_turn, decode.dealt_in_turn) == (True, False)
    assert (decode.cuda_graph_max_bs, decode.mem_fraction, decode.max_running_requests) == (256, 0.85, None)
    assert (prefill.stream_interval, decode.attention_backend, told.model.kv_dtype) == (30, "fa3", "fp8")


def test_every_line_of_the_sheet_can_be_told_and_has_a_whole_shape() -> None:
    recipes._recipes.cache_clear()
    for recipe in recipes._recipes():
        shape = recipe.shape()
        for role in ("prefill", "decode"):
            ranks = int(shape[f"{role}_tp_size"]) * int(shape[f"{role}_attention_dp_size"])
            assert ranks == recipe.number(f"{role}_tp")
            assert ranks % int(shape[f"{role}_moe_ep_size"]) == 0


def started(model: str, gpu: str, engine: str, dtype: str, day: str, users: int = 64) -> Deployment | None:
    """A server of eight GPUs as the script of a day started it, for prompts of 8,192 tokens."""
    base = parse_engine(engine, EngineSettings(radix_cache=False))
    plain = Deployment(load_model(model).with_dtype(dtype), make_cluster(gpu, 1, 8), Layout(8, gpus_per_node=8), base)
    return launched(plain, base, day, users, 8192)


def test_one_engine_is_started_as_the_script_of_its_day_says() -> None:
    before, since = (started("minimax-m2.5", "b200", "vllm:0.19.0", "fp8", day) for day in ("2026-04-02", "2026-04-03"))
    assert before
    assert since
    assert (before.model.kv_dtype, before.settings.chunked_prefill_size) == ("bf16", None)
    assert (since.model.kv_dtype, since.settings.chunked_prefill_size) == ("fp8", 16384)
    assert before.settings.mem_fraction
    assert since.settings.mem_fraction is None  # vLLM's own, which the script states
    assert not before.settings.radix_cache


def test_new_requests_are_looked_for_as_often_as_the_script_says() -> None:
    looks = {users: started("deepseek-r1", "b200", "sglang:0.5.9", "fp4", "", users) for users in (8, 64)}
    assert [found.settings.recv_interval for found in looks.values() if found] == [10, 30]
    glm = started("glm-5", "b200", "sglang:0.5.9", "fp8", "2026-03-25")
    assert glm
    assert (glm.settings.recv_interval, glm.settings.max_running_requests) == (1, 64)
    assert started("llama-70b", "h100", "sglang:0.5.9", "fp8", "2026-03-25") is None


def test_every_line_of_the_scripts_can_be_read() -> None:
    recipes._launches.cache_clear()
    days: dict[tuple[str, ...], str] = {}
    for words in recipes._launches():
        engine = "sglang" if "mem-fraction-static" in words["flags"] else "vllm"
        model = next(name for name in NAMES if name.startswith(words["model"]))
        assert started(model, words["gpu"], engine, words["weights"], words["since"]), words["script"]
        key = words["model"], words["gpu"], words["weights"]
        assert days.get(key, "") < words["since"]
        days[key] = words["since"]
