"""The Python API: the same campaigns, twin and load generator as the command line, with typed results.

Names here are `ridgeline.tune` and so on. Errors are `ridgeline.errors.RidgelineError`, with the message that the
command line would print. A campaign shows its progress on stderr of a terminal or a notebook (`progress=False`: not).
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from ridgeline import catalog
from ridgeline.campaign.asked import Gate, bisecting, comparing, edge_of, scaling, steps_to
from ridgeline.campaign.assembly import Asked, assemble_campaign, assemble_or_resume, check_study_again
from ridgeline.campaign.check import CheckedStudy, check_study
from ridgeline.campaign.controller import Campaign
from ridgeline.campaign.extension import extension, more_s
from ridgeline.campaign.kinds.base import CampaignQuestion
from ridgeline.campaign.kinds.gate import ReferenceFile
from ridgeline.campaign.kinds.search import SearchQuestion
from ridgeline.campaign.point_text import BASELINE, Setting, parse_point
from ridgeline.campaign.preview import StudyCheck, whole_check
from ridgeline.campaign.sampling import sampler_of
from ridgeline.campaign.status import CampaignStatus, pasted_answer, read_status
from ridgeline.campaign.verify import Verification, verify_folder
from ridgeline.diagnose.base import Diagnosis
from ridgeline.diagnose.base import diagnose as diagnosed
from ridgeline.errors import InputError, StudyError
from ridgeline.files import write_whole
from ridgeline.records.answer import Answer, Gain
from ridgeline.records.exhibit import Shown, TextTable, value_text
from ridgeline.records.observation import Observation
from ridgeline.records.space import Point, point_key
from ridgeline.records.study import DEFAULT_SAMPLER, Study
from ridgeline.report.drawing.draw import draw, standing_alone
from ridgeline.report.figures.shapes import Figure, FigureGroup
from ridgeline.report.html import Folders
from ridgeline.report.page import whole_page, write_report
from ridgeline.report.parts import Fold, Part
from ridgeline.report.sections import Findings, sections
from ridgeline.report.table import Row, rows
from ridgeline.study.codec import Extension
from ridgeline.study.folder import ORIGIN, SOURCES, STUDY, StudyFolder
from ridgeline.study.yaml_tree import resolve
from ridgeline.workloads.python_function import function_source

GivenStudy = str | Path | Mapping[str, Any]
Tell = Callable[[str], None]
# sections of the report that a notebook shows of a result by itself
_SHOWN = ("verdict", "setting", "proof", "progress")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the report: `svg` is its drawing; notebooks show it."""

    title: str
    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True, repr=False)
class StudyResult(Shown):
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

    def shown(self) -> TextTable:
        """What Python and notebooks print of it."""
        best = "none" if self.best is None else ", ".join(f"{name} {value_text(v)}" for name, v in self.best.items())
        rows = (("best", best), ("runs", str(len(self._status.history.runs))), ("folder", str(self.folder)))
        return TextTable(str(self), ("", ""), rows, notes=(self.answer.lacks,) if self.answer.lacks else ())

    def to_pandas(self) -> Any:
        """`runs` as a data frame, knobs and the goal first, by their own names; needs pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas, which is not installed here: `pip install pandas`") from None
        frame = pandas.DataFrame(self.runs)
        knobs = [f"set.{knob.name}" for knob in self.study.space.knobs if f"set.{knob.name}" in frame]
        first = [name for name in (*knobs, f"got.{self.study.goal.metric}", "outcome", "stage") if name in frame]
        ordered = frame[[*first, *(name for name in frame if name not in first)]]
        plain = {name: name.partition(".")[2] for name in first if "." in name}
        # `set.block` as `block`, unless a column has that name already
        return ordered.rename(columns={name: short for name, short in plain.items() if short not in frame})

    @cached_property
    def figures(self) -> dict[str, DrawnFigure]:
        """The figures of the report by title, in its order."""
        figures = (each for section in sections(self._findings) for part in section.parts for each in _figures(part))
        return {each.title: DrawnFigure(each.title, standing_alone(draw(each))) for each in figures}

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the report and says where: `report.html` of the study folder by default."""
        return write_report(self._findings, StudyFolder(self.folder).report_path if out is None else Path(out))

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
        progress: Tell | bool = True,
    ) -> StudyResult:
        """Continues a campaign that was stopped, or extends a finished one by this many trials or blocks."""
        asked = extension(trials, blocks, more_s(wall), node_hours or 0.0)
        _run(StudyFolder.open(self.folder), None, progress, asked)
        return StudyResult(self.folder)

    @property
    def _findings(self) -> Findings:
        return Findings(self.study, self._status.history, self.answer, self._status.exhibits)

    def _repr_html_(self) -> str:
        shown = [each for each in sections(self._findings) if each.key in _SHOWN]
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
    return [part] if isinstance(part, Figure) else []


def open(folder: str | Path) -> StudyResult:
    """The study folder that a campaign wrote, running or finished. Nothing that it names is started."""
    return StudyResult(StudyFolder.open(Path(folder)).path)


def tune(
    study: GivenStudy | Callable[..., Any],
    space: Mapping[str, Any] | None = None,
    goal: str | Mapping[str, str] | None = None,
    *,
    baseline: Mapping[str, Any] | None = None,
    guards: Sequence[str] = (),
    out: str | Path | None = None,
    trials: int | None = None,
    seed: int | None = None,
    progress: Tell | bool = True,
) -> StudyResult:
    """Runs a study's campaign to its verdict: baseline, search, confirmation.

    `study` is a Python function, which is written down with what it uses, with its `space`, its `goal` ("maximize
    rate"), a `baseline` (the first value of each knob by default) and `guards`; or the path of a study file, or the
    content of one as a mapping. `out` is the study folder, studies/NAME by default; one that was stopped goes on
    where it was, one that is finished is answered from, and one of another study or function is refused. `progress`
    shows a line about the latest run; False is silent, a function is called with that line.
    """
    if callable(study):
        study = _study_of(study, space, goal, baseline, guards)
    elif space is not None or goal is not None or baseline is not None or guards:
        raise InputError("space, goal, baseline and guards go with a function; a study has its own")
    question = SearchQuestion(trials, seed, DEFAULT_SAMPLER)

    def asked(found: CheckedStudy) -> Asked:
        path = _path(out) or Path("studies") / found.study.name
        return assemble_or_resume(found, path, found.study.name, question, whole=True)

    return _answered(study, progress, asked)


def _study_of(
    function: Callable[..., Any],
    space: Mapping[str, Any] | None,
    goal: str | Mapping[str, str] | None,
    baseline: Mapping[str, Any] | None,
    guards: Sequence[str],
) -> dict[str, Any]:
    name = getattr(function, "__name__", "function").strip("<>_") or "function"
    if not space or not goal:
        raise InputError(f"{name} needs its space and its goal: tune({name}, {{'block': [16, 32]}}, 'maximize rate')")
    if isinstance(goal, str):
        direction, _, metric = goal.partition(" ")
        goal = {direction: metric.strip()}
    if baseline is None:
        lists = {knob: values for knob, values in space.items() if isinstance(values, list | tuple) and values}
        if missing := [knob for knob in space if knob not in lists]:
            raise InputError(f"{missing[0]} has no first value; give `baseline` with what is used today")
        baseline = {knob: values[0] for knob, values in lists.items()}
    content = {"name": name, "workload": function, "space": dict(space), "goal": dict(goal), "baseline": dict(baseline)}
    return {**content, "guards": list(guards)} if guards else content


class Search:
    """What to try next, for those who run their own loop: `ask` for a setting, `tell` what it measured.

    The same sampler as in a campaign, and nothing else of it: nothing is repeated, interleaved or confirmed, so `best`
    is the best that was seen, which favours lucky runs. `compare` or `tune` say whether it is better.
    """

    def __init__(
        self,
        space: Mapping[str, Any],
        goal: str | Mapping[str, str],
        *,
        baseline: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        with _Given({**_study_of(_asked_elsewhere, space, goal, baseline, ()), "search": {"seed": seed}}) as given:
            self._found = given.found
        self._sampler, self._told = sampler_of(self._found), list[tuple[dict[str, Any], float]]()
        self._pending: dict[str, Point] = {}

    def ask(self) -> dict[str, Any] | None:
        """A setting that was not tried yet; None where none is left. May be asked again before `tell`."""
        proposal = self._sampler.ask([*self._pending.values()])
        if proposal is None:
            return None
        self._pending[point_key(proposal.point)] = proposal.point
        return dict(self._found.study.space.settings(proposal.point))

    def tell(self, setting: Mapping[str, Any], value: float | None) -> None:
        """What a setting measured, asked for or not; None where it failed."""
        space = self._found.study.space
        point = parse_point(self._found, {name: setting[name] for name in space.by_name if name in setting}, {})
        self._pending.pop(point_key(point), None)
        score = None if value is None else self._found.study.goal.score(value)
        self._sampler.tell(Observation(point, score))
        if value is not None:
            self._told.append((dict(setting), value))

    @property
    def best(self) -> tuple[dict[str, Any], float] | None:
        """The best setting that was seen and its value, unconfirmed; None before the first."""
        score = self._found.study.goal.score
        return max(self._told, key=lambda told: score(told[1]), default=None)


def _asked_elsewhere(**knobs: Any) -> None:
    """Stands in a study whose runs somebody else makes."""
    raise NotImplementedError


def check(study: GivenStudy) -> StudyCheck:
    """Whether a study is fit to run: how many of its points are legal, what it may cost, and what is doubtful.

    Nothing is run. StudyError names what is wrong with it, by line.
    """
    with _Given(study) as given:
        return whole_check(given.found)


def compare(
    study: GivenStudy,
    b: Setting,
    a: Setting | None = None,
    out: str | Path | None = None,
    *,
    blocks: int | None = None,
    progress: Tell | bool = True,
) -> StudyResult:
    """Two settings of a study in fresh, interleaved runs. `b` changes `a`, which is the baseline unless it is given."""
    return _answered(study, progress, lambda found: comparing(found, b, a or BASELINE, blocks, _path(out)))


def edge(
    study: GivenStudy,
    knob: str,
    at: Setting = BASELINE,
    out: str | Path | None = None,
    *,
    repeats: int = 3,
    margin: float = 0.03,
    fails: float | None = None,
    progress: Tell | bool = True,
) -> StudyResult:
    """The largest value of a knob that passes, and the one to use in production."""
    asked = partial(edge_of, knob=knob, at=at, repeats=repeats, margin=margin, fails=fails, out=_path(out))
    return _answered(study, progress, asked)


def scale(
    study: GivenStudy,
    over: str | None = None,
    at: Setting = BASELINE,
    out: str | Path | None = None,
    *,
    repeats: int = 3,
    progress: Tell | bool = True,
) -> StudyResult:
    """One setting on 1 to n ranks, nodes or threads: speed-up, efficiency, and where more stops paying off."""
    return _answered(study, progress, lambda found: scaling(found, over, at, repeats, _path(out)))


def steps(
    study: GivenStudy,
    setting: Setting | Path | None = None,
    out: str | Path | None = None,
    *,
    blocks: int | None = None,
    each: bool = False,
    progress: Tell | bool = True,
) -> StudyResult:
    """The gain of each change on the way from the baseline to a setting: one that is named, or the one that a study
    folder confirmed."""
    folder = Path(study) if isinstance(study, str | Path) and Path(study).is_dir() else None
    meant = folder if setting is None else setting
    if meant is None:
        raise InputError("steps: no setting; name its changes, or give the study folder that confirmed it")
    asked = partial(steps_to, setting=meant, blocks=blocks, each=each, beside=folder, out=_path(out))
    return _answered(study, progress, asked)


def bisect(
    study: GivenStudy,
    over: str,
    at: Setting = BASELINE,
    out: str | Path | None = None,
    *,
    ends: tuple[Any, Any] = (None, None),
    slower: float = 0.03,
    runs: int = 400,
    progress: Tell | bool = True,
) -> StudyResult:
    """Which value of an ordered knob made a program slower, from a good end to a bad one; None: the first, the last."""
    asked = partial(bisecting, over=over, ends=ends, at=at, slower=slower, runs=runs, out=_path(out))
    return _answered(study, progress, asked)


def gate(
    study: GivenStudy,
    reference: str | Path | None = None,
    *,
    update: bool = False,
    at: Setting = BASELINE,
    old: Setting | None = None,
    slower: float | None = None,
    runs: int | None = None,
    out: str | Path | None = None,
    progress: Tell | bool = True,
) -> StudyResult:
    """Whether a setting is slower than it was: than `old`, run in turn with it, or than a reference file.

    `update` measures the reference and writes the file. CannotJudge where it is of another machine.
    """
    if old is not None and (update or reference is not None):
        raise InputError("a gate against an old setting needs no reference: leave out `reference` and `update`")
    with _Given(study) as given:
        gate = Gate(given.found, at, old, _path(reference), slower, runs=runs, out=_path(out))
        if old is not None:
            folder, question = gate.in_turn()
        else:
            folder, question = gate.measuring() if update else gate.judged(ReferenceFile.read(gate.path))
        given.settle(folder)
    _run(folder, question, progress)
    if update:
        gate.write_reference(folder)
    return StudyResult(folder.path)


def verify(folder: str | Path) -> Verification:
    """Recomputes every number of a study folder from the raw files; `mismatches` is empty where all of them hold."""
    return verify_folder(StudyFolder.open(Path(folder)).path)


def diagnose_file(path: str | Path) -> Diagnosis:
    """What a log, an output or a profile means: findings, with the lines that show them and what to do."""
    return diagnosed(Path(path), [catalog.part("analyzers", name) for name in catalog.names("analyzers")])


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _answered(study: GivenStudy, progress: Tell | bool, ask: Callable[[CheckedStudy], Asked]) -> StudyResult:
    with _Given(study) as given:
        folder, question = ask(given.found)
        given.settle(folder)
    _run(folder, question, progress)
    return StudyResult(folder.path)


_WHAT_A_STUDY_IS = (
    "give the path of a study file, or a mapping such as {'name': 'blur', 'workload': function, 'space': {'block': "
    "[16, 32]}, 'goal': {'maximize': 'rate'}, 'baseline': {'block': 16}}"
)


_TEMPORARY = re.compile(r"\S*ridgeline-study-\w+/\S*?(:\d+)?: ")


class _Given:
    """A study that was given, read and checked; of a mapping there is a file while it lasts."""

    def __init__(self, study: GivenStudy) -> None:
        self._study = study
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> _Given:
        if not isinstance(self._study, str | Path | Mapping):
            raise InputError(f"{self._study!r} is not a study: {_WHAT_A_STUDY_IS}")
        if not isinstance(self._study, Mapping):
            path = Path(self._study)
            self.found: CheckedStudy = check_study_again(path) if path.is_dir() else check_study(path)
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
        try:
            self.found = check_study(path, files=files, home=Path.cwd())
        except StudyError as error:  # that file is ours: what is wrong is in the mapping
            raise StudyError([_TEMPORARY.sub("study: ", problem) for problem in error.problems]) from None
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

    def plain_text(self, text: str) -> yaml.Node:
        plain = isinstance(resolve(text), str) and text != "<<"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")

    def number(self, number: float) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:float", repr(number))


_StudyDumper.add_representer(str, _StudyDumper.plain_text)
_StudyDumper.add_representer(float, _StudyDumper.number)
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
    progress: Tell | bool,
    extension: Extension | None = None,
) -> None:
    latest = _LatestLine()
    show: Tell = latest if progress is True else progress or (lambda line: None)
    seen = 0

    def tell(campaign: Campaign) -> None:
        nonlocal seen
        history, metric = campaign.history, campaign.study.goal.metric
        for run in islice(history.runs.values(), seen, None):
            got = f", {metric} {run.metrics[metric]:g}" if metric in run.metrics else ""
            show(f"run {run.number}, {history.trials[run.trial].stage.text}: {run.outcome}{got}")
        seen = len(history.runs)

    with assemble_campaign(folder, question, tell, extension=extension) as it:
        seen = len(it.history.runs)
        it.run()
    latest.end()


class _LatestLine:
    """One line on stderr that the next replaces, where somebody sees it: a terminal, or a notebook."""

    def __init__(self) -> None:
        self._seen = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._width = 0

    def __call__(self, text: str) -> None:
        if self._seen:
            sys.stderr.write(f"\r{text[:100]:<{self._width}}")
            sys.stderr.flush()
            self._width = len(text[:100])

    def end(self) -> None:
        if self._width:
            sys.stderr.write("\n")
