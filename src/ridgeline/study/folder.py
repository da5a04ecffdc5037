"""The study folder: everything of a campaign in one place that can be copied, opened and resumed elsewhere.

study.yaml  site.yaml  journal.jsonl  lock  report.html
origin               where the study was written: names of engines and models, which are never copied, start there
runs/0023-tp8-pp2/   one plain folder per run
builds/HASH/         one per built variant
sources/             the files that the study names, at the same relative places as beside the original
"""

from __future__ import annotations

import ast
import filecmp
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.errors import StoreError, StudyError
from ridgeline.files import is_there, open_regular, read_text, write_whole
from ridgeline.records.expression import WrittenNumber
from ridgeline.records.outcome import Kind
from ridgeline.records.space import point_key
from ridgeline.records.study import Study
from ridgeline.study.history import History, read_history
from ridgeline.study.journal import read_events
from ridgeline.study.study_file import StudyFile, read_study_file
from ridgeline.study.yaml_tree import YamlTree, parse_yaml

# Whether a study folder's study file and its journal still describe the same campaign.
#
# Both are plain files, and people edit plain files. Limits may be changed before a resume; the question may not, since
# what was measured would then be an answer to something else. Before anything has passed it may: that is how a baseline
# that fails is corrected.

_OF_JOB = ("nodes", "ranks_per_node", "cores", "gpus", "modules")
_OF_SITE = (
    *("batch", "env", "setup", "modules", "launcher", "launcher_options", "prices"),
    *("container", "container_runtime", "container_options", "container_mounts"),
)
# what journals of before 0.3.0 have no fingerprint of
_LATER = ("prices", "site", *(f"job.{key}" for key in _OF_JOB), *(f"site.{key}" for key in _OF_SITE))
QUESTION = ("workload", "space", "derived", "rules", "goal", "guards", "baseline", "builds", "task", *_LATER)


_LENGTH, _LENGTH_OF_OLD = 16, 12  # of a fingerprint; an old one does not tell 2.10 from 2.1


def asked(file: StudyFile, *, written: bool = True) -> dict[str, str]:
    """A short fingerprint of each part of the study file that makes up the question, and of its site file."""
    texts, length = _texts_by_key(file.tree, file.site_path, written), _LENGTH if written else _LENGTH_OF_OLD
    texts = dict.fromkeys(_LATER, "") | texts
    return {name: hashlib.sha256(texts[name].encode()).hexdigest()[:length] for name in QUESTION if name in texts}


def _texts_by_key(tree: YamlTree, site: Path | None, written: bool) -> dict[str, str]:
    """By its name, each key of the study; one by one those of `job` and of the site, of which some are limits."""
    values = _values_by_key(tree, written)
    if site is not None:
        of_site = _values_by_key(parse_yaml(read_text(site), str(site)), written)
        values |= {f"site.{key}": value for key, value in of_site.items()}
    for name in ("job", "site"):
        if isinstance(inside := values.get(name), dict):
            del values[name]
            values |= {f"{name}.{key}": value for key, value in inside.items()}
    return {key: json.dumps(_numbers_as_written(value), default=str) for key, value in values.items()}


def _values_by_key(tree: YamlTree, written: bool) -> dict[str, object]:
    return {str(key): node.plain(written=written) for key, node in tree.root.children.items()}


def _numbers_as_written(value: object) -> object:
    if isinstance(value, dict):
        return {key: _numbers_as_written(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers_as_written(each) for each in value]
    return [str(value)] if isinstance(value, WrittenNumber) else value


def _is_old(before: Mapping[str, str]) -> bool:
    return any(len(each) == _LENGTH_OF_OLD for each in before.values())


def binding(history: History) -> Mapping[str, str]:
    """The fingerprints that a study file is held to; none while nothing has passed: then nothing was measured yet."""
    passed = any(run.outcome is not None and run.outcome.kind is Kind.OK for run in history.runs.values())
    return history.asked if passed or history.open_runs else {}


def require_same_question(file: StudyFile, before: Mapping[str, str]) -> None:
    """StoreError names the parts that were changed; `before` is empty for a campaign that has not begun."""
    now = asked(file, written=not _is_old(before))
    held = [name for name in QUESTION if before and (name in before or name not in _LATER)]
    changed = [name for name in held if before.get(name) != now.get(name)]
    if changed:
        of_site = file.site_path is not None and any(name.startswith("site.") for name in changed)
        where = f"{file.path} with {file.site_path}" if of_site else file.path
        raise StoreError(
            f"{where}: {', '.join(changed)} changed after the campaign began, so what was measured answers another "
            "question; undo the change, or start a new study with `ridgeline tune`"
        )


def require_consistent(study: Study, history: History) -> None:
    """StoreError where single events make sense but not together: lines were removed from the journal."""
    where, metric = history.root / "journal.jsonl", study.goal.metric
    for run in history.runs.values():
        if run.outcome is not None and run.outcome.kind is Kind.OK and metric not in run.metrics:
            raise StoreError(f"{where}: run {run.number} passed but has no {metric}; restore a copy of the journal")
    winner = None if history.verdict is None else history.verdict.details.get("winner")
    if winner is not None and point_key(winner) not in {trial.key for trial in history.trials.values()}:
        raise StoreError(f"{where}: the winner is none of the trials; restore a copy of the journal")


STUDY, JOURNAL, _LOCK, _REPORT = "study.yaml", "journal.jsonl", "lock", "report.html"
ORIGIN = "origin"
RUNS, SOURCES, SITES = "runs", "sources", "sites"
LARGEST_COPY_BYTES = 64 * 2**20  # larger inputs are linked, not copied
_LONGEST_LINE_BYTES = 2**20
_FIELD = re.compile(r"\{[^{}]*\}")
_WORD = re.compile(r"[^\s'\"=,;:<>|&()\[\]]+")


@dataclass(frozen=True)
class StudyFolder:
    path: Path

    @classmethod
    def create(cls, path: Path, source: StudyFile, in_place: Collection[str] = ()) -> StudyFolder:
        """A new folder for this study, with the site file and the files it needs.

        What the workload options `in_place` name stays where it is.

        Never overwrites a campaign. Called again after a crash before the first event, it completes what is missing.
        """
        folder = cls(path)
        try:
            folder._check_free()
            # logs and settings are private on machines that many people share
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror}); free space or check permissions") from None
        folder.take(source, in_place)
        return folder

    def take(self, source: StudyFile, in_place: Collection[str] = ()) -> None:
        """Puts the study into the folder, with its site file and the files it needs."""
        path = self.path
        try:
            (path / SOURCES).mkdir(exist_ok=True)
            for file in needed_files(source.study, in_place):
                self._take(file, source.study.folder, path / SOURCES)
            if source.site_path is not None:
                beside = source.site_path.parent.absolute()
                for file in (source.site_path.absolute(), *_site_files(source.study, beside)):
                    self._take(file, beside, path / SITES)
            if not _same(source.path, path / STUDY):
                write_whole(path / ORIGIN, f"{source.study.origin.absolute()}\n")
                write_whole(path / STUDY, source.text)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror}); free space or check permissions") from None

    def changed(self, source: StudyFile, in_place: Collection[str], *, whole: bool) -> list[str]:
        """What differs between this study and the one in the folder: keys, of the `whole` study or of its question,
        and files that it names."""
        written, tree = not self._is_old(), parse_yaml(read_text(self.path / STUDY), str(self.path / STUDY))
        ours = _texts_by_key(tree, self._site_path(), written)
        theirs = _texts_by_key(source.tree, source.site_path, written)
        found = [key for key in ours | theirs if (whole or key in QUESTION) and ours.get(key) != theirs.get(key)]
        for file in needed_files(source.study, in_place):
            name = file.relative_to(source.study.folder)
            if not _same_content(file, self.path / SOURCES / name):
                workload = source.study.workload
                function = workload.kind == "python" and str(name) == workload.options.get("file")
                found.append(f"the function in {name}" if function else str(name))
        return found

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        """The folder of a campaign that was started before."""
        if path.is_file():
            raise StoreError(f"{path} is a file; name the study folder, or start one with `ridgeline tune {path}`")
        if not path.is_dir():
            raise StoreError(f"{path}: no such folder; name the one that `ridgeline tune` wrote")
        missing = [name for name in (STUDY, JOURNAL) if not (path / name).is_file()]
        if missing:
            inside = sorted(p.parent.name for p in path.glob(f"*/{JOURNAL}"))
            hint = f"; there are study folders inside: {', '.join(inside[:5])}" if inside else ""
            raise StoreError(f"{path}: no {' and no '.join(missing)} here, so this is not a study folder{hint}")
        if not (path / JOURNAL).stat().st_size and any((path / RUNS).glob("*")):
            raise StoreError(
                f"{path / JOURNAL}: is empty though there are run folders; restore a copy of it, "
                "or start over with `ridgeline tune` and another --out"
            )
        return cls(path)

    def load(self, history: History | None = None, *, to_run: bool = False) -> StudyFile:
        """The study as it was run; StoreError where it and the folder's history no longer fit together.

        Relative paths in it start in this folder's sources. Unless it is loaded `to_run`, no program that it names may
        be started: what they said when the campaign ran is taken from the journal.
        """
        file = read_study_file(
            self.path / STUDY,
            site_path=self._site_path(),
            files=self.path / SOURCES,
            home=self._origin(),
            written=not self._is_old(),
            to_run=to_run,
        )
        if history is not None:
            require_same_question(file, binding(history))
            require_consistent(file.study, history)
        return file if to_run else to_be_read(file, history)

    @property
    def journal_path(self) -> Path:
        return self.path / JOURNAL

    @property
    def lock_path(self) -> Path:
        return self.path / _LOCK

    @property
    def report_path(self) -> Path:
        return self.path / _REPORT

    def _site_path(self) -> Path | None:
        return next(iter(sorted((self.path / SITES).glob("*.y*ml"))), None)

    def _origin(self) -> Path | None:
        try:
            return Path(read_text(self.path / ORIGIN).rstrip("\n"))
        except OSError:
            return None  # a folder from before 0.1.0

    def _is_old(self) -> bool:
        """Whether its campaign was begun by a release that ran 2.10 as 2.1: then the study is read as it was run."""
        try:
            with open_regular(self.path / JOURNAL) as journal:
                first = json.loads(journal.readline(_LONGEST_LINE_BYTES) or b"{}")
        except (OSError, ValueError):
            return False  # not begun; or damaged, which whoever reads the journal says
        fingerprints = first.get("asked") if isinstance(first, dict) else None
        return bool(first) and (not fingerprints or _is_old(fingerprints))

    def missing(self, recorded: Iterable[Path]) -> list[Path]:
        """Of the recorded folders (as in the journal, relative), those that have been deleted."""
        return [folder for folder in recorded if not (self.path / folder).is_dir()]

    def _check_free(self) -> None:
        journal = self.path / JOURNAL
        if journal.exists() and (journal.stat().st_size or any((self.path / RUNS).glob("*"))):
            raise StoreError(
                f"{self.path} already holds a campaign; continue it with `ridgeline resume {self.path}` "
                "or name another --out"
            )
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; name a folder with --out")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / STUDY).exists():
            raise StoreError(f"{self.path} is not empty and not a study folder; name another --out")

    def _take(self, file: Path, beside: Path, into: Path) -> None:
        """Copy a file to the same relative place in another folder; link it where it is large or lies elsewhere."""
        if file.resolve().is_relative_to(self.path.resolve()):
            return  # a pattern of the study also matched the campaign's own folder
        target = into / file.relative_to(beside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        # what a link beside the study leads to may be private, or huge: it is used where it is
        if file.stat().st_size > LARGEST_COPY_BYTES or not file.resolve().is_relative_to(beside.resolve()):
            target.symlink_to(file.resolve())
        else:
            shutil.copy2(file, target)


def to_be_read(file: StudyFile, history: History | None) -> StudyFile:
    """The study with what its programs said when the campaign ran, so that none of them is started to be asked.

    A campaign that was taken up where one of them is missing keeps what it said before.
    """
    recorded: dict[str, object] = {}
    for receipt in history.receipts if history is not None else ():
        programs = receipt.get("programs")
        for name, said in programs.items() if isinstance(programs, dict) else ():
            if name not in recorded or (any(said.values()) if isinstance(said, dict) else said):
                recorded[name] = said
    return replace(file, study=replace(file.study, recorded=recorded))


def needed_files(study: Study, in_place: Collection[str] = ()) -> list[Path]:
    """Files beside the study file that it names: in workload options, build commands and build sources.

    A name with a {knob} in it stands for every file that fits. An option that is just a name means
    that file or folder.
    """
    found: dict[Path, None] = {}
    builds = study.builds
    options = {name: value for name, value in study.workload.options.items() if name not in in_place}
    for text in (*_texts(options), *_texts(list(builds.make) if builds else [])):
        named = _FIELD.sub("*", text)
        for word in dict.fromkeys((*_WORD.findall(named), *shell_words(named))):
            found.update(dict.fromkeys(_named(study.folder, word)))
        if _is_inside(text) and is_there(study.folder / text):
            found.update(dict.fromkeys(_files_in(study.folder / text)))
    for pattern in builds.sources if builds else ():
        for path in _matches(study.folder, pattern):
            found.update(dict.fromkeys(_files_in(path)))
    found.update(dict.fromkeys(_site_files(study, study.folder)))
    return list(found)


def _site_files(study: Study, beside: Path) -> list[Path]:
    """The container image and the job script that a site names, where they lie below `beside`."""
    named = (study.site.container, study.site.options.get("script"))
    paths = [Path(name) for name in named if isinstance(name, str) and name]
    return [path for path in paths if path.is_file() and path.is_relative_to(beside)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def shell_words(text: str) -> list[str]:
    """The words of a command as a shell takes it apart, without their quotes; none where a quote stays open."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _is_inside(name: str) -> bool:
    """Whether a text can be a path below the study's folder."""
    parts = Path(name).parts
    return 0 < len(name) <= 255 and "\0" not in name and bool(parts) and ".." not in parts and parts[0] != "/"


def _files_in(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]


def _named(folder: Path, word: str) -> list[Path]:
    """The files beside the study that a word of a command names: one, several by pattern, mostly none."""
    if not _is_inside(word):
        return []
    if "*" in word and len(word.replace("*", "")) < 3:
        return []  # a bare {knob} is a value, not a file
    try:
        candidates = sorted(folder.glob(word)) if "*" in word else [folder / word]
        return [file for file in candidates if file.is_file()]
    except (OSError, ValueError, NotImplementedError):
        return []  # a word that cannot be a file's name names no file


def _matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in sorted(folder.glob(pattern)) if path.is_relative_to(folder) and ".." not in path.parts]
    except (ValueError, NotImplementedError) as error:
        raise StudyError(f"builds.sources: {pattern!r} is not a pattern inside the study's folder ({error})") from None


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _same_content(one: Path, other: Path) -> bool:
    """Of Python files, what Python makes of them: a comment changes nothing."""
    if not other.is_file():
        return False
    if _same(one, other) or filecmp.cmp(one, other, shallow=False):
        return True
    if one.suffix != ".py":
        return False
    try:
        return ast.dump(ast.parse(one.read_bytes())) == ast.dump(ast.parse(other.read_bytes()))
    except (SyntaxError, ValueError):
        return False


# A study folder opened read-only: as far as it is intact, and what lies beside it.


def read_history_as_far(folder: Path) -> tuple[History, tuple[str, ...]]:
    """As `read_history`, but up to a damaged line instead of failing there; says what is wrong."""
    history, path = History(folder.resolve()), folder / "journal.jsonl"
    try:
        history.apply_all(read_events(path))
    except StoreError as error:
        return history, (f"Only what comes before a damaged line is shown. {error}",)
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        torn = size > 0 and file.read(1) != b"\n"
    if torn:
        return history, (
            "The journal's last line is incomplete: it is being written, or writing was interrupted. It is left out.",
        )
    return history, ()


STEPS_ENDINGS = ("-steps-each", "-steps")  # of folders beside a campaign's own, the finer one first


def read_ladder(folder: Path) -> History | None:
    """The steps to this campaign's winner, which `tune --ladder` and `study steps` run in a folder beside its own; None
    without."""
    for ending in STEPS_ENDINGS:
        beside = folder.resolve().with_name(f"{folder.resolve().name}{ending}")
        try:
            found = read_history(beside) if (beside / "journal.jsonl").is_file() else None
        except StoreError:
            continue  # the report of that folder itself says what is wrong with it
        if found is not None and found.question.kind == "steps" and (found.verdict or ending == STEPS_ENDINGS[-1]):
            return found
    return None
