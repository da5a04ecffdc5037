"""The order in which a good engineer tunes an engine for a new model: a study a stage, each from the last one's answer.

What is confirmed goes into the flags of the next stage. A question with one answer is no stage: the next one says why.
Which layouts are legal and fit, what an engine chooses by itself and what memory is left are asked of their own homes;
here is the order, what goes together, and why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import wrap

import yaml

from ridgeline.campaign.recipe import AFTER, RecipeStage, StageBefore
from ridgeline.errors import InputError, NothingFound, near
from ridgeline.records.expression import Value
from ridgeline.serving.engines.base import ServingEngine, engine_named
from ridgeline.serving.engines.behaviour import parse_acceptance, parse_routing
from ridgeline.serving.engines.deployment import Deployment
from ridgeline.serving.engines.fitting import list_layouts, nearest_fits
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.knobs import ROWS, Part
from ridgeline.serving.engines.layout import Layout
from ridgeline.serving.engines.layout_rules import deepep_values, graphless, layout_problems, uses_deepep
from ridgeline.serving.engines.memory import STARTUP_OOM, MemoryPlan, plan_memory
from ridgeline.serving.engines.releases import OWN_CHOICE, USUAL_ENGINE, release_meant, title_of, workloads_of
from ridgeline.serving.engines.settings import (
    BACKENDS,
    DEFAULTS,
    Applied,
    EngineSettings,
    acceptance_assumed,
    layout_of,
    model_of,
    parse_engine,
    resolve,
    settings_of,
)
from ridgeline.serving.hardware.cluster import GIB, Cluster, Gpu, make_cluster
from ridgeline.serving.model.config import load_model
from ridgeline.serving.model.model import Model
from ridgeline.serving.planner.study import START_S, beside
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.traffic.traffic import SHORTER, Traffic, beyond_context, dataset_of, parse_traffic
from ridgeline.serving.twin.simulate import DoesNotFit, simulate

_TWIN = "twin"
_WORDS: Mapping[str, str] = {
    "model": "a preset, a config.json, or the folder of the weights",
    "gpu": "one of `ridgeline plan hardware`",
    "gpus": "how many in all",
    "gpus_per_node": "8 unless said",
    "traffic": "sharegpt unless said, or as `bench --traffic` takes it",
    "input_tokens": "of every prompt, instead of traffic",
    "output_tokens": "of every answer, instead of traffic",
    "requests": "1000 unless said",
    "rate": "requests a second, for a server",
    "concurrency": "requests at once, for a server",
    "slo": "limits such as ttft_p95_ms=2000,itl_p95_ms=50",
    "role": "prefill or decode: one engine of split roles, measured alone",
    "kind": "twin tries everything without a GPU",
    "version": "the engine's release",
    "engine": "where it is: virtual environment, python or image",
    "load_format": "dummy runs the shape without weights",
    "experts": "how dummy weights route: uniform unless said",
    "accept_length": "tokens kept of a drafted step, where weights are dummies: 2.4, or a curve such as glm-5.2",
    "draft": "the model that drafts, where the model has no layers for it",
    "algorithm": "of that draft model, EAGLE3 unless said",
    "site": "a site file, or a site's name",
}
_NEEDED = ("model", "gpu", "gpus")
_LAYOUT = ("tp", "pp", "dp", "attn_dp", "ep")
_ENVIRONMENT = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Knob:
    """`own` is the baseline: what was confirmed, or what the engine does by itself; None where it isn't there then."""

    name: str
    values: Sequence[Value]
    own: Value
    why: str
    when: str = ""


@dataclass(frozen=True, slots=True)
class _Stage:
    question: str
    knobs: tuple[_Knob, ...]
    why: str
    trials: int
    derived: tuple[tuple[str, str, str], ...] = ()  # name, expression, why
    rules: tuple[tuple[str, str], ...] = ()  # refuse, because
    preset: Mapping[str, Value] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()  # below the space


@dataclass(frozen=True, slots=True)
class _Skipped:
    """A question with one answer, and the settings that it comes to."""

    why: str
    values: Mapping[str, Value] = field(default_factory=dict)


def write(name: str, given: Mapping[str, str], before: StageBefore | None) -> RecipeStage:
    """The next stage of this engine's recipe. InputError says which word is wrong, or that nothing fits."""
    case = _case(name, given, _confirmed(before))
    names = list(_STAGES)
    first = 0 if before is None else names.index(before.stage) + 1
    skipped: list[str] = []
    for stage in names[first:]:
        made = _STAGES[stage](case)
        if isinstance(made, _Stage):
            return case.written(stage, names, made, skipped, before)
        skipped.append(f"{stage}: skipped, {made.why}")
        case = replace(case, confirmed={**case.confirmed, **made.values})
    if before is not None and before.stage == names[-1]:
        raise NothingFound(f"{before.folder} was the last stage; `ridgeline best {before.folder}` has its answer")
    raise NothingFound(f"there is nothing to tune: {'; '.join(skipped)}")


def _confirmed(before: StageBefore | None) -> dict[str, Value]:
    """What every later stage starts from: flags and environment of the stage before, and its answer."""
    if before is None:
        return {}
    options, study = before.study.workload.options, before.study
    fixed: dict[str, Value] = {**options.get("flags", {}), **options.get("env", {})}  # type: ignore[dict-item]
    if before.stage == _LAST:
        return fixed
    settings = study.space.settings(before.point)
    if before.point == study.baseline:  # which spells out what the engine goes on choosing by itself
        settings = {name: value for name, value in settings.items() if name in fixed or name in _LAYOUT}
    found = {**fixed, **settings}
    usual = {name: knob.omit_when for name, knob in ROWS.items()}
    # a switch that is off is as good as not there
    kept = {name: value for name, value in found.items() if value is not False and value not in (None, OWN_CHOICE)}
    return {name: value for name, value in kept.items() if value != usual.get(name)}


def _case(name: str, given: Mapping[str, str], confirmed: Mapping[str, Value]) -> _Case:
    if strange := next((word for word in given if word not in _WORDS), ""):
        raise InputError(f"{strange}: the recipe {name} has no such word; {near(strange, [*_WORDS, AFTER])}")
    if missing := [word for word in _NEEDED if word not in given]:
        words = "\n".join(f"  {word:<14} {text}" for word, text in _WORDS.items())
        raise InputError(f"the recipe {name} needs {', '.join(f'{w}=' for w in missing)}; its words:\n{words}")
    engine = engine_named(name)
    version = given.get("version", "")
    base = parse_engine(f"{name}:{version}" if version else name, DEFAULTS)
    gpus, size = _whole("gpus", given, 0), _whole("gpus_per_node", given, 8)
    size = min(gpus, size)
    if gpus % size:
        raise InputError(
            f"gpus={gpus} do not fill nodes of {size}; use {gpus // size * size} or {-(-gpus // size) * size}"
        )
    cluster = make_cluster(given["gpu"], gpus // size, size)
    case = _Case(engine, given, load_model(given["model"]), cluster, base, confirmed)
    case.require_sound()
    return case


def _whole(word: str, given: Mapping[str, str], usual: int) -> int:
    text = given.get(word, str(usual))
    if not text.isdecimal() or not int(text):
        raise InputError(f"{word}={text}: {word} is a whole number of at least 1")
    return int(text)


@dataclass(frozen=True)
class _Case:
    """What is served, on what, under which load, and what was confirmed so far."""

    engine: ServingEngine
    given: Mapping[str, str]
    shipped: Model
    cluster: Cluster
    base: EngineSettings
    confirmed: Mapping[str, Value]

    def require_sound(self) -> None:
        offline, served = workloads_of(self.engine.name)
        if self.kind not in (offline, served, _TWIN):
            raise InputError(f"kind={self.kind}: {near(self.kind, (offline, served, _TWIN))}")
        if self.kind == _TWIN and self.engine.name != USUAL_ENGINE:
            raise InputError(f"kind={_TWIN} stands for {title_of(USUAL_ENGINE)}; leave it out for {self.engine.title}")
        if (self.kind == served) != self.paced and self.kind != _TWIN:
            how = "give rate= or concurrency=" if self.kind == served else "leave out rate= and concurrency="
            raise InputError(f"kind={self.kind}: {how}")
        if "rate" in self.given and not self.slos:
            raise InputError(
                f"rate={self.given['rate']}: every setting that keeps up serves as much; give the limits of users, "
                "such as slo=ttft_p95_ms=2000,itl_p95_ms=50, or load by concurrency="
            )
        if self.slos and not self.paced:
            raise InputError(f"slo={self.given['slo']}: limits are of a server; give rate= or concurrency= as well")
        if self.role not in ("both", "prefill", "decode"):
            raise InputError(f"role={self.role}: use prefill or decode, or leave it out")
        if self.role != "both" and (self.kind == _TWIN or "concurrency" not in self.given):
            raise InputError(f"role={self.role} is measured alone, on the real engine, with concurrency= at once")
        if self.kind != _TWIN and self.cluster.nodes > 1 and "site" not in self.given:
            raise InputError(f"{self.cluster} need a site: site=FILE (`ridgeline site list` has some to copy)")
        if "draft" not in self.given and "algorithm" in self.given:
            raise InputError(f"algorithm={self.given['algorithm']} is that of a draft model; name it by draft=")
        if "experts" in self.given:
            parse_routing(self.given["experts"])
        if "accept_length" in self.given:
            parse_acceptance(self.given["accept_length"])
        self._require_served()

    def _require_served(self) -> None:
        """All requests must be answered, or no run of these studies counts."""
        said, context = f"traffic={self.given.get('traffic', 'sharegpt')}", self.shipped.context_tokens
        if self.traffic.has_sessions and not self.paced:
            raise InputError(f"{said}: turns wait for answers; give concurrency=, so many sessions at once")
        if beyond := beyond_context(self.request_tokens, context):
            raise InputError(f"{said}: {beyond}, and engines refuse them; {SHORTER}")

    @property
    def paced(self) -> bool:
        return "rate" in self.given or "concurrency" in self.given

    @property
    def kind(self) -> str:
        return self.given.get("kind") or workloads_of(self.engine.name)[self.paced]

    @property
    def role(self) -> str:
        return self.given.get("role", "both")

    @property
    def dummy(self) -> bool:
        return self.given.get("load_format") == "dummy"

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        return tuple(Slo.parse(text) for text in self.given.get("slo", "").split(",") if text)

    @cached_property
    def traffic(self) -> Traffic:
        given, text = self.given, self.given.get("traffic", "sharegpt")
        if "input_tokens" in given or "output_tokens" in given:
            text = f"fixed:{_whole('input_tokens', given, 1024)}:{_whole('output_tokens', given, 128)}"
        rate = given.get("rate")
        if rate is not None and not re.fullmatch(r"\d+(\.\d+)?", rate):
            raise InputError(f"rate={rate}: rate is a number of requests a second")
        return parse_traffic(
            text,
            requests=_whole("requests", given, 1000) if "requests" in given else None,
            rate_s=float(rate) if rate is not None else None,
            concurrency=_whole("concurrency", given, 1) if "concurrency" in given else None,
        )

    @cached_property
    def values(self) -> dict[str, Value]:
        """What is confirmed, under our names."""
        return self.engine.flags.canonical(self.confirmed)

    @property
    def model(self) -> Model:
        return model_of(self.shipped, self.values)

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.values, self.cluster.nodes, self.cluster.node.gpus)

    @property
    def settings(self) -> EngineSettings:
        meant = self.engine.meant(
            self.values, lambda: self._plan(settings_of(self.values, self.base)), self.cluster.gpu
        )
        return settings_of(meant, self.base)

    def _plan(self, settings: EngineSettings) -> MemoryPlan:
        return plan_memory(self.model, self.cluster.gpu, self.layout, settings, self.role)

    def planned(self, **changed: object) -> MemoryPlan:
        return self._plan(replace(self.settings, **changed))  # type: ignore[arg-type]

    @cached_property
    def applied(self) -> Applied:
        return resolve(self.settings, self.model, self.cluster.gpu, self.layout, self.planned().kv_tokens_per_rank)

    @property
    def share(self) -> int:
        """By which the engine divides what it is told of a whole engine."""
        return self.layout.attn_dp * self.layout.pp

    @property
    def at_once(self) -> int | None:
        """Requests that are there at a time; None where they come at a rate."""
        return (
            None
            if "rate" in self.given
            else min(self.traffic.concurrency or self.traffic.requests, self.traffic.requests)
        )

    @cached_property
    def request_tokens(self) -> list[int]:
        return sorted((a.input_tokens + a.output_tokens for a in self.traffic.arrivals()), reverse=True)

    def shows(self, knob: str) -> bool:
        """Whether runs can tell its values apart: the twin cannot where it has no model of them."""
        row = ROWS.get(knob)
        return self.has(knob) and (self.kind != _TWIN or (row is not None and row.part is not Part.NOWHERE))

    def has(self, knob: str) -> bool:
        """Whether this release of the engine has it."""
        return self.engine.flags.knows(knob) and not self.engine.flags.missing(knob, self.base.version)

    def takes(self, knob: str, value: Value) -> bool:
        """Whether this release of the engine has this value of it."""
        return self.has(knob) and not self.engine.flags.wrong_value(knob, value, release_meant(self.base.version))

    # The text of a study.

    def written(
        self, stage: str, names: Sequence[str], made: _Stage, skipped: Sequence[str], before: StageBefore | None
    ) -> RecipeStage:
        number, last = names.index(stage) + 1, stage == names[-1]
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", self.shipped.name).strip("-.") or "model"
        name = f"{model}-{number}-{stage}"
        place = f"Stage {number} of {len(names)} of `ridgeline tune --recipe {self.engine.name}`: {stage}. {made.why}"
        after = "It is the last: its answer is what all stages brought." if last else f"Then: {AFTER}=studies/{name}"
        lines = [
            "version: 1",
            f"name: {name}",
            f"question: {json.dumps(made.question)}",
            *_comment(place),
            *(line for text in skipped for line in _comment(f"{text}.")),
            *_comment(after),
            f"recipe: {_flow({'name': self.engine.name, 'stage': stage, 'given': dict(self.given)})}",
            "",
            *self._workload(before, made.preset),
            *self._job(),
            "",
            "space:",
            *(line for knob in made.knobs for line in _knob_lines(knob)),
            *_comment(*made.remarks, indent=2),
        ]
        if made.derived:
            lines.append("derived:")
            for derived, expression, why in made.derived:
                lines += [*_comment(why, indent=2), f"  {derived}: {_flow(expression)}"]
        if made.rules:
            lines.append("rules:")
            lines += [f"  - {_flow({'refuse': refuse, 'because': why})}" for refuse, why in made.rules]
        baseline = {knob.name: knob.own for knob in made.knobs if knob.own is not None}
        lines += ["# what the engine does by itself, or what was confirmed", f"baseline: {_flow(baseline)}"]
        if made.preset:
            lines += ["# everything that was confirmed", f"presets: [{_flow(made.preset)}]"]
        lines += ["", *self._goal(), *self._budget(made), ""]
        return RecipeStage(name, "\n".join(lines), f"stage {number} of {len(names)}, {stage}", last)

    def _workload(self, before: StageBefore | None, tuned: Collection[str]) -> Iterator[str]:
        given, traffic = self.given, self.traffic
        yield "workload:"
        other = "" if self.kind != _TWIN else f"  # {workloads_of(self.engine.name)[self.paced]} on the real cluster"
        yield f"  kind: {self.kind}{other}"
        yield f"  model: {_flow(beside(given['model']))}"
        yield f"  gpu: {self.cluster.gpu.spelled}"
        for word in ("version", "load_format", "experts", "accept_length", "engine"):
            if word in given:
                yield f"  {word}: {_flow(given[word])}"
        if self.role != "both":
            yield f"  alone: {self.role}"
        yield f"  traffic: {_flow({'dataset': dataset_of(traffic), 'requests': traffic.requests})}"
        yield from (f"  {word}: {given[word]}" for word in ("rate", "concurrency") if word in given)
        if self.slos:
            yield f"  slo: [{', '.join(map(str, self.slos))}]"
        fixed = {name: value for name, value in self.confirmed.items() if name not in tuned}
        flags = {name: value for name, value in fixed.items() if self.engine.flags.knows(name)}
        env = {name: str(value) for name, value in fixed.items() if _ENVIRONMENT.fullmatch(name)}
        if fixed:
            yield from _comment(f"confirmed up to {before.folder}" if before else "there is one answer", indent=2)
            yield from (f"  {key}: {_flow(found)}" for key, found in (("flags", flags), ("env", env)) if found)
        if self.kind != _TWIN:
            yield from self._prepare()

    def _prepare(self) -> Iterator[str]:
        steps, why = ["rehearse"], "one discarded run compiles the kernels, so that no measurement pays for it"
        if "deepgemm" in self.engine.steps and self.model.dtype == "fp8" and "fp8" in self.cluster.gpu.flops:
            steps.append("deepgemm")
            why += "; FP8 kernels of DeepGEMM alone take 10 to 20 minutes"
        yield from _comment(why, indent=2)
        yield f"  prepare: [{', '.join(steps)}]"

    def _job(self) -> Iterator[str]:
        cluster = self.cluster
        try:
            layout = self.layout if self.confirmed else _usual(self)
            found = simulate(Deployment(self.model, cluster, layout, self.settings), self.traffic)
            run_s, whence = found.summary.duration_s, "as long as the twin predicts"
        except (InputError, DoesNotFit):
            run_s, whence = 1200.0, "twenty minutes"
        limit = math.ceil((START_S + 3 * run_s) / 60)
        yield f"# 20 minutes to start, and three times {whence}; an engine that says nothing for 20 minutes hangs"
        yield f"job: {{nodes: {cluster.nodes}, gpus: {cluster.node.gpus}, limit: {limit}m, silence: 20m}}"
        if site := self.given.get("site"):
            yield f"site: {_flow(beside(site))}"
        elif self.kind == _TWIN:
            own = f"nodes: {cluster.nodes}, gpus_per_node: {cluster.node.gpus}"
            yield f"site: {{version: 1, name: pretended, batch: simulated, {own}}}"

    def _goal(self) -> Iterator[str]:
        if self.slos:
            yield "# requests a second that keep all limits: what users notice"
            yield "goal: {maximize: goodput}"
            if "rate" in self.given:
                yield "# nobody serves more than is sent: where settings look alike, raise `rate`"
        else:
            metric = {"prefill": "input_tok_s", "decode": "output_tok_s"}.get(self.role, "total_tok_s")
            yield "# nobody waits for a single answer: all that counts is how many tokens come through"
            yield f"goal: {{maximize: {metric}}}"
        yield "guards:"
        yield f"  - successful_requests == {self.traffic.requests}  # requests that were dropped are no speed"
        if not self.paced:
            yield "  - cached_token_share < 0.02  # prompts that were seen before measure the cache, not the engine"

    def _budget(self, made: _Stage) -> Iterator[str]:
        yield "# the twin's predictions come first where they can be had; the search leaves them where runs disagree"
        yield f"budget: {{trials: {made.trials}}}"
        top = 1 if made.preset else 2
        yield "# five blocks of fresh runs show a gain of some 2%; an engine's start costs more than a second repeat"
        yield f"confirm: {{top: {top}, blocks: 5, repeats: 1}}"


def _comment(*texts: str, indent: int = 0) -> list[str]:
    start = " " * indent + "# "
    return [line for text in texts for line in wrap(text, 110, initial_indent=start, subsequent_indent=start)]


def _flow(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, sort_keys=False)
    return text.removesuffix("\n...\n").strip()


def _knob_lines(knob: _Knob) -> list[str]:
    values = list(knob.values)
    shown = {"values": values, "when": knob.when} if knob.when else values
    return [*_comment(knob.why, indent=2), f"  {knob.name}: {_flow(shown)}"]


# The stages.


def _fitting(case: _Case) -> list[tuple[Layout, MemoryPlan]]:
    """Layouts of one engine that it accepts and that start, those that surely fit first.

    What may run out of memory under load does so with the engine's own batch, whose stage comes later. InputError has
    the nearest thing that would start.
    """
    size = case.cluster.node.gpus
    release = ".".join(map(str, case.base.version))
    found = list_layouts(
        case.given["model"], case.cluster.gpu.spelled, case.cluster.gpus, size, f"{case.engine.name}:{release}"
    )
    rows = [
        (layout, plan)
        for layout, plan in found.rows
        if not layout.disaggregated
        and all(getattr(layout, name) == 1 for name in _LAYOUT if not case.has(name))
        and 1 in (layout.dp, layout.attn_dp)  # one server has either copies or attention DP
        and not layout_problems(case.shipped, layout, case.cluster.gpu, case.base, case.role)
    ]
    if started := [row for row in rows if row[1].verdict != STARTUP_OOM]:
        return started
    where = f"{case.shipped.name} on {case.cluster}"
    if not rows:
        raise InputError(f"{where}: no layout is possible:\n" + "\n".join(f"  {p}" for _, p in found.refused[:5]))
    layout, plan = max(rows, key=lambda row: (row[0].tp, row[0].attn_dp == 1, row[0].ep == 1))
    near_by = nearest_fits(case.shipped, case.cluster, layout, case.base, plan)
    remedy = f"; nearest that fits: {'; '.join(near_by)}" if near_by else "; use more GPUs, or larger ones"
    raise InputError(f"{where} fits in no layout ({layout}: {plan.reason}){remedy}")


def _usual(case: _Case) -> Layout:
    """What most people start with: as wide as it goes, and nothing else; what starts by itself goes first."""

    def rank(row: tuple[Layout, MemoryPlan]) -> tuple[bool, bool, int, int, int, int]:
        layout, plan = row
        return (
            not plan.fits,
            plan.mem_fraction != plan.engine_fraction,
            -layout.tp,
            layout.attn_dp,
            layout.ep,
            layout.dp,
        )

    return min(_fitting(case), key=rank)[0]


def _layout_values(layout: Layout) -> dict[str, Value]:
    return {name: getattr(layout, name) for name in _LAYOUT if name == "tp" or getattr(layout, name) > 1}


_WHY_LAYOUT = {
    "tp": "ranks that share every layer: the shortest time to a token, and the most that GPUs say to each other",
    "pp": "stages that share the list of layers: little crosses from one to the next, and a token passes them all",
    "dp": "whole copies: nothing to say to each other, and each holds all of the weights",
    "attn_dp": "attention groups inside tp: the latent cache of MLA cannot be split by heads, so that all ranks of a "
    "group keep the same copy; more groups keep more requests",
    "ep": "ranks that hold whole experts, all or none of them: a cut expert is a narrow matrix",
}
_DEEPEP = "ep > 1 and attn_dp == tp"  # `layout_rules.uses_deepep`, as a study writes it


def _layout_stage(case: _Case) -> _Stage | _Skipped:
    rows = _fitting(case)
    usual = _usual(case)
    if len(rows) == 1:
        only = f"{usual} is the only layout that is legal and {'fits' if rows[0][1].fits else 'starts'}"
        return _Skipped(only, _layout_values(usual))
    layouts = [layout for layout, _ in rows]
    knobs = [
        _Knob(name, values, getattr(usual, name), _WHY_LAYOUT[name])
        for name in _LAYOUT
        if (values := sorted({getattr(layout, name) for layout in layouts})) != [1]
    ]
    varied = {knob.name for knob in knobs}
    tight = sorted(
        {math.floor(100 * plan.mem_fraction) / 100 for _, plan in rows if plan.mem_fraction != plan.engine_fraction}
    )
    memory = _memory_knob(case)
    if tight:
        held = sum(plan.mem_fraction != plan.engine_fraction for _, plan in rows)
        why = "layouts that hold so much weight that they start, or keep a useful KV pool, only with more than the "
        why += f"engine takes by itself: {held}"
        knobs.append(_Knob(memory, [OWN_CHOICE, *dict.fromkeys((tight[0], tight[-1]))], OWN_CHOICE, why))
    rules = [(f"{' * '.join(n for n in _LAYOUT[:3] if n in varied)} != {case.cluster.gpus}", "use every GPU")]
    if "attn_dp" in varied:
        rules.append(("attn_dp > tp", "attention DP splits the ranks of one tensor-parallel group"))
    if {"attn_dp", "dp"} <= varied:
        rules.append(("attn_dp > 1 and dp > 1", "one server has either copies or attention DP"))
    if "ep" in varied:
        rules.append(("ep != 1 and ep != tp", "experts lie on all ranks of a group, or are cut for all of them"))
    risks = sum(not plan.fits for _, plan in rows)
    doubt = f" ({risks} of them may run out of memory under load)" if risks else ""
    many = f"{len(rows)} layouts are legal and fit{doubt}, by the rules and the memory plan of `ridgeline plan layouts`"
    return _Stage(
        f"Which layout serves {case.shipped.name} fastest on {case.cluster}?",
        tuple(knobs),
        "Everything else depends on it: kernels, memory and batch are those of one rank.",
        min(12, len(rows)),
        _deepep_derived(case, layouts),
        tuple(rules),
        remarks=(many,),
    )


def _deepep_derived(case: _Case, layouts: Sequence[Layout]) -> tuple[tuple[str, str, str], ...]:
    """What goes with whole experts on ranks that have requests of their own."""
    sent = [layout for layout in layouts if uses_deepep(layout)]
    if not sent or not case.has("moe_a2a_backend"):
        return ()
    version = case.base.version
    why = "each rank has requests of its own: DeepEP takes their tokens to the experts (it must be installed)"
    values = {name: _flow(value) for name, value in deepep_values(sent[0], case.role, version).items()}
    quoted = {name: f'"{value}"' if not value.isdecimal() else value for name, value in values.items()}
    experts = case.shipped.experts
    if experts is not None and any(experts.count % layout.ep for layout in sent):
        quoted["ep_num_redundant_experts"] = f"-{experts.count} % ep"  # copies fill the gap
    if any(graphless(layout, case.role, version) for layout in sent):
        quoted["cuda_graph_max_bs"] = "0"
    found = [
        (name, f'{value} if {_DEEPEP} else "{OWN_CHOICE}"', "") for name, value in quoted.items() if case.has(name)
    ]
    return ((*found[0][:2], why), *found[1:])


def _backend_stage(case: _Case) -> _Stage | _Skipped:
    gpu, own = case.cluster.gpu, case.applied.backend
    legal = [name for name in BACKENDS if _legal(case, attention_backend=name)]
    knobs = []
    if own in legal and len(legal) > 1 and case.takes("attention_backend", own):  # by these names
        others = [name for name in legal if name != own and case.takes("attention_backend", name)]
        why = f"{own} is what {case.engine.title} takes for this model on {_generation(gpu)}; "
        why += f"{_listed(others)} can beat it for some heads, batches and lengths"
        knobs.append(_Knob("attention_backend", [own, *others], own, why))
    paged = [name for name in legal if _legal(case, attention_backend=name, page_size=_PAGE)]
    if paged:
        why = f"KV in pages of {_PAGE} tokens reads in longer pieces, and shares a prefix in whole pages only"
        names = " or ".join(f'attention_backend == "{name}"' for name in paged)
        when = names if knobs and len(paged) < len(legal) else ""
        first = OWN_CHOICE if not when or own in paged else None
        knobs.append(_Knob("page_size", [OWN_CHOICE, _PAGE], first, why, when))
    knobs += _runner_knobs(case)
    if not knobs:
        return _Skipped(f"{_listed(legal) or own} is the only attention back end for this model on {gpu.name}")
    remarks: tuple[str, ...] = ()
    if case.model.kv_dtype != "fp8" and "fp8" in gpu.flops and case.has("kv_cache_dtype"):
        text = "half the KV cache, and other answers: try it once you can say what accuracy may be lost (`questions`)"
        remarks = (text, "kv_cache_dtype: [auto, fp8_e4m3]")
    return _Stage(
        f"Which kernels are fastest for {case.layout}?",
        tuple(knobs),
        "Kernels see the shapes of one rank, which the layout made; their buffers move the memory edge, which is next.",
        min(12, math.prod(len(knob.values) for knob in knobs)),
        remarks=remarks,
    )


_PAGE = 64
# Kernels of experts besides the engine's own choice, by what the weights are in, on GPUs of a generation: read in
# layers/quantization of SGLang 0.5.23. Its own choice is triton (DeepGEMM under DeepEP) on Hopper.
_RUNNERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("hopper", "fp8"): ("deep_gemm",),
    ("hopper", "bf16"): ("triton_kernel",),
    ("blackwell", "fp8"): ("triton", "deep_gemm", "flashinfer_trtllm"),
    ("blackwell", "fp4"): ("flashinfer_trtllm", "flashinfer_cutlass"),
    ("blackwell", "bf16"): ("triton", "flashinfer_cutlass"),
}


def _runner_knobs(case: _Case) -> Iterator[_Knob]:
    known = _RUNNERS.get((case.cluster.gpu.generation, case.model.weights_dtype), ())
    if case.model.experts is None or not known or not case.shows("moe_runner_backend") or uses_deepep(case.layout):
        return  # under DeepEP the kernels follow from it
    switch = case.engine.simulated_routing
    around = switch.around if switch is not None and case.dummy else ()
    taken = [name for name in known if case.takes("moe_runner_backend", name)]
    values = [name for name in taken if name not in around]
    if not values:
        return
    what = f"{case.model.weights_dtype} on {_generation(case.cluster.gpu)}"
    why = f"experts are most of the weights: kernels for {what} besides the engine's own choice"
    if len(values) < len(taken):
        why += (
            f"; without {', '.join(n for n in taken if n in around)}, which route dummy weights' tokens by themselves"
        )
    yield _Knob("moe_runner_backend", [OWN_CHOICE, *values], OWN_CHOICE, why)


def _generation(gpu: Gpu) -> str:
    """As people write it: Hopper, but CDNA4."""
    return gpu.generation.upper() if gpu.is_amd else gpu.generation.title()


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _legal(case: _Case, **changed: Value) -> bool:
    settings = replace(case.settings, **changed)  # type: ignore[arg-type]
    if layout_problems(case.model, case.layout, case.cluster.gpu, settings, case.role):
        return False
    return case.engine.refusal(case.model, {**case.values, **changed}, Install(), case.base.version) is None


def _memory_knob(case: _Case) -> str:
    return case.engine.flags.called(case.engine.memory_flag.removeprefix("--").replace("-", "_"))


_ROOMY = 0.7  # share of a KV pool up to which a larger one changed nothing, in the twin and in logs


def _edge(plan: MemoryPlan) -> float:
    """The largest fraction with room for all that runs beside the KV pool, by the memory plan; above 1 where any has,
    since the engine keeps a share of it."""
    return math.floor(100 * (1 - sum(plan.needs.values()) / plan.free_bytes) / plan.kept_share) / 100


def _memory_stage(case: _Case) -> _Stage | _Skipped:
    plan, at_once = case.planned(), case.at_once
    if at_once is not None:
        most = sum(case.request_tokens[: min(at_once, plan.max_running_requests)])
        if most <= _ROOMY * plan.kv_tokens:
            return _Skipped(
                f"all {at_once:,} requests at once need {most:,} tokens of a KV pool of {plan.kv_tokens:,}: more of it "
                "changes nothing"
            )
    now, edge = plan.mem_fraction, _edge(plan)
    least = (plan.weight_bytes + 0.5 * GIB) / plan.free_bytes / plan.kept_share
    own = max(math.ceil(100 * least), math.floor(100 * now)) / 100
    low = max(math.ceil(100 * least) / 100, min(own, edge - 0.04))
    high = min(0.97, max(own, edge) + 0.04)
    values = [hundredths / 100 for hundredths in range(round(100 * low), round(100 * high) + 1)]
    knob = _memory_knob(case)
    why = f"{edge:g} leaves just what running needs beside weights and KV pool"
    if edge >= 1:
        why = f"any fraction leaves what running needs: {case.engine.title} keeps {plan.kept_share:.0%} of it "
        why += f"with {plan.backend}"
    why = f"by the memory plan, {why}; the plan may miss by some hundredths. {case.engine.title} itself takes "
    why += f"{plan.engine_fraction:g}"
    return _Stage(
        "How much of a GPU may weights and KV pool take?",
        (_Knob(knob, values, own, why),),
        "A larger pool runs more requests at once, and one step too far dies under load. Batch and graphs come after "
        "it: they live on what it leaves.",
        8,
        remarks=(
            f"`ridgeline study edge FILE --knob {knob}` finds the last safe value with fewer crashes; its folder goes "
            f"into {AFTER}= as well",
        ),
    )


def _powers(low: float, high: float) -> list[int]:
    first, last = (max(0, round(math.log2(max(1.0, end)))) for end in (low, high))
    return [2**power for power in range(first, last + 1)]


def _batch_stage(case: _Case) -> _Stage | _Skipped:
    plan, share, applied = case.planned(), case.share, case.applied
    mean = sum(case.request_tokens) / len(case.request_tokens)
    room = plan.kv_tokens / mean
    top = 2 ** math.ceil(math.log2(max(share, min(room, case.at_once or room), 2)))
    own = case.settings.max_running_requests or applied.running_limit
    running = sorted({own, *(n for n in _powers(top / 8, top) if n >= share)})
    fitting = [n for n in running if case.planned(max_running_requests=n).fits]
    start = own if own in fitting or not fitting else fitting[-1]
    why = f"the KV pool holds about {room:,.0f} requests of {mean:,.0f} tokens: more are taken back and done again, "
    why += "fewer leave the GPU idle" + (
        f". Of the whole engine: each of {share} groups and stages has its part" * (share > 1)
    )
    if start != own:
        why += f". {case.engine.title}'s own {own:,} may run out of memory, by the plan: {start:,} is where to start"
    knobs = [_Knob("max_running_requests", running, start, why)]
    rules: list[tuple[str, str]] = []
    graphs = [applied.graph_max_bs]
    if applied.graph_max_bs and not graphless(case.layout, case.role, case.base.version) and case.role != "prefill":
        largest = min(max(1, top // share), 1024)
        graphs = sorted({applied.graph_max_bs, *_powers(max(1, largest / 8), largest)})
        why = "the largest captured batch of a rank: beyond it the host leads, below it graphs hold memory for nothing"
        knobs.append(_Knob("cuda_graph_max_bs", graphs, applied.graph_max_bs, why))
        part = f"max_running_requests // {share}" if share > 1 else "max_running_requests"
        unused = f"cuda_graph_max_bs > {part} and cuda_graph_max_bs != {applied.graph_max_bs}"
        rules.append((unused, "a graph for more requests than may run is captured for nothing"))
    chunk = applied.chunk_tokens // case.layout.pp
    if case.role != "decode":
        why = "prompt tokens of a step: larger ones fill the GPU, and keep running requests waiting"
        why += f"; {case.layout.attn_dp} attention groups share it" * (case.layout.attn_dp > 1)
        sizes = (chunk // 2, chunk, 2 * chunk)
        chunks = [n for n in sizes if case.planned(chunked_prefill_size=n).verdict != STARTUP_OOM]
        if len(chunks) > 1:
            knobs.append(_Knob(case.engine.step_knob, chunks, min(chunk, chunks[-1]), why))
    if case.has("disable_radix_cache") and (not case.paced or case.role != "both"):
        why = "no prompt of this traffic comes twice: the prefix cache finds nothing, and looking costs a little"
        knobs.append(_Knob("disable_radix_cache", [False, True], not case.settings.radix_cache, why))
    most = case.planned(max_running_requests=running[-1], cuda_graph_max_bs=graphs[-1], chunked_prefill_size=2 * chunk)
    knobs += _given_back(case, most, "the largest batch, graphs and chunk")
    return _Stage(
        "How many requests at once, captured up to which batch, with prompts in which chunks?",
        tuple(knobs),
        "They go together: a limit without graphs waits for the host, graphs beyond the limit hold memory for nothing.",
        20,
        rules=tuple(rules),
    )


def _given_back(case: _Case, plan: MemoryPlan, what: str) -> Iterator[_Knob]:
    """The memory fraction again, where what a stage adds would not fit beside what is confirmed."""
    now, edge = case.planned().mem_fraction, _edge(plan)
    if edge < now and edge * plan.kept_share * plan.free_bytes > plan.weight_bytes + GIB:
        why = f"{what} need memory that {now:g} does not leave: {edge:g} gives it back"
        own: Value = case.settings.mem_fraction or OWN_CHOICE
        yield _Knob(_memory_knob(case), [own, edge], own, why)


def _draft_stage(case: _Case) -> _Stage | _Skipped:
    draft, layers = case.given.get("draft"), case.shipped.draft_layers
    if not case.has("speculative_algorithm"):
        return _Skipped(f"{case.engine.title} takes all of its drafts in one argument, which is no knob yet")
    if draft is None and not layers:
        return _Skipped(f"{case.shipped.name} has no layers that draft, and no draft model is given (draft=)")
    if case.dummy and "accept_length" not in case.given:
        return _Skipped("dummy weights keep no draft; say how many real ones keep (accept_length=), or tune with them")
    own, usual = case.engine.draft_algorithms
    algorithm = case.given.get("algorithm", usual) if draft else own
    drafting = replace(case.settings, draft_tokens=2, draft_method=algorithm)
    if problems := layout_problems(case.model, case.layout, case.cluster.gpu, drafting, case.role):
        return _Skipped(f"{problems[0]}")
    if case.role == "prefill":
        return _Skipped("a prefill engine makes one token")
    on = f'speculative_algorithm != "{OWN_CHOICE}"'
    whose = (
        f"{draft} drafts"
        if draft
        else f"{layers} layer{'s' if layers > 1 else ''} of the model draft{'s' * (layers == 1)}"
    )
    kept = parse_acceptance(case.given["accept_length"]) if "accept_length" in case.given else None
    steps = [n for n in ((1, 2, 3, 5) if draft else (1, 2, 3)) if kept is None or n + 1 >= (kept.fixed or 0)]
    if not steps:
        return _Skipped(f"an accept length of {case.given['accept_length']} needs longer chains than pay")
    knobs = [
        _Knob("speculative_algorithm", [OWN_CHOICE, algorithm], OWN_CHOICE,
              f"{whose}: tokens for one request cost a step of many, and pay where batches leave the GPU idle"),
        _Knob("speculative_num_steps", steps, None,
              f"tokens drafted one after the other; each later one is kept less often{_kept(case, steps[-1])}", on),
    ]  # fmt: skip
    knobs += _given_back(case, case.planned(draft_tokens=steps[-1] + 1), "the draft's weights and cache")
    derived = [
        ("speculative_eagle_topk", f'1 if {on} else "{OWN_CHOICE}"',
         "one chain: trees of drafts pay for single users, and rule out page sizes and overlapped steps"),
        ("speculative_num_draft_tokens", f'speculative_num_steps + 1 if {on} else "{OWN_CHOICE}"',
         "of a chain, every drafted token and the one that the model itself makes"),
    ]  # fmt: skip
    if draft:
        derived.append(("speculative_draft_model_path", f'"{beside(draft)}" if {on} else "{OWN_CHOICE}"', ""))
    derived = [each for each in derived if case.has(each[0])]
    return _Stage(
        "Do drafted tokens pay, and how many of them?",
        tuple(knobs),
        "It comes after batch and memory: a draft takes memory from the pool, and pays less the fuller a batch is.",
        6,
        tuple(derived),
    )


def _kept(case: _Case, steps: int) -> str:
    """What is known of it, in brackets; nothing where the study itself says how many are kept."""
    if "accept_length" in case.given:
        return ""
    drafts = replace(case.settings, draft_tokens=steps + 1)
    return f" ({acceptance_assumed(case.shipped, drafts).partition(';')[0]})"


def _network_stage(case: _Case) -> _Stage | _Skipped:
    if case.kind == _TWIN:
        return _Skipped("the twin knows no algorithms of NCCL")
    if case.cluster.nodes == 1:
        return _Skipped("NCCL has no choice inside a node that pays")
    return _Stage(
        "Does NCCL choose well between these nodes?",
        (
            _Knob("NCCL_ALGO", [OWN_CHOICE, "Tree", "Ring"], OWN_CHOICE,
                  "trees have the shorter way for small messages, rings the fuller links for large ones"),
            _Knob("NCCL_PROTO", [OWN_CHOICE, "LL128", "Simple"], OWN_CHOICE,
                  "LL128 answers sooner, Simple carries more; NCCL's own choice is usually right"),
        ),
        "It comes late: the sizes of messages are those of layout and batch.",
        8,
    )  # fmt: skip


def _proof_stage(case: _Case) -> _Stage | _Skipped:
    start = replace(case, confirmed={})
    first: dict[str, Value] = dict(_layout_values(_usual(start)))
    found = {name: value for name, value in case.confirmed.items() if first.get(name, OWN_CHOICE) != value}
    if not found:
        return _Skipped("nothing was better than what the engine does by itself")
    changed = {name: (first.get(name, 1 if name in _LAYOUT else OWN_CHOICE), value) for name, value in found.items()}
    changed |= {name: (value, 1) for name, value in first.items() if name not in case.confirmed and value != 1}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    knobs = tuple(_Knob(name, list(pair), pair[0], "") for name, pair in changed.items())
    return _Stage(
        f"What did all stages bring together over {case.engine.title}'s own choice?",
        knobs,
        "Gains of stages do not add up, so that the whole is measured against the start in fresh pairs of runs. "
        "`ridgeline study steps` then has the gain of each change.",
        1,
        preset={name: pair[1] for name, pair in changed.items()},
    )


_STAGES: Mapping[str, Callable[[_Case], _Stage | _Skipped]] = {
    "layout": _layout_stage,
    "back-ends": _backend_stage,
    "memory": _memory_stage,
    "batch": _batch_stage,
    "drafts": _draft_stage,
    "network": _network_stage,
    "proof": _proof_stage,
}
_LAST = list(_STAGES)[-1]
