"""The one table of knobs: what a study says, an engine is told, prints and is understood to have said is the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.records.expression import Value
from ridgeline.serving.engines.base import engine_named
from ridgeline.serving.engines.flags import EngineFlags, engine_flags
from ridgeline.serving.engines.knobs import (
    KNOBS,
    ROWS,
    Domain,
    KnobRow,
    Part,
    Spelling,
    engine_total,
    rank_share,
    wrong_value,
)
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.releases import NEWEST, Flag, read_flags, release_text, title_of
from ridgeline.serving.engines.settings import BACKENDS, EngineSettings, layout_of, settings_of, values_of
from ridgeline.serving.engines.sglang.log import read_sglang_log
from tests.engines.server_args import RELEASES, applied, log_line

SGLANG, VLLM = engine_flags("sglang"), engine_flags("vllm")
VLLM_RELEASES = sorted({f.since for f in read_flags("vllm").values() if f.since} | {engine_named("vllm").latest})
VALUES: dict[Domain, st.SearchStrategy[Value]] = {
    Domain.WHOLE: st.integers(1, 10_000),
    Domain.COUNT: st.integers(0, 10_000),
    Domain.CHUNK: st.one_of(st.just(-1), st.integers(1, 200).map(lambda n: 64 * n)),
    Domain.SHARE: st.integers(1, 999).map(lambda n: n / 1000),
    Domain.NUMBER: st.integers(0, 400).map(lambda n: n / 100),
    Domain.SWITCH: st.booleans(),
    Domain.TEXT: st.sampled_from(["fp8", "auto", "bf16"]),
}
SIZES = ("tp", "pp", "dp", "ep", "attn_dp")
# values of knobs that do not take all of their kind
OWN_VALUES: dict[str, list[Value]] = {
    "moe_a2a_backend": ["none", "deepep"],
    "cuda_graph_bs": ["1 2 4"],
    "page_size": [1, 16, 64],
    "speculative_algorithm": ["EAGLE", "NGRAM"],
    "speculative_num_steps": [1, 3, 5],
    "speculative_eagle_topk": [1, 4],
    "speculative_num_draft_tokens": [4, 8],
}


@st.composite
def asked(draw: st.DrawFn, engine: str, release: tuple[int, ...]) -> dict[str, Value]:
    """Settings that an engine of this release can be told, under any of a knob's names."""
    tp = draw(st.sampled_from([1, 2, 4, 8, 16]))
    values: dict[str, Value] = {_name(draw, ROWS["tp"], engine): tp}
    halves = ("enable_ep_moe", "enable_deepep_moe", "enable_dp_attention")  # of another knob
    flags = engine_flags(engine)
    known = [k for k in ROWS.values() if k.spelling(engine, release) and not flags.missing(k.name, release)]
    there = [k for k in known if k.name not in ("tp", *halves)]
    modelled = [k for k in there if k.part is not Part.NOWHERE]
    chosen = draw(st.lists(st.sampled_from(modelled), max_size=12)) + draw(st.lists(st.sampled_from(there), max_size=6))
    for knob in {k.name: k for k in chosen}.values():
        values[_name(draw, knob, engine)] = _value(draw, knob, tp, _choices(knob, engine, release))
    if "attn_dp" in {KNOBS[n].name for n in values}:
        values = {n: v for n, v in values.items() if KNOBS[n].name != "dp"}  # no release takes both
    return values


def _name(draw: st.DrawFn, knob: KnobRow, engine: str) -> str:
    return draw(st.sampled_from(knob.names(engine)))


def _choices(knob: KnobRow, engine: str, release: tuple[int, ...]) -> tuple[str, ...]:
    spelling = knob.spelling(engine, release)
    flag = read_flags(engine).get(spelling.flag) if spelling else None
    return flag.choices(release) if flag else ()


def _value(draw: st.DrawFn, knob: KnobRow, tp: int, choices: tuple[str, ...]) -> Value:
    if draw(st.integers(0, 9)) == 0:
        return "default"
    if knob.name in SIZES:
        smaller = [n for n in (1, 2, 4, 8, 16) if n <= tp]
        return tp if knob.name == "ep" else draw(st.sampled_from(smaller))
    if knob.name in OWN_VALUES:
        return draw(st.sampled_from(OWN_VALUES[knob.name]))
    return draw(st.sampled_from(choices) if choices else VALUES[knob.takes])


def meaning(values: dict[str, Value], names: set[str]) -> tuple[object, ...]:
    """All that settings come to: what is modelled, and the rest as it stands."""
    # a switch of SGLang that is not thrown is no word of its command line
    said = {n: v for n, v in values.items() if n in names and (n, v) != ("disable_overlap_schedule", False)}
    rest = {n: str(v) for n, v in said.items() if n not in ROWS or not ROWS[n].field or ROWS[n].part is Part.MODEL}
    off = {n for n, row in ROWS.items() if row.takes is Domain.SWITCH}  # switches that are not thrown
    rest = {n: v for n, v in rest.items() if not (n in off and v == "False") and (n, v) != ("moe_a2a_backend", "none")}
    return layout_of(said, 1, None), settings_of(said), rest


@settings(derandomize=True, max_examples=30)
@given(st.data())
@pytest.mark.parametrize("release", RELEASES, ids=lambda r: ".".join(map(str, r)))
def test_settings_come_back_from_the_log_of_the_engine_they_were_written_for(
    release: tuple[int, ...], data: st.DataObject
) -> None:
    given_values = data.draw(asked("sglang", release))
    wanted = SGLANG.canonical(given_values)
    arguments = SGLANG.arguments(given_values, release)
    assert _meant(SGLANG.from_arguments(arguments), wanted)
    printed = read_sglang_log([log_line(arguments, release)]).server_args
    assert _meant(SGLANG.from_echo(printed), wanted)
    for name, value in SGLANG.echo(given_values, release).items():
        if name not in ("ep_size", "cuda_graph_bs", "cuda_graph_bs_decode"):
            assert applied(arguments, release).get(name, False) == pytest.approx(value), f"{name} is printed otherwise"


def _meant(read: dict[str, Value], wanted: dict[str, Value]) -> bool:
    assert meaning(read, {*wanted}) == meaning(wanted, {*wanted})
    return True


@settings(derandomize=True, max_examples=30)
@given(st.data())
@pytest.mark.parametrize("release", VLLM_RELEASES, ids=lambda r: ".".join(map(str, r)))
def test_settings_come_back_from_vllms_arguments(release: tuple[int, ...], data: st.DataObject) -> None:
    given_values = data.draw(asked("vllm", release))
    wanted = VLLM.canonical(given_values)
    echoed = VLLM.echo(given_values, release)
    assert _meant(VLLM.from_echo(echoed), wanted)
    assert _meant(VLLM.from_arguments(VLLM.arguments(given_values, release)), wanted)


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: ".".join(map(str, r)))
def test_every_knob_is_written_in_flags_its_release_has(release: tuple[int, ...]) -> None:
    samples: dict[Domain, list[Value]] = {
        Domain.SWITCH: [True], Domain.SHARE: [0.8], Domain.NUMBER: [0.5],
        Domain.COUNT: [0, 64], Domain.TEXT: ["deepep"],
    }  # fmt: skip
    flags = read_flags("sglang")
    for knob in ROWS.values():
        if knob.spelling("sglang", release) is None or SGLANG.missing(knob.name, release):
            continue
        for value in samples.get(knob.takes, [8]):
            said = [w for w in SGLANG.arguments({knob.name: value}, release) if w.startswith("--")]
            assert said, f"{knob.name} is said by no flag"
            for word in said:
                assert flags[word[2:].replace("-", "_")].there(release), f"{knob.name}: {word} is no flag of {release}"


def test_every_name_has_one_knob() -> None:
    for engine in (SGLANG, VLLM):
        for knob in ROWS.values():
            for name in knob.names(engine.engine) if knob.spelled.get(engine.engine) else ():
                assert engine.called(name) == knob.name
    fields = {*Layout.__dataclass_fields__, *EngineSettings.__dataclass_fields__, "dtype", "kv_dtype"}
    assert all(knob.field in fields for knob in ROWS.values() if knob.field)
    assert not [name for name, knob in ROWS.items() if knob.part is Part.NOWHERE and knob.field]
    assert not [backend for backend in BACKENDS if wrong_value("attention_backend", backend)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"tp_size": 8}, {"tp": 8}),
        ({"disable_cuda_graph": True}, {"cuda_graph_max_bs": 0}),
        ({"disable_cuda_graph": True, "cuda_graph_max_bs": 256}, {"cuda_graph_max_bs": 0}),
        ({"cuda_graph_max_bs_decode": 256}, {"cuda_graph_max_bs": 256}),
        ({"dp_size": 8, "enable_dp_attention": True}, {"attn_dp": 8}),
        ({"dp": 8, "enable_dp_attention": True}, {"attn_dp": 8}),
        ({"dp": 8, "attn_dp": 8}, {"attn_dp": 8}),
        ({"dp_size": 1, "attn_dp_size": 8, "enable_dp_attention": True}, {"dp": 1, "attn_dp": 8}),
        ({"enable_ep_moe": True, "ep_size": 8}, {"ep": 8}),
        ({"enable_deepep_moe": True}, {"moe_a2a_backend": "deepep"}),
        ({"cuda_graph_backend_prefill": "disabled"}, {"disable_prefill_cuda_graph": True}),
        ({"page_size": "default", "mem_fraction_static": None}, {}),
        ({"max_running_requests": 512.0}, {"max_running_requests": 512}),
        ({"schedule_policy": "lpm"}, {"schedule_policy": "lpm"}),
    ],
)
def test_other_ways_to_say_the_same(written: dict[str, Value], meant: dict[str, Value]) -> None:
    assert SGLANG.canonical(written) == meant


def test_no_graphs_are_no_graphs_for_prefill_either() -> None:
    assert settings_of({"cuda_graph_max_bs": 0}) == EngineSettings(cuda_graph_max_bs=0, prefill_graph=False)
    assert settings_of({"disable_radix_cache": True}).radix_cache is False
    assert settings_of({"chunked_prefill_size": -1, "max_prefill_tokens": 4096}).chunked_prefill_size == 4096
    assert settings_of({"attention_backend": "wave"}).attention_backend is None
    assert settings_of({}) == EngineSettings()


def test_experts_go_to_all_ranks_with_an_all_to_all_back_end() -> None:
    assert layout_of({"tp": 16, "moe_a2a_backend": "deepep"}, 2, 8).ep == 16
    assert layout_of({"tp": 16}, 2, 8).ep == 1


def test_one_server_has_copies_or_attention_dp() -> None:
    with pytest.raises(InputError, match="either copies or attention DP"):
        layout_of({"tp": 8, "dp": 2, "attn_dp": 8}, 2, 8)


@pytest.mark.parametrize("name", [n for n, knob in ROWS.items() if knob.takes is not Domain.TEXT])
def test_a_value_that_is_none_is_named_with_what_would_do(name: str) -> None:
    said = wrong_value(name, "nonsense")
    assert name in said and "takes" in said
    assert not wrong_value(name, "default")
    assert not wrong_value(name, None)


@pytest.mark.parametrize("value", [0, 1, 1.0, 1.5, -0.1, True, "0.5"])
def test_a_share_lies_between_nothing_and_all(value: object) -> None:
    assert "takes" in wrong_value("mem_fraction_static", value)
    assert not wrong_value("mem_fraction_static", 0.999)


@pytest.mark.parametrize(
    ("release", "there"),
    [((0, 5, 2), False), ((0, 5, 3), True), ((0, 5, 9), True), ((0, 5, 10), False), ((0, 5), False), ((0, 4), False)],
)
def test_a_flag_is_there_from_its_first_release_to_the_one_without_it(release: tuple[int, ...], there: bool) -> None:
    """A line of releases stands for its newest one."""
    assert Flag("x", "value", (0, 5, 3), (0, 5, 10)).there(release) is there
    assert Flag("x", "value", (0, 5, 3)).there(release) is (release >= (0, 5, 3) or release == (0, 5))


def test_a_knob_of_another_release_is_told_apart_from_one_that_went() -> None:
    flags = {"new": Flag("new", "value", (0, 5, 3)), "old": Flag("old", "value", (), (0, 5, 10))}
    engine = EngineFlags("other", flags)
    assert engine.missing("new", (0, 5, 2)) == "has no new yet: it was added in 0.5.3"
    assert engine.missing("old", (0, 5, 12)) == "no longer has old: it was removed in 0.5.10"
    assert engine.missing("new", (0, 5, 3)) == engine.missing("old", (0, 5, 9)) == ""
    assert engine.names((0, 5, 2)) == ["old"] and engine.names((0, 5, 10)) == ["new"]


def test_the_spelling_is_that_of_the_release() -> None:
    knob = KnobRow("width", {"other": (Spelling("w"), Spelling("wide", since=(0, 5, 3)))}, Domain.WHOLE, "8")
    said = [knob.spelling("other", release) for release in ((0, 5, 2), (0, 5, 3), (0, 5))]
    assert [spelling and spelling.flag for spelling in said] == ["w", "wide", "wide"]
    later = KnobRow("width", {"other": (Spelling("wide", since=(0, 5, 3)),)}, Domain.WHOLE, "8")
    assert later.spelling("other", (0, 5, 2)) is None


def test_a_rank_gets_the_whole_part_of_its_share() -> None:
    assert [rank_share(total, 4) for total in (1, 4, 7, 8, 100)] == [1, 1, 1, 2, 25]
    assert engine_total(25, 4) == 100


def test_a_log_repeats_a_rank_s_share_of_some_numbers_and_the_engine_s_of_others() -> None:
    """Under attention DP SGLang divides its chunk before it prints it, and never the number of requests."""
    said: dict[str, Value] = {"tp": 8, "attn_dp": 8, "chunked_prefill_size": 8192, "max_running_requests": 256}
    printed = SGLANG.echo({**said, "schedule_conservativeness": 1.0}, (0, 5, 3))
    assert (printed["chunked_prefill_size"], printed["max_running_requests"]) == (1024, 256)
    assert printed["schedule_conservativeness"] == pytest.approx(0.3)
    assert SGLANG.from_echo(printed)["chunked_prefill_size"] == 8192
    alone = SGLANG.echo({"tp": 8, "chunked_prefill_size": 8192, "schedule_conservativeness": 1.0}, (0, 5, 3))
    assert (alone["chunked_prefill_size"], alone["schedule_conservativeness"]) == (8192, 1.0)
    assert SGLANG.echo({**said, "chunked_prefill_size": -1}, (0, 5, 3))["chunked_prefill_size"] == -1, "none"


def test_a_field_that_is_not_called_as_its_flag_is_still_checked_in_the_log() -> None:
    """--fp8-gemm-backend fills fp8_gemm_runner_backend, and that is what ServerArgs prints."""
    said: dict[str, Value] = {"fp8_gemm_runner_backend": "triton"}
    assert SGLANG.arguments(said, (0, 5, 23)) == ["--fp8-gemm-backend", "triton"]
    assert SGLANG.echo(said, (0, 5, 23)) == {"fp8_gemm_runner_backend": "triton"}
    assert SGLANG.from_echo({"fp8_gemm_runner_backend": "triton"}) == {"fp8_gemm_backend": "triton"}


@settings(derandomize=True)
@given(st.integers(1, 10_000), st.integers(1, 512))
def test_a_rank_has_its_share_of_the_engines_number(total: int, groups: int) -> None:
    assert rank_share(engine_total(total, groups), groups) == total
    assert rank_share(total, groups) >= 1
    assert engine_total(rank_share(total, groups), groups) <= max(total, groups)


@settings(derandomize=True)
@given(
    st.sampled_from([Layout(tp=8), Layout(tp=16, pp=1, attn_dp=16, ep=16, nodes=2), Layout(tp=4, pp=2)]),
    st.builds(
        EngineSettings,
        attention_backend=st.sampled_from([None, *BACKENDS]),
        max_running_requests=st.one_of(st.none(), st.integers(1, 4096)),
        cuda_graph_max_bs=st.one_of(st.none(), st.integers(1, 512)),
        chunked_prefill_size=st.one_of(st.none(), st.integers(1, 16384)),
        mem_fraction=st.one_of(st.none(), st.floats(0.1, 0.95)),
        page_size=st.sampled_from([1, 16, 64]),
        radix_cache=st.booleans(),
    ),
)
def test_what_is_modelled_can_be_told_and_read_back(layout: Layout, chosen: EngineSettings) -> None:
    values = values_of(layout, chosen)
    again = SGLANG.from_arguments(SGLANG.arguments(values, NEWEST))
    assert settings_of(again) == chosen
    assert layout_of(again, layout.nodes, layout.gpus_per_node) == layout


@pytest.mark.parametrize(
    ("engine", "release", "name", "value", "words"),
    [
        ("sglang", (0, 5, 23), "schedule_policy", "hrrn", ""),
        ("sglang", (0, 5, 12), "schedule_policy", "hrrn", "lpm"),
        ("sglang", NEWEST, "schedule_policy", "lmp", "lpm"),
        ("sglang", NEWEST, "attention_backend", "cutlass_mla", ""),  # some release had it
        ("sglang", (0, 5, 23), "attention_backend", "cutlass_mla", "flashmla"),
        ("sglang", (0, 5, 23), "load_format", "dumy", "dummy"),  # a flag without a row
        ("sglang", (0, 5, 23), "schedule_policy", "default", ""),
        ("vllm", (0, 33, 0), "moe_backend", "Deep-Gemm", ""),  # its parser lowers it
        ("vllm", (0, 33, 0), "moe_backend", "deepgem", "deep_gemm"),
        ("vllm", (0, 33, 0), "schedule_policy", "lpm", "fcfs, priority"),  # our name, vLLM's values
        ("vllm", (0, 33, 0), "enable_dbo", "yes", "true or false"),
    ],
)
def test_a_value_outside_a_closed_set_is_named_with_the_set_of_the_release(
    engine: str, release: tuple[int, ...], name: str, value: Value, words: str
) -> None:
    said = engine_flags(engine).wrong_value(name, value, release)
    assert words in said and bool(said) == bool(words)


def test_flags_without_a_row_are_written_as_they_stand() -> None:
    for name, flag in read_flags("sglang").items():
        if name not in KNOBS and flag.there((0, 5, 23)):
            value: Value = True if flag.kind == "switch" else 3
            assert SGLANG.arguments({name: value}, (0, 5, 23))[0] == "--" + name.replace("_", "-")


def test_an_engine_of_somebody_else_has_its_own_flags_only() -> None:
    other = EngineFlags("other", {"width": Flag("width", "value")})
    assert other.arguments({"width": 4, "fast": True}, NEWEST) == ["--width", "4", "--fast"]
    assert other.knows("width") and not other.knows("tp")
    assert other.levers("memory") == []


@pytest.mark.parametrize(
    ("version", "said"), [((0, 5), "SGLang 0.5.23"), ((0, 4, 10), "SGLang 0.4.10"), (NEWEST, "SGLang 0.5.23")]
)
def test_the_release_is_said(version: tuple[int, ...], said: str) -> None:
    assert release_text("sglang", version) == said


def test_the_table_holds_plain_values() -> None:
    json.dumps([[k.name, k.aliases, k.default, k.unit, k.scope.value] for k in ROWS.values()])


def test_the_title_of_our_own_engines_needs_no_look_at_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """That look takes milliseconds, and a simulation asks for titles by the hundred."""

    def refuse(**names: str) -> None:
        raise AssertionError(f"looked for {names}")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert [title_of(engine) for engine in ("sglang", "vllm")] == ["SGLang", "vLLM"]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **names: ())
    assert title_of("someone-elses") == "someone-elses"
