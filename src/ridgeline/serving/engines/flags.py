"""One engine's knobs and flags: any spelling in, our names and values out, and back as the flags of a release.

canonical        what a study or a command line says        -> our names and values
arguments        our names and values                       -> the command line of a release
echo             our names and values                       -> what the log of a release repeats of them
from_arguments   a command line                             -> our names and values
from_echo        what a log repeats                         -> our names and values
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile

from ridgeline.records.expression import Value, is_number
from ridgeline.serving.engines.knobs import (
    KNOBS,
    ROWS,
    Domain,
    KnobRow,
    Scope,
    Spelling,
    engine_total,
    not_taken,
    one_of,
    rank_share,
)
from ridgeline.serving.engines.releases import (
    NEWEST,
    OWN_CHOICE,
    Flag,
    Version,
    read_flags,
    release_meant,
    release_text,
)

_USUAL = ("spread", "memory", "requests", "chunk")  # levers


class EngineFlags:
    """`flags` are those of all releases; a flag that has no row is written as it stands.

    `rows` are the table's, or those that somebody else's engine brings.
    """

    def __init__(self, engine: str, flags: Mapping[str, Flag], rows: Iterable[KnobRow] = ROWS.values()) -> None:
        self.engine, self.flags = engine, flags
        self._rows = tuple(knob for knob in rows if engine in knob.spelled)
        self._knobs = {knob.name: knob for knob in self._rows if knob.spelled[engine]}

    @cached_property
    def _called(self) -> dict[str, str]:
        """Any name of a knob -> ours."""
        return {name: knob.name for knob in reversed(self._knobs.values()) for name in knob.names(self.engine)}

    @cached_property
    def _combined(self) -> list[tuple[KnobRow, Spelling]]:
        """Spellings that take more than one field."""
        pairs = [(knob, spelling) for knob in self._knobs.values() for spelling in knob.spelled[self.engine]]
        return [(knob, spelling) for knob, spelling in pairs if spelling.fixed or spelling.along]

    def called(self, name: str) -> str:
        """Our name for whatever a study calls it; flags without a row keep their own."""
        return self._called.get(name, name)

    def knows(self, name: str) -> bool:
        """Whether any release has it."""
        return name in self._called or name in self.flags

    def names(self, release: Version) -> list[str]:
        """Every name that a study for this release may use."""
        knobs = [n for n in self._called if not self.missing(n, release)]
        return [*knobs, *(n for n, flag in self.flags.items() if flag.there(release) and n not in self._called)]

    def levers(self, lever: str) -> list[str]:
        """Every name of the knobs that a failure calls by this word."""
        return [name for knob in self._rows if knob.lever == lever for name in knob.names(self.engine)]

    def wrong_value(self, name: str, value: Value, release: Version) -> str:
        """Why no server of this release has this value; empty when one may. Of a release that is not known the newest
        is meant, and what any other takes is let pass."""
        version = None if release == NEWEST else release
        for said, meant in self.fields({name: value}, release).items():
            flag = self.flags.get(said)
            if flag is not None and not flag.takes_value(meant, version):
                taken = f"{one_of(flag.choices(version))} with {release_text(self.engine, release)}"
                return not_taken(name, value, taken)
        knob = self._knobs.get(self.called(name))
        return knob.wrong_value(name, value) if knob else ""

    def own_name(self, name: str, release: Version) -> str:
        """The flag of this engine for a name of ours or of another engine; empty where it has none."""
        knob = self._knobs.get(self.called(name))
        if knob is None and (other := KNOBS.get(name)) is not None and other.lever:
            knob = next((k for k in self._knobs.values() if k.lever == other.lever), None)
        spelling = None if knob is None else knob.spelling(self.engine, release)
        return spelling.flag if spelling else ""

    def usual_names(self, release: Version) -> list[str]:
        """The flags that most studies are about, as this engine calls them."""
        levers = dict.fromkeys(k.name for lever in _USUAL for k in self._knobs.values() if k.lever == lever)
        return [own for name in levers if (own := self.own_name(name, release))]

    def missing(self, name: str, release: Version) -> str:
        """Why a name that some release knows is none of this one; empty where it is."""
        knob = self._knobs.get(self.called(name))
        used: tuple[str, ...] = (name,)
        if knob is not None:
            spelling = knob.spelling(self.engine, release)
            if spelling is None:
                return f"has no {name} yet: it was added in {'.'.join(map(str, knob.spelled[self.engine][0].since))}"
            used = (spelling.flag,) if spelling.flag else tuple(n for said in spelling.fixed.values() for n in said)
        for flag in (self.flags[n] for n in used if n in self.flags and not self.flags[n].there(release)):
            if release_meant(release) < flag.since:
                return f"has no {name} yet: it was added in {'.'.join(map(str, flag.since))}"
            return f"no longer has {name}: it was removed in {'.'.join(map(str, flag.gone))}"
        return ""

    def canonical(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Each setting once, under our name, in the order given; what is left to the engine is left out."""
        left: dict[str, Value] = {self.called(n): v for n, v in given.items() if v is not None and v != OWN_CHOICE}
        for knob, spelling in self._combined:
            left = self._heard(knob, spelling, left)
        if left.get("attn_dp", 1) != 1 and left.get("dp") == left["attn_dp"]:
            del left["dp"]  # `--dp-size N --enable-dp-attention`, half translated: the same N said twice, no copies
        return {name: _typed(self._knobs.get(name), value) for name, value in left.items()}

    def _heard(self, knob: KnobRow, spelling: Spelling, left: dict[str, Value]) -> dict[str, Value]:
        """`left` with the fields of this spelling, where they are there, as the knob they stand for."""
        for value, fields in spelling.fixed.items():
            if all(left.get(name) == said for name, said in fields.items()):
                return _renamed(left, (*fields, knob.name), knob.name, value)
            if left.get(knob.name) == value:  # what else is said of these fields has nothing to add
                return {name: kept for name, kept in left.items() if name not in fields}
        flag = self.called(spelling.flag)
        if not spelling.along or flag not in left or not all(left.get(switch) is True for switch in spelling.along):
            return left
        if left.get(knob.name, 1) != 1:
            return {name: value for name, value in left.items() if name not in spelling.along}
        return _renamed(left, (flag, *spelling.along, knob.name), knob.name, left[flag])

    def fields(self, given: Mapping[str, Value], release: Version) -> dict[str, Value]:
        """As the parser of this release holds them."""
        found: dict[str, Value] = {}
        for name, value in self.canonical(given).items():
            knob = self._knobs.get(name)
            if knob is None:
                found[name] = value
            elif value != knob.omit_when or isinstance(value, bool):
                spelling = knob.spelling(self.engine, release)
                found |= spelling.flags_for(value) if spelling else {}
        return found

    def arguments(self, given: Mapping[str, Value], release: Version) -> list[str]:
        """The command line. A flag we do not know, because the engine is newer, is a switch if its value is one."""
        arguments: list[str] = []
        for name, value in self.fields(given, release).items():
            unknown = Flag(name, "switch" if isinstance(value, bool) else "value")
            arguments += self.flags.get(name, unknown).arguments(value)
        return arguments

    def echo(self, given: Mapping[str, Value], release: Version) -> dict[str, Value]:
        """What the log repeats: the fields, after what the engine itself makes of some under attention DP."""
        values = self.canonical(given)
        groups = _groups(values)
        shown = {name: _printed(self._knobs.get(name), value, groups) for name, value in values.items()}
        held = {s.flag: s.held for knob in self._knobs.values() for s in knob.spelled[self.engine] if s.held}
        return {held.get(name, name): value for name, value in self.fields(shown, release).items()}

    def from_arguments(self, arguments: Sequence[str]) -> dict[str, Value]:
        """The settings of a command line; what is no flag is passed over."""
        found: dict[str, Value] = {}
        for place, argument in enumerate(arguments):
            if not argument.startswith("--"):
                continue
            name, equals, text = argument[2:].partition("=")
            following = [text] if equals else list(takewhile(lambda w: not w.startswith("--"), arguments[place + 1 :]))
            name, off = name.replace("-", "_"), name.removeprefix("no-").replace("-", "_")
            if off != name and off in self.flags:
                found[off] = False
            elif not following:
                found[name] = True
            else:
                several = name in self.flags and self.flags[name].kind == "list"
                found[name] = " ".join(following) if several else _number(following[0])
        return self.canonical(found)

    def from_echo(self, fields: Mapping[str, object]) -> dict[str, Value]:
        """The settings of a log, in the whole engine's numbers."""
        lists = {n: " ".join(map(str, v)) for n, v in fields.items() if isinstance(v, list)}
        plain = {n: v for n, v in fields.items() if isinstance(v, bool | int | float | str)}
        values = self.canonical({**plain, **lists})
        groups = _groups(values)
        return {name: _printed(self._knobs.get(name), value, groups, back=True) for name, value in values.items()}


@lru_cache(maxsize=4)
def engine_flags(engine: str) -> EngineFlags:
    """Of an engine whose flags we have read."""
    return EngineFlags(engine, read_flags(engine))


def _renamed(left: dict[str, Value], gone: Sequence[str], name: str, value: Value) -> dict[str, Value]:
    """`left` with one setting in the place of the first of those that say it."""
    made: dict[str, Value] = {}
    for old, kept in left.items():
        if old not in gone:
            made[old] = kept
        elif name not in made:
            made[name] = value
    return made


def _typed(knob: KnobRow | None, value: Value) -> Value:
    """Whole numbers without a point, however a study or a step of a range wrote them."""
    whole = knob is not None and knob.takes in (Domain.WHOLE, Domain.COUNT, Domain.CHUNK)
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def _groups(values: Mapping[str, Value]) -> int:
    groups = values.get("attn_dp", 1)
    return groups if isinstance(groups, int) and groups > 1 else 1


def _printed(knob: KnobRow | None, value: Value, groups: int, *, back: bool = False) -> Value:
    """What the log repeats of an engine's value; `back`: the value of what it repeats."""
    if knob is None or groups == 1 or not is_number(value):
        return value
    if knob.attention_dp_factor != 1.0:
        return round(value / knob.attention_dp_factor, 9) if back else value * knob.attention_dp_factor
    if knob.scope is Scope.RANK or knob.printed is Scope.ENGINE or value <= 0:
        return value
    return engine_total(int(value), groups) if back else rank_share(int(value), groups)


def _number(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
