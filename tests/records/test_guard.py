"""Guards: what the sentence says is what is held; a guard that cannot be shown fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.expression import ExpressionError
from ridgeline.records.guard import Closeness, Condition, TextGuard, parse_guard

numbers = st.floats(-1e6, 1e6)
tolerances = st.floats(0, 10)


def text_of(files):
    return lambda name: files.get(name, "")


@given(numbers, numbers, tolerances, tolerances)
def test_closeness_is_symmetric_around_the_reference_and_monotone_in_its_limits(reference, gap, absolute, relative):
    guard = Closeness("e", absolute, relative, None)
    above = guard.failure({"e": reference + abs(gap)}, {"e": reference}, text_of({}))
    wider = Closeness("e", absolute * 2 + 1, relative * 2, None)
    if above is None:
        assert wider.failure({"e": reference + abs(gap)}, {"e": reference}, text_of({})) is None
    assert guard.failure({"e": reference}, {"e": reference}, text_of({})) is None
    assert guard.failure({}, {"e": reference}, text_of({})) is not None
    assert guard.failure({"e": reference}, {}, text_of({})) is not None


@given(st.floats(0, 1e3), st.floats(0, 100), st.none() | st.integers(-1000, 1000))
def test_a_closeness_sentence_reads_back_as_itself(absolute, percent, reference):
    sentence = f"energy within {absolute!r} + {percent!r}% of {'baseline' if reference is None else reference}"
    if "e+" in sentence:
        return
    guard = parse_guard(sentence)
    assert isinstance(guard, Closeness)
    assert guard.abs_tol == pytest.approx(absolute)
    assert guard.rel_tol == pytest.approx(percent / 100)
    assert guard.reference == reference


@given(st.text(max_size=80) | st.text("ab \"'/.%+-0e<>=()withinofcontainslacks", max_size=60))
def test_any_sentence_is_a_guard_or_an_error(text):
    try:
        guard = parse_guard(text)
        guard.failure({}, {}, text_of({}))
    except ExpressionError:
        pass


def test_text_guards_look_into_the_named_file():
    wanted = parse_guard('stdout contains "energy +converged"')
    unwanted = parse_guard("log/out.txt lacks /[Nn]a[Nn]/")
    assert isinstance(wanted, TextGuard)
    assert wanted.failure({}, {}, text_of({"stdout": "x\nenergy  converged"})) is None
    assert "no" in (wanted.failure({}, {}, text_of({})) or "")
    assert unwanted.failure({}, {}, text_of({})) is None
    assert "NaN" in (unwanted.failure({}, {}, text_of({"log/out.txt": "E = NaN"})) or "")


def test_text_values_are_close_only_when_equal():
    guard = parse_guard("checksum within 1e-9 of baseline")
    assert guard.failure({"checksum": "ab12"}, {"checksum": "ab12"}, text_of({})) is None
    assert "ab13" in (guard.failure({"checksum": "ab13"}, {"checksum": "ab12"}, text_of({})) or "")


def test_an_expression_guard_shows_the_values_it_saw():
    guard = parse_guard("error < 1e-6")
    assert isinstance(guard, Condition)
    assert guard.failure({"error": 1e-7}, {}, text_of({})) is None
    assert "error = 0.1" in (guard.failure({"error": 0.1}, {}, text_of({})) or "")
    assert "not measured" in (guard.failure({}, {}, text_of({})) or "")


@pytest.mark.parametrize("sentence", ["a within x of baseline", "a within 1 of b", 'stdout contains "("', "x" * 1001])
def test_wrong_sentences_are_refused(sentence):
    with pytest.raises(ExpressionError):
        parse_guard(sentence)
