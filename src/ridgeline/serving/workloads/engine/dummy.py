"""What dummy weights do to a measurement, and what is done about it.

They have a model's shape, and most of its speed. Two things are not in the shape: which experts a token goes to, and
whether a draft's tokens are accepted. Dummy values are tiny, so where a model adds a bias to its router's scores
(DeepSeek-V3, GLM-4.5, Kimi) the bias alone decides, and every token of every batch reads the same few experts: a
GLM-4.5-Air shape in FP8 on an H200 with SGLang 0.5.15 had 12.9 ms between tokens at 32 requests, and 33.3 ms with
tokens spread over all experts. Engines have a switch for that, which is set unless the study sets it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ridgeline.records.expression import Value
from ridgeline.records.space import Continuous, Settings
from ridgeline.records.study import Study
from ridgeline.serving.engines.base import ServingEngine
from ridgeline.serving.engines.releases import NEWEST, release_meant
from ridgeline.serving.workloads.engine.names import KnobNames
from ridgeline.serving.workloads.engine.options import EngineOptions
from ridgeline.serving.workloads.engine.rules import known_model

DUMMY, LOAD_FORMAT = "dummy", "load_format"
WEIGHTS_RECORD = "weights"  # of `Study.recorded`, beside the interpreters and the model
_OFF = ("", "0", "false", "no", "n", "off")


class DummyWeights:
    """The dummy weights of a study, if it has any. `asked_env` is what the study itself puts into the environment."""

    def __init__(self, study: Study, options: EngineOptions, dialect: ServingEngine, names: KnobNames) -> None:
        self._study, self._options, self._dialect, self._names = study, options, dialect, names

    @property
    def used(self) -> bool:
        """By any setting of the study."""
        return DUMMY in self._values_of(LOAD_FORMAT)

    def routing_env(self, settings: Settings, asked_env: Mapping[str, str]) -> dict[str, str]:
        """The engine's own switch that spreads tokens over all experts; nothing where the study or its site has it."""
        switch = self._dialect.even_routing
        if switch is None or not self._may_route(settings) or not self._has_switch(settings) or self._begun_without:
            return {}
        if any(name in asked_env or name in self._study.site.env for name in switch.variables):
            return {}
        return {switch.variable: switch.value}

    def record(self, settings: Settings, asked_env: Mapping[str, str]) -> dict[str, object]:
        """What the journal keeps: that weights were dummies, and what spread their tokens."""
        if not self.used:
            return {}
        env = {**self._study.site.env, **asked_env, **self.routing_env(settings, asked_env)}
        variables = () if self._dialect.even_routing is None else self._dialect.even_routing.variables
        routing = {name: env[name] for name in variables if name in env}
        return {WEIGHTS_RECORD: {LOAD_FORMAT: DUMMY, **({"routing": routing} if routing else {})}}

    def doubts(self, all_settings: Iterable[tuple[Settings, Mapping[str, str]]]) -> list[str]:
        """Why real weights would show something else, over settings with the environment that each asks for."""
        if not self.used:
            return []
        found = [text for settings, env in all_settings if (text := self._routing_doubt(settings, env))]
        drafts = [name for name in self._dialect.draft_knobs if any(v not in _NO_DRAFT for v in self._values_of(name))]
        if drafts:
            found.append(
                f"{drafts[0]}: with dummy weights no drafted token is ever accepted, so what is measured of drafts is "
                "their cost without their gain: too slow, and no ground to choose them by"
            )
        return list(dict.fromkeys(found))

    def _routing_doubt(self, settings: Settings, asked_env: Mapping[str, str]) -> str:
        if not self._may_route(settings):
            return ""
        switch, title = self._dialect.even_routing, self._dialect.title or self._dialect.name
        env = {**self._study.site.env, **asked_env, **self.routing_env(settings, asked_env)}
        fast = "collapsed routing: dummy weights may send all tokens to the same few experts, which is too fast"
        fast += " (2 and 2.6 times in two shapes on an H200)"
        if known_model(self._options) is None:
            fast = f"if this model has experts, {fast}"
        if switch is None:
            return f"{fast}; {title} has no switch against it that is known here"
        since = ".".join(map(str, switch.since))
        if not self._has_switch(settings):
            release = ".".join(map(str, self._dialect.release_of(self._options.install(settings))))
            return f"{fast}; {title} {release} has no switch against it, {since} and later have"
        if self._begun_without:
            return f"{fast}; this campaign was begun without {switch.variable}={switch.value}"
        if all(env.get(name, "").lower() in _OFF for name in switch.variables):
            return f"{fast}; the study itself has {switch.variable} off"
        if around := switch.bypassed(self._names.values(settings), self._options.gpu):
            return f"{fast}; {switch.variable} does not reach {around}, whose kernels route tokens themselves"
        if self._dialect.release_of(self._options.install(settings)) == NEWEST:
            unread = "and its release cannot be read here: say it by `version`"
            return f"{fast}; {title} has a switch against it from {since} on, {unread}"
        return ""

    def _may_route(self, settings: Settings) -> bool:
        """Dummy weights of a model with experts, or of one whose shape is not known here: a dense one never asks."""
        model = known_model(self._options)
        return self._names.values(settings).get(LOAD_FORMAT) == DUMMY and (model is None or model.experts is not None)

    def _has_switch(self, settings: Settings) -> bool:
        switch = self._dialect.even_routing
        release = self._dialect.release_of(self._options.install(settings))
        return switch is not None and release_meant(release) >= switch.since

    @property
    def _begun_without(self) -> bool:
        """Whether this is a folder to be read whose runs were made before the switch was set by default."""
        recorded = self._study.recorded
        return recorded is not None and WEIGHTS_RECORD not in recorded

    def _values_of(self, name: str) -> Iterator[Value | None]:
        """All that a flag may be in this study, under its own name or the engine's."""
        called = self._dialect.flags.called
        yield from (value for flag, value in self._options.flags.items() if called(flag) == called(name))
        for knob in self._study.space.knobs:
            if called(knob.name) == called(name) and not isinstance(knob, Continuous):
                yield from knob.values


_NO_DRAFT = (None, "", "none", "default", False)
