"""Which names of a study are flags of its engine, which are environment, and what is wrong with the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from ridgeline.records.expression import Value
from ridgeline.records.problem import Problem, Where, near
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.template import field_names
from ridgeline.workloads.engine.dialect import EngineDialect
from ridgeline.workloads.engine.flags import OWN_CHOICE, FlagTable, Version
from ridgeline.workloads.engine.install import installed_flags, release_of
from ridgeline.workloads.engine.options import EngineOptions
from ridgeline.workloads.engine.reading import METRICS, SERVE_METRICS

ENGINE_KNOB = "engine"
ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class Names:
    """Knobs are the engine's flags in snake_case, environment variables in capitals, and `engine` itself."""

    def __init__(self, study: Study, options: EngineOptions, dialect: EngineDialect) -> None:
        self._study, self._options, self._dialect = study, options, dialect

    def values(self, settings: Settings) -> dict[str, Value]:
        """All settings that are flags: the study's constants, overruled by knobs and derived values."""
        names = set(self._flag_names)
        knobs = {name: value for name, value in settings.items() if name in names and value is not None}
        table = self._dialect.table
        taken = {table.aliases.get(name, name) for name in knobs}
        fixed = {n: v for n, v in self._options.flags.items() if table.aliases.get(n, n) not in taken}
        return {n: v for n, v in {**fixed, **knobs}.items() if v != OWN_CHOICE}

    def problems(self, *, serves: bool) -> Iterator[Problem]:
        yield from self._unknown_names()
        yield from self._unknown_fields()
        yield from self._metric_problems(serves)

    @cached_property
    def _flag_names(self) -> tuple[str, ...]:
        """Names of the study that are flags of this engine in any of its releases."""
        table = self._dialect.table
        known = {*table.flags, *table.aliases, *table.moved}
        unknown = [n for n in self._used_names() if n not in known]
        found = self._installed(tuple(unknown)) if unknown else {}
        return tuple(n for n in self._used_names() if n in known or n in found)

    def _used_names(self) -> list[str]:
        names = [*self._study.space.names, *self._options.flags]
        return [n for n in dict.fromkeys(names) if n != ENGINE_KNOB and not ENV_NAME.fullmatch(n)]

    def _installed(self, wanted: tuple[str, ...]) -> Mapping[str, str]:
        """Flags of the installed engine, asked only when the table does not know a name that must be a flag."""
        derived = set(self._study.space.derived)
        if all(name in derived or name in self._read_elsewhere() for name in wanted):
            return {}
        install = self._options.engine
        return {} if install.container else installed_flags(install.python, self._dialect.introspect())

    def _read_elsewhere(self) -> set[str]:
        """Knobs that need not be flags, because something else of the study reads them."""
        study = self._study
        texts = [*self._options.env.values(), *(study.builds.make if study.builds else ())]
        names = {name for text in texts for name in field_names(text)}
        expressions = [*study.space.derived.values()]
        expressions += [e for n in ("nodes", "ranks_per_node", "cores", "gpus") if (e := getattr(study.job, n))]
        return names | {name for expression in expressions for name in expression.names}

    def _unknown_names(self) -> Iterator[Problem]:
        table, elsewhere = self._dialect.table, self._read_elsewhere()
        flags = set(self._flag_names)
        version = release_of(self._options.engine, self._dialect)
        known = [*table.names(version), ENGINE_KNOB]
        places: list[tuple[Where, str]] = [(("space", knob.name), knob.name) for knob in self._study.space.knobs]
        places += [(("workload", "flags", name), name) for name in self._options.flags]
        for where, name in places:
            if name == ENGINE_KNOB or (ENV_NAME.fullmatch(name) and where[0] == "space") or name in elsewhere - flags:
                continue
            if name not in flags:
                kind = self._study.workload.kind
                yield Problem(where, f"no such knob for {kind}; {near(name, _shown(name, known))}")
            elif gap := _not_there(table, name, version, several=bool(self._options.engines)):
                yield Problem(where, f"{self._dialect.name} {'.'.join(map(str, version))} {gap}")

    def _unknown_fields(self) -> Iterator[Problem]:
        for name, text in self._options.env.items():
            names = [*self._study.space.names, *(["build"] if self._study.builds else [])]
            for unknown in sorted(field_names(text) - set(names)):
                known = near(unknown, names)
                yield Problem(("workload", "env", name), f"{{{unknown}}} is not a knob or a derived value; {known}")

    def _metric_problems(self, serves: bool) -> Iterator[Problem]:
        goal, known = self._study.goal, [*METRICS, *(SERVE_METRICS if serves else ())]
        if goal.metric not in known:
            yield Problem(("goal", goal.direction), f"{goal.metric} is no metric; {near(goal.metric, known)}")
        if goal.metric == "goodput" and not self._options.load.slos:
            yield Problem(("goal", goal.direction), "goodput counts requests within limits; give `slo` to the workload")
        known += self._study.space.names
        for index, guard in enumerate(self._study.guards):
            for name in sorted(guard.names - set(known)):
                yield Problem(("guards", index), f"{name} is no metric, knob or derived value; {near(name, known)}")


def _shown(name: str, known: list[str]) -> list[str]:
    """Hundreds of flags help nobody: where none is close, the usual ones are shown."""
    from difflib import get_close_matches

    return known if get_close_matches(name, known, n=1) else ["tp", "pp", "mem_fraction_static", "max_running_requests"]


def _not_there(table: FlagTable, name: str, version: Version, *, several: bool) -> str:
    """Why a flag that some release has is not one of this release."""
    called = table.called(name, version)
    flag = table.flags.get(called)
    if several or flag is None or flag.there(version):
        return ""
    if version < flag.since:
        return f"has no {name} yet: it came with {'.'.join(map(str, flag.since))}"
    return f"has no {name} any more: it went with {'.'.join(map(str, flag.gone))}"
