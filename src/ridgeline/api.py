"""The Python API: the same campaigns, twin and load generator as the command line, with typed results.

Names here are `ridgeline.tune` and so on. Errors are `ridgeline.errors.RidgelineError`, with the message that the
command line would print. Nothing prints unless it is asked to.
"""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ridgeline.campaign.assembly import assemble_campaign, assemble_next_folder, assemble_or_resume
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.engine import Campaign
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.compare import comparison
from ridgeline.campaign.kinds.extension import parse_extension
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.status import CampaignStatus, pasted_answer, read_status
from ridgeline.campaign.verify.folder import verify_folder
from ridgeline.campaign.verify.verification import Verification
from ridgeline.catalog import USUAL_ENGINE
from ridgeline.engines.deployment import describe
from ridgeline.engines.layout import Layout
from ridgeline.engines.settings import EngineSettings, parse_engine
from ridgeline.errors import InputError
from ridgeline.files import write_whole
from ridgeline.planner.planner import Plan, answer_plan
from ridgeline.records.answer import Answer, Gain
from ridgeline.records.study import DEFAULT_SAMPLER, Study
from ridgeline.report.drawing.draw import draw
from ridgeline.report.figures.shapes import (
    BarFigure,
    Figure,
    FigureGroup,
    HeatFigure,
    IntervalFigure,
    ParallelFigure,
    PlotFigure,
)
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page, write_report
from ridgeline.report.parts import Fold, Part, Section
from ridgeline.report.sections import Findings, sections
from ridgeline.report.table import Row, rows
from ridgeline.study.codec import Extension
from ridgeline.study.folder import ORIGIN, SOURCES, STUDY, StudyFolder
from ridgeline.study.yaml_tree import resolve
from ridgeline.traffic.requests import Slo
from ridgeline.traffic.traffic import parse_traffic
from ridgeline.twin.calibration import read_calibration
from ridgeline.twin.simulate import SimulationResult
from ridgeline.twin.simulate import simulate as simulate_deployment
from ridgeline.workloads.function_source import function_source

if TYPE_CHECKING:
    from ridgeline.load.bench import BenchResult

# sections of the report that a notebook shows of a result by itself
_SHOWN = ("verdict", "setting", "proof", "progress")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the report: `svg` is its drawing; notebooks show it."""

    title: str
    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class StudyResult:
    """A study folder as it was when this was made. `open` the folder again to see what has happened since."""

    folder: Path

    def __post_init__(self) -> None:
        _ = self._status

    @cached_property
    def _status(self) -> CampaignStatus:
        return read_status(self.folder)

    @property
    def study(self) -> Study:
        """The study as it was read from the folder."""
        return self._status.study

    @cached_property
    def answer(self) -> Answer:
        """Verdict, candidate and interval, and the text to paste."""
        return pasted_answer(self._status)

    @property
    def best(self) -> dict[str, Any] | None:
        """The setting to use; None where the reference is to be kept, and where there is no answer: `answer.candidate`
        is then the best so far, which nothing has confirmed."""
        candidate = self.answer.candidate
        return None if candidate is None or self.answer.lacks or not self.answer.offers else dict(candidate.settings)

    def __bool__(self) -> bool:
        """Whether there is an answer to act on: what `ridgeline best` leaves with exit code 0 for."""
        return not self.answer.lacks

    @property
    def confirmed(self) -> bool:
        """Whether the best setting was shown to be better in fresh, interleaved runs."""
        return self.answer.confirmed

    @property
    def gain(self) -> Gain | None:
        """The best setting over the reference, as a ratio with its interval; above 1 is better."""
        return None if self.answer.candidate is None else self.answer.candidate.gain

    @property
    def is_over(self) -> bool:
        """Whether the campaign has its verdict or was stopped for good."""
        return self._status.is_over

    @cached_property
    def runs(self) -> list[Row]:
        """One mapping a run, oldest first: settings as `set.NAME`, measurements as `got.NAME`, outcome, times."""
        return rows(self._status.history, self.answer)

    def to_pandas(self) -> Any:
        """`runs` as a data frame; needs pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas, which is not installed here: `pip install pandas`") from None
        return pandas.DataFrame(self.runs)

    @cached_property
    def figures(self) -> dict[str, DrawnFigure]:
        """The figures of the report by title, in its order."""
        return {each.title: DrawnFigure(each.title, draw(each)) for part in self._parts() for each in _figures(part)}

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the report and says where: `report.html` of the study folder by default."""
        now = self._status
        where = StudyFolder(self.folder).report_path if out is None else Path(out)
        return write_report(Findings(now.study, now.history, self.answer, now.exhibits), where)

    def verify(self) -> Verification:
        """Recomputes every number from the raw files; `mismatches` is empty where all of them hold."""
        return verify_folder(self.folder)

    def resume(
        self,
        *,
        trials: int | None = None,
        blocks: int | None = None,
        wall: str | None = None,
        node_hours: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> StudyResult:
        """Continues a campaign that was stopped, or extends a finished one by this many trials or blocks."""
        more = parse_extension(
            None if trials is None else f"+{trials}",
            None if blocks is None else f"+{blocks}",
            wall,
            None if node_hours is None else f"{node_hours}",
        )
        _run(StudyFolder.open(self.folder), None, progress, more)
        return StudyResult(self.folder)

    def _sections(self) -> list[Section]:
        now = self._status
        return sections(Findings(now.study, now.history, self.answer, now.exhibits))

    def _parts(self) -> list[Part]:
        return [part for section in self._sections() for part in section.parts]

    def _repr_html_(self) -> str:
        shown = [each for each in self._sections() if each.key in _SHOWN]
        pieces = whole_page(self.study.name, self.study.question, shown, Folders(self._status.history.root, None))
        page = b"".join(pieces).decode(errors="replace")
        # a page of its own: its style would otherwise be that of the whole notebook
        frame = "sandbox width=100% height=600 style='border:0' title='Ridgeline report'"
        return f'<iframe {frame} srcdoc="{escape(page, quote=True)}"></iframe>'

    def __str__(self) -> str:
        return f"{self.study.name}: {self.answer.statement}"


def _figures(part: Part) -> list[Figure]:
    if isinstance(part, Fold):
        return [figure for inner in part.parts for figure in _figures(inner)]
    if isinstance(part, FigureGroup):
        return list(part.figures)
    drawn = (PlotFigure, IntervalFigure, BarFigure, HeatFigure, ParallelFigure)
    return [part] if isinstance(part, drawn) else []


def open(folder: str | Path) -> StudyResult:
    """The study folder that a campaign wrote, running or finished. Nothing that it names is started."""
    return StudyResult(StudyFolder.open(Path(folder)).path)


def tune(
    study: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    trials: int | None = None,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> StudyResult:
    """Runs a study's campaign to its verdict: baseline, search, confirmation.

    `study` is the path of a study file, or its content as a mapping; there `workload` may be a Python function, which
    is written down with what it uses. `out` is the study folder, studies/NAME by default; one that was stopped goes on
    where it was, one that is finished is answered from, and one of another study or function is refused. `progress` is
    called with a line about every finished run.
    """
    question = SearchQuestion(trials, seed, DEFAULT_SAMPLER)
    with _Given(study) as given:
        path = Path(out) if out is not None else Path("studies") / given.found.study.name
        folder, asked = assemble_or_resume(given.found, path, given.found.study.name, question, whole=True)
        given.settle(folder)
    _run(folder, asked, progress)
    return StudyResult(folder.path)


def compare(
    study: str | Path | Mapping[str, Any],
    b: Mapping[str, Any],
    a: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    blocks: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> StudyResult:
    """Two settings of a study in fresh, interleaved runs. `b` changes `a`, which is the baseline unless it is given."""
    with _Given(study) as given:
        found = given.found
        question = comparison(found, a or "baseline", b, blocks)
        where = None if out is None else Path(out)
        folder = assemble_next_folder(found, where, f"{found.study.name}-compare", question)
        given.settle(folder)
    _run(folder, question, progress)
    return StudyResult(folder.path)


_WHAT_A_STUDY_IS = (
    "give the path of a study file, or a mapping such as {'name': 'blur', 'workload': function, 'space': {'block': "
    "[16, 32]}, 'goal': {'maximize': 'rate'}, 'baseline': {'block': 16}}"
)


class _Given:
    """A study that was given, read and checked; of a mapping there is a file while it lasts."""

    def __init__(self, study: str | Path | Mapping[str, Any]) -> None:
        self._study = study
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> _Given:
        if not isinstance(self._study, str | Path | Mapping):
            raise InputError(f"{self._study!r} is not a study: {_WHAT_A_STUDY_IS}")
        if not isinstance(self._study, Mapping):
            self.found: CheckedStudy = check_study(Path(self._study))
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="ridgeline-study-")
        home, content = Path(self._folder.name), {"version": 1, **self._study}
        files = Path.cwd()
        if callable(content.get("workload")):
            name, source = function_source(content["workload"])
            (home / "objective.py").write_text(source)
            content["workload"], files = {"kind": "python", "file": "objective.py", "function": name}, home
        path = home / STUDY
        path.write_text(_study_text(content))
        self.found = check_study(path, files=files, home=Path.cwd())
        return self

    def settle(self, folder: StudyFolder) -> None:
        """A function's file has no place but the study folder's sources: what is pasted begins there."""
        if self.found.study.folder == Path(self._folder.name if self._folder else "").resolve():
            write_whole(folder.path / ORIGIN, f"{(folder.path / SOURCES).absolute()}\n")

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


class _StudyDumper(yaml.SafeDumper):
    """YAML that our reader, which is one of YAML 1.2, reads back as it was: the text 1e3 stays text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: _StudyDumper, text: str) -> yaml.Node:
    plain = isinstance(resolve(text), str) and text != "<<"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


def _represent_float(dumper: _StudyDumper, number: float) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(number) if math.isfinite(number) else f"{number}")


_StudyDumper.add_representer(str, _represent_text)
_StudyDumper.add_representer(float, _represent_float)
_StudyDumper.add_representer(tuple, yaml.SafeDumper.represent_list)


def _study_text(content: Mapping[str, Any]) -> str:
    try:
        return yaml.dump(dict(content), Dumper=_StudyDumper, sort_keys=False)
    except yaml.YAMLError as error:
        raise InputError(
            f"the study holds something that no study file can ({error}); use numbers, text, true or false, lists and "
            "mappings"
        ) from None


def _run(
    folder: StudyFolder,
    question: CampaignQuestion | None,
    progress: Callable[[str], None] | None,
    extension: Extension | None = None,
) -> None:
    seen = [0]

    def tell(campaign: Campaign) -> None:
        runs = list(campaign.history.runs.values())
        for run in runs[seen[0] :]:
            trial = campaign.history.trials[run.trial]
            value = run.metrics.get(campaign.study.goal.metric)
            got = "" if value is None else f", {campaign.study.goal.metric} {value:g}"
            assert progress is not None
            progress(f"run {run.number}, {trial.stage.text}: {run.outcome}{got}")
        seen[0] = len(runs)

    with assemble_campaign(folder, question, tell if progress else lambda campaign: None, extension=extension) as it:
        seen[0] = len(it.history.runs)
        it.run()


def simulate(
    model: str,
    gpu: str,
    traffic: str = "sharegpt",
    *,
    layout: Layout | None = None,
    settings: EngineSettings | None = None,
    engine: str = USUAL_ENGINE,
    requests: int | None = None,
    rate_s: float | None = None,
    concurrency: int | None = None,
    slos: Sequence[str] = (),
    calibration: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> SimulationResult:
    """Throughput and latency of a layout under some traffic, predicted.

    `Layout` and `EngineSettings` are in `ridgeline.api`; `options` are those of a deployment: fabric, dtype, kv_dtype,
    routing, prefill_groups, decode_groups.
    """
    chosen = parse_engine(engine, settings or EngineSettings())
    deployment = describe(model, gpu, layout or Layout(), chosen, **options)
    sent = parse_traffic(traffic, requests=requests, rate_s=rate_s, concurrency=concurrency, seed=seed)
    fitted = read_calibration(Path(calibration)) if calibration else None
    return simulate_deployment(deployment, sent, fitted, [Slo.parse(text) for text in slos])


def plan(
    model: str,
    gpu: str,
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    traffic: str = "sharegpt",
    rate_s: float | None = None,
    concurrency: int | None = None,
    slos: Sequence[str] = (),
    engine: str = USUAL_ENGINE,
    top: int = 8,
    **options: Any,
) -> Plan:
    """Ways to serve a model on given GPUs within latency limits, best first. `options` as of `ridgeline plan`: fabric,
    requests, attention_backend, dtype, kv_dtype, calibration, seed."""
    return answer_plan(
        model, gpu, nodes, gpus_per_node, traffic,
        rate_s=rate_s, concurrency=concurrency, slos=slos, engine=engine, top=top, **options,
    )  # fmt: skip


def bench(url: str, **options: Any) -> BenchResult:
    """Loads a server and measures it. `options` are those of `ridgeline bench`, as `BenchOptions` spells them:
    concurrency, rate_s, requests, duration_s, traffic, slos, model, ..."""
    from ridgeline.load.bench import BenchResult
    from ridgeline.load.session import BenchOptions, plan_from, run_session

    options |= {name: tuple(options[name]) for name in ("slos", "headers") if name in options}
    asked = plan_from(BenchOptions(url, **options))
    found = run_session(asked, goodput=None, grid=None, progress=lambda part: None).found
    assert isinstance(found, BenchResult), "neither a sweep nor a search was asked for"
    return found
