"""A serving engine as a workload: each trial starts it anew, measures it, stops it, and proves what was applied.

A run folder holds `session.json` (what is done), `engine.sh` (the exact command of the engine on each node), and after
the run `engine.log`, `measured.json` and, of a served run, `requests.jsonl`. The work on the node is `session.py`'s.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from ridgeline.errors import StoreError
from ridgeline.records.expression import ExpressionError, Value
from ridgeline.records.launch import Binding, contained, launch
from ridgeline.records.measurement import Reading
from ridgeline.records.run import Job, Resources, Run
from ridgeline.records.site import Site
from ridgeline.records.space import Settings
from ridgeline.records.study import Study
from ridgeline.records.template import field_names, render
from ridgeline.records.trial import Trial
from ridgeline.serving.model_config import preset_names
from ridgeline.workloads.base import Problem
from ridgeline.workloads.command_options import Where, near
from ridgeline.workloads.engine_dialect import ENGINE_LOG, Cluster, Dialect
from ridgeline.workloads.engine_failures import signatures
from ridgeline.workloads.engine_flags import NEWEST, OWN_CHOICE, FlagTable, Version, parse_version
from ridgeline.workloads.engine_install import installed_flags, installed_version
from ridgeline.workloads.engine_options import Install, read_options
from ridgeline.workloads.engine_prepare import STEPS, preparation
from ridgeline.workloads.engine_reading import METRICS, SERVE_METRICS, Asked, read_run
from ridgeline.workloads.engine_rules import predicted_tok_s, refusal

SESSION, ENGINE_SCRIPT = "session.json", "engine.sh"
ENGINE_KNOB = "engine"
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class EngineWorkload:
    """Knobs are the engine's flags in snake_case, environment variables in capitals, and `engine` itself."""

    def __init__(self, study: Study, dialect: Dialect, *, serves: bool) -> None:
        self._study = study
        self._dialect = dialect
        self._serves = serves
        self._options = read_options(study.workload.options, study.folder, serves=serves)
        self.signatures = signatures(dialect.name)
        self.logs = ("stderr", ENGINE_LOG, "stdout", "prepare.log")

    def problems(self) -> list[Problem]:
        found = list(self._options.problems)
        found += self._unknown_names()
        found += self._unknown_fields()
        found += self._metric_problems()
        for index, step in enumerate(self._options.prepare):
            if step not in STEPS:
                found.append(Problem(("workload", "prepare", index), f"no such step; {near(step, STEPS)}"))
        return found

    def refusal(self, settings: Settings) -> str | None:
        try:
            asked = self._study.job.resources(settings)
            self._env(settings)
        except (ExpressionError, ValueError) as error:
            return str(error)
        if asked.nodes > 1 and self._launcher == "none":
            return f"{asked.nodes} nodes need a launcher: set the site's `launcher` to srun, openmpi or mpich"
        version = self._version(self._options.install(settings.get(ENGINE_KNOB)))
        return refusal(self._dialect.name, self._options, self._values(settings), version, asked, self._study.site)

    def prepare(self, trial: Trial, folder: Path) -> Job:
        limits = self._study.job
        resources = limits.resources(trial.settings)
        build = os.path.relpath(trial.build.resolve(), folder.resolve()) if trial.build else "."
        env = self._env(trial.settings, build)
        files = {
            SESSION: json.dumps(self._session(trial.settings, resources, env), indent=1) + "\n",
            ENGINE_SCRIPT: self._script(trial.settings, resources),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text)
        except OSError as error:
            raise StoreError(
                f"{error.filename or folder}: cannot fill the run folder ({error.strerror}); make room and resume"
            ) from error
        return Job(
            name=folder.name,
            folder=folder,
            command=f"exec {shlex.quote(sys.executable)} -m ridgeline.workloads.session {SESSION}",
            env=env,
            resources=resources,
            limit_s=limits.limit_s,
            silence_limit_s=limits.silence_limit_s,
        )

    def read(self, run: Run) -> Reading:
        return read_run(self._dialect, run, self._needed())

    def paste(self, settings: Settings) -> str:
        install = self._options.install(settings.get(ENGINE_KNOB))
        words = self._dialect.words(self._values(settings), self._version(install))
        resources = self._study.job.resources(settings)
        command = self._dialect.serve(install.python, words, Cluster(resources.nodes))
        command = command.replace('"$RIDGELINE_MODEL"', shlex.quote(self._options.model))
        command = command.replace('"$RIDGELINE_PORT"', "30000")
        env = [f"{name}={shlex.quote(text)}" for name, text in self._env(settings).items()]
        return " ".join([*env, contained(self._site(install), resources, command)])

    @property
    def _launcher(self) -> str:
        return self._options.launcher or self._study.site.launcher

    def _site(self, install: Install) -> Site:
        return replace(self._study.site, container=install.container or self._study.site.container)

    def _version(self, install: Install) -> Version:
        """As the study says, as the engine on this machine says, or the newest we know of."""
        text = install.version or (
            "" if install.container else installed_version(install.python, self._dialect.package)
        )
        return parse_version(text) or NEWEST

    def _values(self, settings: Settings) -> dict[str, Value]:
        """All settings that are flags: the study's constants, overruled by knobs and derived values."""
        names = set(self._flag_names)
        knobs = {name: value for name, value in settings.items() if name in names and value is not None}
        table = self._dialect.table
        taken = {table.aliases.get(name, name) for name in knobs}
        fixed = {n: v for n, v in self._options.flags.items() if table.aliases.get(n, n) not in taken}
        return {n: v for n, v in {**fixed, **knobs}.items() if v != OWN_CHOICE}

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
        return [n for n in dict.fromkeys(names) if n != ENGINE_KNOB and not _ENV_NAME.fullmatch(n)]

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
        version = self._version(self._options.engine)
        known = [*table.names(version), ENGINE_KNOB]
        places: list[tuple[Where, str]] = [(("space", knob.name), knob.name) for knob in self._study.space.knobs]
        places += [(("workload", "flags", name), name) for name in self._options.flags]
        for where, name in places:
            if name == ENGINE_KNOB or (_ENV_NAME.fullmatch(name) and where[0] == "space") or name in elsewhere - flags:
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

    def _metric_problems(self) -> Iterator[Problem]:
        goal, known = self._study.goal, [*METRICS, *(SERVE_METRICS if self._serves else ())]
        if goal.metric not in known:
            yield Problem(("goal", goal.direction), f"{goal.metric} is no metric; {near(goal.metric, known)}")
        if goal.metric == "goodput" and not self._options.load.slos:
            yield Problem(("goal", goal.direction), "goodput counts requests within limits; give `slo` to the workload")
        known += self._study.space.names
        for index, guard in enumerate(self._study.guards):
            for name in sorted(guard.names - set(known)):
                yield Problem(("guards", index), f"{name} is no metric, knob or derived value; {near(name, known)}")

    def _needed(self) -> set[str]:
        return {self._study.goal.metric, *(name for guard in self._study.guards for name in guard.names)}

    def _env(self, settings: Settings, build: str = ".") -> dict[str, str]:
        """The trial's environment. `{build}` is the folder that the study's `builds` made, seen from the run folder."""
        fields = {"build": build, **settings}
        env = {name: render(text, fields) for name, text in self._options.env.items()}
        env |= {n: _env_text(v) for n, v in settings.items() if _ENV_NAME.fullmatch(n) and v not in (None, OWN_CHOICE)}
        if any(name.startswith("NCCL_") for name in env):
            # NCCL ignores what it does not understand without a word; its own echo is the proof
            env.setdefault("NCCL_DEBUG", "INFO")
            env.setdefault("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING")
        return env

    def _session(self, settings: Settings, resources: Resources, env: Mapping[str, str]) -> dict[str, object]:
        install = self._options.install(settings.get(ENGINE_KNOB))
        version, values = self._version(install), self._values(settings)
        asked = Asked(
            echo=self._dialect.echoed(values, version),
            nccl={n: v for n, v in env.items() if n.startswith("NCCL_")},
            version=install.version,
            attention_groups=_whole(values.get("attn_dp", values.get("attn_dp_size"))),
        )
        made = self._options.model in preset_names()
        predicted = None
        if self._dialect.name == "sglang":
            site = self._study.site
            predicted = predicted_tok_s(self._options, values, version, resources, site, paced=self._serves)
        return {
            "engine": self._dialect.name,
            "python": "" if install.container else install.python,
            "serves": self._serves,
            "model": self._options.model,
            "make_model": made,
            "start": self._start(resources),
            "load": asdict(self._options.load),
            "ready_limit_s": self._options.ready_limit_s,
            "prepare": [
                preparation(
                    step,
                    self._dialect.name,
                    install,
                    self._options.model,
                    values,
                    self._dialect.words(values, version),
                )
                for step in self._options.prepare
                if step in STEPS
            ],
            "asked": asdict(asked),
            "predicted_tok_s": predicted,
        }

    def _start(self, resources: Resources) -> str:
        """How the session starts engine.sh: by itself, or on every node by the site's launcher."""
        if resources.nodes == 1:
            return f"sh ./{ENGINE_SCRIPT}"
        if self._launcher == "pbsdsh":
            return f'pbsdsh -- sh "$PWD/{ENGINE_SCRIPT}"'
        one_each = replace(resources, ranks_per_node=1)
        plain = replace(self._study.site, container="")
        # an engine pins its own processes; a launcher would tie all of them to one core
        free = Binding(bind_to="none")
        return launch(plain, one_each, f'sh "$PWD/{ENGINE_SCRIPT}"', free, launcher=self._launcher)

    def _script(self, settings: Settings, resources: Resources) -> str:
        install = self._options.install(settings.get(ENGINE_KNOB))
        version, cluster = self._version(install), Cluster(resources.nodes)
        words = self._dialect.words(self._values(settings), version)
        if self._serves:
            command = self._dialect.serve(install.python, words, cluster)
        else:
            command = self._dialect.offline(install.python, words, self._options.load, version, cluster)
        rank = ""
        if resources.nodes > 1:
            rank = (
                "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-${PBS_NODENUM:-0}}}}\n"
                "[ -r ./env ] && . ./env   # launchers other than srun bring no environment along\n"
            )
        return (
            "#!/bin/sh\n# The engine on one node. session.json says what is done with it.\n"
            'cd "$(dirname "$0")" || exit 1\n[ -r ./session.env ] && . ./session.env\n'
            f"{rank}exec {contained(self._site(install), resources, command)}\n"
        )


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


def _env_text(value: Value) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
