"""Which names of a study are flags of its engine, which are environment, and what is wrong with the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from ridgeline.errors import Problem, Where, near, nearest
from ridgeline.records.expression import Value
from ridgeline.records.measurement import metrics_of
from ridgeline.records.space import Continuous, Discrete, Settings
from ridgeline.records.study import Study
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.install import Install, flags_of
from ridgeline.serving.engines.releases import Version
from ridgeline.serving.workloads.engine.options import ENGINE_KNOB, EngineOptions
from ridgeline.workloads.study_names import field_problems, metric_problems, names_read

MOST_VALUES = 1000  # of a knob, beyond which only its first and last are looked at
NO_MORE_THAN_SENT = ("goodput", "requests_s", "total_tok_s", "output_tok_s", "input_tok_s")
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class KnobNames:
    """Knobs are the engine's flags in snake_case, environment variables in capitals, and `engine` itself."""

    def __init__(self, study: Study, options: EngineOptions, dialect: ServingEngine) -> None:
        self._study, self._options, self._dialect = study, options, dialect

    def values(self, settings: Settings) -> dict[str, Value]:
        """All settings that are flags, under our names: constants, overruled by knobs and derived values."""
        names, called, knows = set(self._flag_names), self._dialect.flags.called, self._dialect.flags.knows
        knobs = {called(n): v for n, v in settings.items() if (n in names or knows(n)) and v is not None}
        fixed = {called(name): value for name, value in self._options.flags.items()}
        return self._dialect.flags.canonical({**fixed, **knobs})

    def problems(self, *, serves: bool) -> Iterator[Problem]:
        yield from self.knob_problems(self._dialect.release_of(self._own_install))
        yield from field_problems(self._study, self.templates())
        yield from self.metric_problems("serve" if serves else "offline")

    @property
    def _own_install(self) -> Install:
        """The study's engine at its baseline, without the knob `engine`."""
        return self._options.install({n: v for n, v in self._study.baseline.items() if n != ENGINE_KNOB})

    def templates(self) -> Iterator[tuple[Where, str]]:
        yield ("workload", "engine"), self._options.engine
        yield ("workload", "version"), self._options.version
        for name, text in self._options.env.items():
            yield ("workload", "env", name), text

    def knob_problems(self, release: Version) -> Iterator[Problem]:
        """Names that are no knobs of this release, and values that a knob cannot have."""
        yield from self._unknown_names(release)
        yield from self._wrong_values()

    @cached_property
    def _flag_names(self) -> tuple[str, ...]:
        """Names of the study that are flags of this engine in any of its releases."""
        knows = self._dialect.flags.knows
        unknown = [n for n in self._used_names() if not knows(n)]
        found = self._installed(tuple(unknown)) if unknown else {}
        return tuple(n for n in self._used_names() if knows(n) or n in found)

    @property
    def asked_flags(self) -> tuple[str, ...]:
        """Flags of the study that our table does not have: only the engine itself knows them."""
        return tuple(name for name in self._flag_names if not self._dialect.flags.knows(name))

    def _used_names(self) -> list[str]:
        names = [*self._study.space.names, *self._options.flags]
        return [n for n in dict.fromkeys(names) if n != ENGINE_KNOB and not ENV_NAME.fullmatch(n)]

    def _installed(self, wanted: tuple[str, ...]) -> Mapping[str, str]:
        """Flags of the installed engine, asked only when the table does not know a name that must be a flag."""
        derived = set(self._study.space.derived)
        if all(name in derived or name in self._read_elsewhere() for name in wanted):
            return {}
        install = self._own_install
        return {} if install.container else flags_of(install, self._dialect.introspect())

    def _read_elsewhere(self) -> set[str]:
        """Knobs that need not be flags, because something else of the study reads them."""
        return names_read(self._study, (text for _, text in self.templates()))

    def _unknown_names(self, release: Version) -> Iterator[Problem]:
        flags, elsewhere, known_flags = self._dialect.flags, self._read_elsewhere(), set(self._flag_names)
        for where, name in self._places():
            if name == ENGINE_KNOB or (ENV_NAME.fullmatch(name) and where[0] == "space"):
                continue
            if name in elsewhere - known_flags:
                continue
            if name not in known_flags:
                yield Problem(where, f"no such knob for {self._whose}; {self._meant(name, release)}")
            elif not (self._options.engines or self._options.engine_fields) and (gap := flags.missing(name, release)):
                yield Problem(where, f"{self._dialect.name} {'.'.join(map(str, release))} {gap}")

    def rate_remarks(self) -> list[str]:
        """That nothing can serve more than it is sent, where the goal asks for as much as can be."""
        metric, rate_s = self._study.goal.metric, self._options.load.rate_s
        if rate_s is None or metric not in NO_MORE_THAN_SENT:
            return []
        return [
            f"at {rate_s:g} requests/s no setting has a {metric} beyond what is sent: those that keep up look alike; "
            "raise `rate` beyond what the best one serves, or load by `concurrency`"
        ]

    @property
    def _whose(self) -> str:
        kind, title = self._study.workload.kind, self._dialect.title or self._dialect.name
        return kind if kind.startswith(self._dialect.name) else f"{kind}, which simulates {title}"

    def _meant(self, name: str, release: Version) -> str:
        """The engine's own name for what another one calls so; else the nearest name, or the usual ones."""
        flags = self._dialect.flags
        if own := flags.own_name(name, release):
            return f"{self._dialect.title or self._dialect.name} calls it {own}"
        known = [*flags.names(release), ENGINE_KNOB]
        if meant := nearest(name, known):
            return f"did you mean {meant if meant in flags.flags else flags.own_name(meant, release) or meant}?"
        # hundreds of flags help nobody: where none is close, the usual ones are shown
        return near(name, flags.usual_names(release))

    def _places(self) -> Iterator[tuple[Where, str]]:
        for knob in self._study.space.knobs:
            yield ("space", knob.name), knob.name
        for name in self._options.flags:
            yield ("workload", "flags", name), name

    def _wrong_values(self) -> Iterator[Problem]:
        flags, wrong_value = set(self._flag_names), self._dialect.flags.wrong_value
        for knob in self._study.space.knobs:
            values = (knob.low, knob.high) if isinstance(knob, Continuous) else knob.values
            if isinstance(knob, Discrete) and len(values) > MOST_VALUES:
                values = (values[0], values[-1])
            if knob.name in flags and (wrong := next((w for v in values if (w := wrong_value(knob.name, v))), "")):
                yield Problem(("space", knob.name), wrong)
        for name, value in self._options.flags.items():
            if wrong := wrong_value(name, value):
                yield Problem(("workload", "flags", name), wrong)

    def metric_problems(self, maker: str) -> Iterator[Problem]:
        """Goals and guards that name what `maker` does not measure."""
        yield from metric_problems(self._study, metrics_of("run", maker))
        goal = self._study.goal
        if goal.metric == "goodput" and not self._study.workload.options.get("slo"):
            yield Problem(("goal", goal.direction), "goodput counts requests within limits; give `slo` to the workload")
