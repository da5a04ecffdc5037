"""Reprs are read, never run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.engines.python_repr import read_arguments, read_call, read_pairs

names = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(names, values, max_size=6))
def test_what_python_wrote_is_read_back(arguments: dict[str, object]) -> None:
    text = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
    assert read_call(f"ServerArgs({text}) and more") == (arguments, True)
    assert read_arguments(text) == arguments
    assert read_pairs(f"args: {arguments!r}") == arguments


@given(st.dictionaries(names, values, min_size=1, max_size=6), st.data())
def test_a_cut_repr_never_gives_a_wrong_value(arguments: dict[str, object], data: st.DataObject) -> None:
    text = "Args(" + ", ".join(f"{k}={v!r}" for k, v in arguments.items()) + ")"
    cut = data.draw(st.integers(0, len(text) - 1))
    found, complete = read_call(text[:cut])
    assert not complete
    assert all(arguments[k] == v for k, v in found.items())


def test_objects_become_text_or_dicts() -> None:
    text = (
        "A(mode=<Mode.NULL: 'null'>, dtype=torch.bfloat16, path=PosixPath('/x'), c=Cfg(bs=[1, 2], on=True), t=(1, 2))"
    )
    assert read_call(text)[0] == {
        "mode": "<Mode.NULL: 'null'>",
        "dtype": "torch.bfloat16",
        "path": ["/x"],
        "c": {"bs": [1, 2], "on": True},
        "t": [1, 2],
    }


def test_nothing_is_evaluated() -> None:
    assert read_call("A(x=__import__('os').system('false'), y=1)")[0].get("y") in (None, 1)
    assert read_call("A(" + "x=(" * 5000)[0] == {}
