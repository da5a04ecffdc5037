"""The keys of the engine workloads, and how they become their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema

from ridgeline.errors import InputError, Problem
from ridgeline.records.expression import Value
from ridgeline.records.template import field_names
from ridgeline.serving.engines.behaviour import CURVE_NAMES, parse_acceptance, parse_routing
from ridgeline.serving.engines.install import Install
from ridgeline.serving.engines.releases import parse_version
from ridgeline.serving.hardware.cluster import load_gpu
from ridgeline.serving.load.questions import read_questions
from ridgeline.serving.traffic.requests import Slo
from ridgeline.serving.workloads.engine.options import (
    EngineOptions,
    Load,
    Questions,
    absolute,
    engine_model,
    has_tokenizer,
    install_from_text,
    placed,
    placed_model,
    recorded_model,
)
from ridgeline.stats.accuracy import accuracy_change, questions_needed
from ridgeline.study.forms import (
    TEXT_OR_MAPPING,
    Accepts,
    DefaultText,
    Duration,
    Entry,
    Environment,
    FileBeside,
    Form,
    Lines,
    Single,
    Text,
    ValueUnit,
    accepted_by,
    read_form,
)

REQUESTS, _INPUT_TOKENS, _OUTPUT_TOKENS = 1000, 1024, 128


class TrafficForm(Form):
    """What users send."""

    whose = "traffic"
    dataset: Annotated[
        Text,
        Accepts(
            "sharegpt, sharegpt:IN:OUT, fixed:IN:OUT, uniform:800-1000:100-200, "
            "lognormal:IN:OUT[:SIGMA], sessions:agent, sessions:chat, or the name of a trace beside the study"
        ),
    ] = Field(default="sharegpt", description="Where the lengths of prompts and answers come from.")
    requests: Annotated[int | None, ValueUnit("requests"), DefaultText("1000; the twin takes all of a trace")] = Field(
        default=None, ge=1, description="How many are sent."
    )
    seed: int = Field(default=0, ge=0, description="Decides lengths, order and words.")
    input_tokens: Annotated[int | None, ValueUnit("tokens"), DefaultText("as `dataset` says")] = Field(
        default=None,
        ge=1,
        description=f"Tokens of every prompt, instead of `dataset`; {_INPUT_TOKENS} where only the other is given.",
    )
    output_tokens: Annotated[int | None, ValueUnit("tokens"), DefaultText("as `dataset` says")] = Field(
        default=None,
        ge=1,
        description=f"Tokens of every answer, instead of `dataset`; {_OUTPUT_TOKENS} where only the other is given.",
    )

    @property
    def text(self) -> str:
        """As typed after `ridgeline bench --traffic`."""
        if self.input_tokens is None and self.output_tokens is None:
            return self.dataset
        return f"fixed:{self.input_tokens or _INPUT_TOKENS}:{self.output_tokens or _OUTPUT_TOKENS}"


class InstallForm(Form):
    """Where an engine is installed."""

    python: Annotated[Text, DefaultText("python3")] = Field(default="", description="Its interpreter.")
    venv: Annotated[Text, DefaultText("none")] = Field(default="", description="Its virtual environment.")
    container: Annotated[Text, DefaultText("none")] = Field(default="", description="The image that it is in.")
    version: Annotated[Text, DefaultText("the study's `version`")] = Field(default="", description="Its release.")


_TrafficChoice = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TrafficForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("text such as fixed:1024:128, or a mapping with dataset, requests and seed"),
]
_InstallChoice = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[InstallForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("a path, or a mapping with python, venv or container, and version"),
]
_Limits = Annotated[
    list[Annotated[str, accepted_by(Slo.parse)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Accepts("a limit such as ttft_p95_ms=2000, or a list of them"),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


def _acceptance(said: Any) -> Any:
    try:
        return None if said is None else parse_acceptance(said)
    except InputError as error:
        raise ValueError(str(error)) from None


class EngineForm(Form):
    """A serving engine: each trial starts a fresh one, measures it, stops it, and proves what was applied.

    Knobs are the engine's flags in snake_case, environment variables in capitals, `engine` itself, and each
    GPU's `gpu_power_limit` (watts) and `gpu_clock` (MHz).
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"bake_into": "baked caches are kept as a folder; remove this"}
    model: Text = Field(
        description="A preset or, with dummy weights, a config.json (made on the node, no download), a folder "
        "(relative ones, ./models/x, start at the study file), or what the engine knows.",
        examples=["llama-8b"],
    )
    shape: Annotated[Text, DefaultText("read from `model`")] = Field(
        default="", description="The preset whose shape the model has, where `model` cannot be read here."
    )
    gpu: Annotated[Text, accepted_by(lambda name: load_gpu(name) if name else None), DefaultText("unknown")] = Field(
        default="",
        description="The GPU, one of `ridgeline plan hardware`, with limits as h200@500W@1500MHz; lets what cannot "
        "start be refused before anything runs.",
    )
    load_format: Annotated[Text | None, DefaultText("the engine's own choice")] = Field(
        default=None, description="How weights are loaded; `dummy` makes random ones."
    )
    experts: Annotated[
        Text,
        accepted_by(lambda text: parse_routing(text) if text else None),
        Accepts("uniform, zipf:1.2, normal or as-loaded"),
        DefaultText("uniform with dummy weights"),
    ] = Field(
        default="",
        description="Which experts tokens go to: what an engine with dummy weights is made to do, and what the twin "
        "takes for granted. SGLang can be made to do `uniform`, vLLM `normal` too, the twin all.",
    )
    accept_length: Annotated[
        Any,
        AfterValidator(_acceptance),
        Accepts("a length such as 2.4, a list of lengths by drafted tokens, or the name of a measured curve"),
        WithJsonSchema({"anyOf": [{"type": ["number", "string"]}, {"type": "array", "items": {"type": "number"}}]}),
        DefaultText("none is kept with dummy weights; the twin takes the model's measured curve"),
    ] = Field(
        default=None,
        description="How many tokens a verified step of speculative decoding keeps on average: what an engine with "
        f"dummy weights is made to do, and what the twin takes for granted. Curves: {', '.join(CURVE_NAMES)}.",
    )
    flags: Annotated[dict[str, Single], Accepts("a mapping of flags to values, such as {context_length: 16384}")] = (
        Field(default={}, description="Flags of the engine that are the same in every trial; knobs go before them.")
    )
    env: Environment = Field(default={}, description="Environment of the engine; {knob} fields allowed.")
    traffic: _TrafficChoice = Field(default=TrafficForm(), description="What is sent.")
    warmup: Annotated[int | None, ValueUnit("requests"), DefaultText("64, or as many as are measured")] = Field(
        default=None, ge=0, description="Unmeasured requests of other traffic before the measurement."
    )
    engine: Annotated[Text, DefaultText("python3")] = Field(
        default="",
        description="Where it is: a virtual environment, an interpreter (a path that ends in python, or a name on the "
        "node's PATH), an image (.sif), or a name of `engines`. Relative paths start at the study file; {knob} fields "
        "allowed, such as venvs/vllm-{release}, and {build}.",
    )
    engines: Annotated[dict[str, _InstallChoice], Entry("NAME"), Accepts("a mapping of names to installations")] = (
        Field(default={}, description="Installations by name, for the knob `engine`.")
    )
    version: Annotated[Text, DefaultText("read from the engine where it can be")] = Field(
        default="", description="The engine's release, such as 0.5.6; {knob} fields allowed."
    )
    ready_limit: Duration = Field(default=1800.0, description="An engine that is not ready by then has failed.")
    prepare: Annotated[Lines, DefaultText("none")] = Field(
        default=[],
        description="One-time steps: rehearse, bake; of SGLang also deepgemm, fused-moe, deepep, eplb.",
    )
    sources: Annotated[Text, DefaultText("none")] = Field(
        default="", description="A checkout of the engine's repository, for steps that are scripts of it."
    )
    launcher: Annotated[Text, DefaultText("the site's")] = Field(
        default="", description="What starts the engine on several nodes: none, openmpi, mpich, srun."
    )


class ServeForm(EngineForm):
    """How hard a server is loaded, and within which limits."""

    concurrency: Annotated[int | None, ValueUnit("requests"), DefaultText("`rate` is given")] = Field(
        default=None, ge=1, description="Closed loop: so many requests at once."
    )
    rate: Annotated[float | None, ValueUnit("requests a second"), DefaultText("`concurrency` is given")] = Field(
        default=None, gt=0, description="Open loop: requests arrive at this rate, whatever the server does."
    )
    burstiness: float = Field(
        default=1.0, ge=0, le=100, description="Of an open loop: 0 is constant, 1 is Poisson, above 1 is burstier."
    )
    slo: Annotated[_Limits, DefaultText("none")] = Field(
        default=[], description="Limits in milliseconds; goodput counts requests within all of them."
    )
    workers: Annotated[int, ValueUnit("processes")] = Field(
        default=1, ge=1, description="Processes of the load generator."
    )


class QuestionsForm(Form):
    """Questions with known answers; what a setting may lose against the baseline."""

    makes = Questions
    whose = "questions"
    file: FileBeside = Field(
        description="One JSON object a line: `prompt` or `messages`, and `answer`, `choices` and `answer`, or `match`."
    )
    allowed_loss: Annotated[float, ValueUnit("share of the questions")] = Field(
        gt=0, lt=1, description="A setting that is not shown to lose less than this against the baseline is refused."
    )
    max_tokens: Annotated[int, ValueUnit("tokens")] = Field(ge=1, description="Length limit of each answer.")
    most: Annotated[int | None, ValueUnit("questions"), DefaultText("all of the file")] = Field(
        ge=1, description="Ask at most so many."
    )
    scorer: Annotated[FileBeside | Literal[""], DefaultText("by the keys of each question")] = Field(
        description="A program beside the study that reads {question, answer} lines and prints 1 or 0 for each."
    )


_QuestionsChoice = Annotated[
    Annotated[FileBeside, Tag("<text>")] | Annotated[QuestionsForm, Tag("<mapping>")],
    TEXT_OR_MAPPING,
    Accepts("the name of a file beside the study, or a mapping with file, allowed_loss, max_tokens, most and scorer"),
]


class RealServeForm(ServeForm):
    """A serving engine under load, with the keys of the offline kind and these."""

    alone: Annotated[Literal["prefill", "decode"] | None, DefaultText("both, as users have it")] = Field(
        default=None,
        description="Measure one half of serving on its own, as a server of a split role does it: prefill asks for one "
        "token of each answer, decode (SGLang) starts as if every prompt's KV had come.",
    )
    questions: Annotated[_QuestionsChoice | None, DefaultText("none")] = Field(
        default=None,
        description="Questions with known answers, asked after the measured load: no setting wins by being wrong.",
    )
    perplexity: Annotated[FileBeside | None, DefaultText("none")] = Field(
        default=None,
        description="A text beside the study whose perplexity under the server's log probabilities is measured.",
    )


class OfflineForm(EngineForm):
    """A serving engine's own offline benchmark: everything is sent at once."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **EngineForm.elsewhere,
        **dict.fromkeys(
            ("concurrency", "rate", "burstiness", "slo", "workers", "alone", "questions", "perplexity"),
            "an offline run sends everything at once; use the serve kind",
        ),
    }


def read_options(
    given: Mapping[str, object],
    folder: Path,
    *,
    serves: bool,
    home: Path | None = None,
    recorded: Mapping[str, object] | None = None,
) -> EngineOptions:
    """`folder` holds the study's files; names of what is never copied start in `home`, by default the same."""
    home = home or folder
    form, problems = read_form(RealServeForm if serves else OfflineForm, given, folder, ("workload",))
    if serves and given.get("concurrency") is None and given.get("rate") is None:
        how = "say how hard to load: concurrency (requests at once) or rate (a second)"
        problems.append(Problem(("workload",), how))
    if form.version and not field_names(form.version) and not parse_version(form.version):
        how = "write it as 0.5.15, or leave it out where the engine can be asked"
        problems.append(Problem(("workload", "version"), f"{form.version!r} is no release; {how}"))
    load, unused = _load(form, folder), tuple[str, ...]()
    try:
        unused = load.recipe(paced=serves).notes
    except InputError as error:
        problems.append(Problem(("workload", "traffic"), str(error)))
    flags = _flags(form, home)
    dummy = flags.get("load_format") == "dummy"
    seen = recorded_model(recorded)
    model = seen.path if seen else engine_model(form.model or "", home, dummy=dummy)
    wrong = ""
    if model.endswith(".json") and not dummy:
        wrong = "an engine loads a folder with weights; name that, or add `load_format: dummy` to serve this shape"
    elif (
        (Path(model) / "config.json").is_file()
        and not has_tokenizer(model)
        and not any("tokenizer" in name for name in flags)
    ):
        wrong = (
            "has a config.json and no tokenizer, without which no engine starts; copy the model's tokenizer files "
            "beside it, or add `load_format: dummy` to serve this shape with a made one"
        )
    if wrong:
        problems.append(Problem(("workload", "model"), f"{form.model}: {wrong}"))
    questions, text = None, ""
    if isinstance(form, RealServeForm):
        questions, text = _questions(form, folder), str(folder / form.perplexity) if form.perplexity else ""
        if questions is not None and Path(questions.file).is_file() and (doubt := _question_doubt(questions)):
            problems.append(Problem(("workload", "questions"), doubt))
    engines = {name: _install(entry, form.version, home) for name, entry in form.engines.items()}
    return EngineOptions(
        model=model,
        shape=seen.shape if seen else placed_model(form.shape, home),
        gpu=form.gpu,
        launcher=form.launcher,
        flags=flags,
        env=form.env,
        load=load,
        unused=unused,
        experts=form.experts,
        acceptance=form.accept_length,
        questions=questions,
        perplexity=text,
        engine=form.engine,
        version=form.version,
        engines=engines,
        ready_limit_s=form.ready_limit,
        prepare=tuple(form.prepare),
        sources=absolute(form.sources, home) if form.sources else "",
        home=home,
        problems=tuple(problems),
        recorded=recorded,
        config=seen.config if seen else "",
    )


def _flags(form: EngineForm, home: Path) -> dict[str, Value]:
    """Those of every trial; a value that begins with ./ or ../ is a path beside the study, such as a draft model's."""
    flags: dict[str, Value] = {
        name: absolute(value, home) if isinstance(value, str) and value.startswith(("./", "../", "~/")) else value
        for name, value in form.flags.items()
    }
    if form.load_format is not None:
        flags.setdefault("load_format", form.load_format)
    return flags


def _load(form: EngineForm, folder: Path) -> Load:
    """What is sent, with a trace beside the study by its full path."""
    traffic = TrafficForm(dataset=form.traffic) if isinstance(form.traffic, str) else form.traffic
    trace = folder / traffic.text
    load = Load(
        traffic=str(trace.absolute()) if trace.is_file() else traffic.text,
        requests=REQUESTS if traffic.requests is None else traffic.requests,
        seed=traffic.seed,
        warmup=form.warmup,
    )
    if not isinstance(form, ServeForm):
        return load
    return replace(
        load,
        concurrency=form.concurrency,
        rate_s=form.rate,
        burstiness=form.burstiness,
        slos=tuple(form.slo),
        workers=form.workers,
        alone=(form.alone or "") if isinstance(form, RealServeForm) else "",
    )


def _questions(form: RealServeForm, folder: Path) -> Questions | None:
    if form.questions is None:
        return None
    if isinstance(form.questions, str):
        return Questions(str(folder / form.questions))
    made: Questions = form.questions.record()
    return replace(made, file=str(folder / made.file), scorer=str(folder / made.scorer) if made.scorer else "")


def _question_doubt(questions: Questions) -> str:
    """Why they cannot be asked; empty where they can."""
    try:
        count = len(read_questions(Path(questions.file), scored=bool(questions.scorer))[: questions.most])
    except InputError as error:
        return str(error)
    if accuracy_change(count, 0, 0, count, questions.allowed_loss).decision == "kept":
        return ""
    return (
        f"{count} questions cannot rule out a loss of {questions.allowed_loss:.2g}, even where no answer changes; "
        f"about {questions_needed(questions.allowed_loss)} can, or allow more with `allowed_loss`"
    )


def _install(entry: str | InstallForm, version: str, home: Path) -> Install:
    if isinstance(entry, str):
        return install_from_text(entry, version, home)
    python = f"{absolute(entry.venv, home)}/bin/python" if entry.venv else placed(entry.python, home) or "python3"
    image = entry.container if "://" in entry.container or not entry.container else absolute(entry.container, home)
    return Install(python, image, entry.version or version)
