"""What each kind of journal line must hold, so that an edited one is named instead of failing somewhere later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Any], bool]
MOST_ALIKE = 256  # combinations of keys and types that are remembered of one shape
Kinds = frozenset[type]  # what a plain value may be; by type, not isinstance: true is no number here


def _is(*kinds: type) -> Kinds:
    return frozenset(kinds)


def _all(test: Test | Kinds) -> Test:
    if isinstance(test, frozenset):
        return lambda value: type(value) is list and test.issuperset(map(type, value))
    return lambda value: type(value) is list and all(map(test, value))


def _map(kinds: Kinds) -> Test:
    return lambda value: type(value) is dict and kinds.issuperset(map(type, value.values()))


def _row(*tests: Test | Kinds) -> Test:
    return lambda value: type(value) is list and len(value) == len(tests) and all(map(_passes, tests, value))


def _passes(test: Test | Kinds, value: Any) -> bool:
    return type(value) in test if isinstance(test, frozenset) else test(value)


def _shape(needed: Mapping[str, Test | Kinds], optional: Mapping[str, Test | Kinds] | None = None) -> Test:
    known = {**needed, **(optional or {})}
    plain = {name: kinds for name, kinds in known.items() if isinstance(kinds, frozenset)}
    tests = {name: test for name, test in known.items() if not isinstance(test, frozenset)}
    names = needed.keys()
    # lines of a journal are alike: of those with the same keys and types only what lies deeper is looked at again
    deeper: dict[tuple[Any, ...], list[tuple[str, Test]]] = {}

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        kinds = (*value, *map(type, value.values()))
        if (rest := deeper.get(kinds)) is None:
            if not names <= value.keys() or any(type(value[key]) not in plain[key] for key in plain.keys() & value):
                return False
            rest = [(key, test) for key, test in tests.items() if key in value]
            if len(deeper) < MOST_ALIKE:
                deeper[kinds] = rest
        # every line of a long journal comes through here, and a generator would take twice as long
        for key, test in rest:  # noqa: SIM110
            if not test(value[key]):
                return False
        return True

    return fits


def _event(needed: Mapping[str, Test | Kinds], optional: Mapping[str, Test | Kinds] | None = None) -> Test:
    return _shape({"at": _number, **needed}, optional)


def _measurement(row: Any) -> bool:
    # written out: a long journal holds a hundred thousand of these
    return (
        type(row) is list
        and len(row) == 5
        and type(row[0]) is type(row[2]) is type(row[3]) is type(row[4]) is str
        and type(row[1]) in (float, int)
    )


def _machine(row: Any) -> bool:
    if type(row) is not list or len(row) != 3 or not type(row[0]) is type(row[1]) is str or type(row[2]) is not list:
        return False
    return _text.issuperset(map(type, row[2]))


def _setting(point: Any) -> bool:
    return type(point) is dict and _SETTING_TYPES.issuperset(map(type, point.values()))


_SETTING_TYPES = frozenset({str, int, float, bool, type(None)})
_text, _whole, _number, _object = _is(str), _is(int), _is(int, float), _is(dict)
_outcome = _shape(
    {"kind": _text},
    {
        "reason": _text,
        "evidence": _row(_text, _whole, _text),
        "advice": _all(_row(_text, _whole, _text)),
        "at_start": _is(bool),
        "was": _text,
    },
)
_ending = _shape(
    {"cause": _text, "started": _number, "ended": _number},
    {
        "exit_code": _whole,
        "signal": _whole,
        "reason": _text,
        "nodes": _all(_text),
        "leftovers": _all(_text),
        "usage": _map(_number),
        "elapsed": _number,
        "held": _number,
        "charged": _number,
        "machines": _all(_machine),
    },
)
_predicted = _shape({"value": _number, "low": _number, "high": _number, "spread": _number, "in_logs": _is(bool)})
_maybe_number = _is(int, float, type(None))
_comparison = _shape(
    {"candidate": _text, "verdict": _text, "scale": _text, "level": _number, "blocks": _whole},
    {"estimate": _maybe_number, "low": _maybe_number, "high": _maybe_number},
)
_SHAPES: dict[str, Test] = {
    "opened": _event(
        {}, {"kind": _text, "question": _object, "overrides": _object, "asked": _map(_text), "receipt": _object}
    ),
    "trial": _event(
        {"trial": _whole, "stage": _text, "proposer": _text, "point": _setting, "settings": _setting},
        {"why": _text, "block": _whole, "predicted": _predicted},
    ),
    "run": _event(
        {"run": _whole, "trial": _whole, "attempt": _whole, "folder": _text, "resources": _map(_whole)},
        {"on_nodes": _all(_text)},
    ),
    "submitted": _event({"run": _whole, "ticket": _text}),
    "stopping": _event({"run": _whole, "than": _whole, "ratio": _number, "why": _text}),
    "ended": _event(
        {"run": _whole, "ending": _ending, "outcome": _outcome},
        {"measurements": _all(_measurement), "texts": _map(_text)},
    ),
    "build": _event(
        {"key": _text, "outcome": _outcome, "files": _whole, "seconds": _number, "settings": _setting},
        {"missing": _setting, "ticket": _text, "node_s": _number, "estimated_s": _number},
    ),
    "charged": _event({"ticket": _text, "seconds": _number}),
    "confirm": _event(
        {"candidates": _all(_setting), "blocks": _whole},
        {"search_ended": _text, "first_block": _whole, "protocol": _whole, "seed": _whole},
    ),
    "set-aside": _event({"block": _whole, "trials": _all(_whole), "reason": _text}),
    "verdict": _event(
        {
            "verdict": _shape(
                {"kind": _text, "headline": _text},
                {
                    "winner": lambda value: value is None or _setting(value),
                    "comparisons": _all(_comparison),
                    "disqualified": _map(_text),
                    "paste": _text,
                    "machines": _all(_text),
                },
            )
        }
    ),
    "extended": _event({"trials": _whole, "blocks": _whole}, {"wall_s": _number, "node_hours": _number}),
    "instruction": _event(
        {"id": _text, "act": _text, "told": _text, "refused": _is(bool)},
        {"run": _whole, "point": _setting, "search_limit": _whole, "wall_s": _number, "node_hours": _number},
    ),
    "stopped": _event({"reason": _text}),
}


def require_shape(event: Mapping[str, Any]) -> None:
    """ValueError when an event of a known kind lacks something or holds something of another type."""
    kind = event.get("event")
    shape = _SHAPES.get(kind) if type(kind) is str else None
    if shape is not None and shape(event):
        return
    if type(event.get("at")) not in _number:
        raise ValueError("`at` is not a time")
    if shape is not None:
        raise ValueError(f"not a whole `{kind}` event")
