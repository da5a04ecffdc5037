"""What is made on the node before the engine starts: model, data, environment; and one-time steps.

The former are removed again. A step is done once for model, GPU, layout and release, and kept in the user's cache.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.files import write_whole
from ridgeline.serving.engines.base import DATASET, HEAD, KEEP, MODEL, OFFLINE_RESULT, PORT, RENDEZVOUS, ServingEngine
from ridgeline.serving.engines.failures import FailureCause
from ridgeline.serving.traffic.prompts import Prompts
from ridgeline.serving.traffic.traffic import Arrival, Replay
from ridgeline.serving.workloads.engine.options import BAKE, Load
from ridgeline.serving.workloads.engine.session import process as node
from ridgeline.serving.workloads.engine.session.load import await_ready, measure_offline, plan_of, send_other
from ridgeline.serving.workloads.engine.session.process import EngineFailed, ExitDiagnosis, say, users_cache
from ridgeline.serving.workloads.engine.session.rank import RANKS

ENVIRONMENT, _MADE_MODEL = "session.env", "model"
# launchers other than srun start processes on other nodes with next to no environment. Nothing that a batch system sets
# node by node: CUDA_VISIBLE_DEVICES may hold the identities of the first node's GPUs, which the second does not have
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_MOST_DECOYS = 6000


def make_files(
    folder: Path, load: Load, ports: tuple[int, int], head: str, *, model: str, make_model: bool, decoys: int | None
) -> None:
    """`ports` are the server's and the rendezvous's, `head` is where other nodes find it. An offline benchmark reads
    data, with so many decoys a request."""
    if make_model:
        from ridgeline.serving.model.folder import write_model_folder

        write_model_folder(model, folder / _MADE_MODEL)
        model = str(folder / _MADE_MODEL)
    if decoys is not None:
        _write_dataset(load, folder / DATASET, min(decoys * load.requests, _MOST_DECOYS))
        (folder / OFFLINE_RESULT).unlink(missing_ok=True)
    values = {PORT: str(ports[0]), MODEL: model, HEAD: head, RENDEZVOUS: str(ports[1])}
    values |= {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    (folder / ENVIRONMENT).write_text(_exports(values))


def add_environment(folder: Path, values: Mapping[str, str]) -> None:
    """More of what the scripts of a run folder read; the last word for a name counts."""
    with (folder / ENVIRONMENT).open("a") as file:
        file.write(_exports(values))


def remove_files(folder: Path) -> None:
    """What takes space and can be made again; clusters count files."""
    shutil.rmtree(folder / _MADE_MODEL, ignore_errors=True)
    for name in (DATASET, ENVIRONMENT, RANKS):
        (folder / name).unlink(missing_ok=True)


def _exports(values: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _write_dataset(load: Load, path: Path, decoys: int = 0) -> None:
    """The traffic in ShareGPT's form, which every engine's offline benchmark reads. A ShareGPT file is taken as it is.

    A text of n words is n tokens; engines skip conversations of fewer than four. `decoys` are conversations without an
    answer: SGLang draws its warm-up prompts from all of the file and measures only those with an answer, so with many
    of them the warm-up sees next to nothing of what is measured.
    """
    source, recipe = Path(load.traffic), load.recipe(paced=False)
    chats = isinstance(recipe.lengths, Replay) and recipe.lengths.answers_stay
    if chats and source.read_bytes().lstrip()[:1] == b"[":  # also not packed, nor a chat a line
        shutil.copyfile(source, path)
        return
    prompts, answers, others = (Prompts(load.seed + n) for n in range(3))
    rows = []
    for number in range(decoys):
        text = others.text(Arrival(number, 0.0, 8, 1)).decode()
        rows.append({"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": ""}]})
    for arrival in recipe.arrivals():
        asked = replace(arrival, input_tokens=max(4, arrival.input_tokens))
        answer = replace(arrival, input_tokens=max(4, arrival.output_tokens), text=None)
        turns = (("human", prompts.text(asked)), ("gpt", answers.text(answer)))
        rows.append({"conversations": [{"from": who, "value": text.decode()} for who, text in turns]})
    path.write_text(json.dumps(rows))


DONE = "done"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What baked caches say of themselves; their folder's name says for which GPU, model and layout they are.

    `ready_s` is how long the start took that filled them.
    """

    release: str
    ready_s: float | None
    baked_s: float

    @classmethod
    def of(cls, kept: Path) -> Manifest | None:
        """None where there is none, or it was not finished."""
        try:
            said = json.loads((kept / DONE).read_text())
            cold_s = None if said["ready_s"] is None else float(said["ready_s"])
            return cls(str(said["release"]), cold_s, float(said["baked_s"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, kept: Path) -> None:
        """As the last step of baking: without it nothing is there."""
        write_whole(kept / DONE, json.dumps(asdict(self)) + "\n", survives_power_cut=False)


_STEP_S = 4 * 3600.0  # for one step, at most
_ANSWER_S = 300.0
_RECORD_REQUESTS = 1000  # under which experts are counted, at most
_FILL_REQUESTS = 64  # under which a server compiles its kernels


@dataclass(slots=True)
class Preparation:
    """All steps of one session. `started` starts a command, with its log and on so many nodes."""

    folder: Path
    spec: Mapping[str, Any]
    load: Load
    dialect: ServingEngine
    port: int
    started: Callable[[str, Path, int], node.EngineProcess]
    measured: dict[str, Any]  # of the session; what it starts from is said there

    def run(self) -> None:
        """Do what was not done before, and tell the engine, by its environment, where the results are."""
        for step in self.spec.get("prepare", ()):
            kept = self._kept(step)
            if step["step"] == BAKE:
                self._bake(step, kept)
                continue
            if not (kept / DONE).exists():
                self._run_step(step, kept)
            own = self.dialect.steps.get(str(step["step"]))
            if own is not None and own.variable:
                add_environment(self.folder, {own.variable: str(kept / own.file)})

    def _bake(self, step: Mapping[str, Any], kept: Path) -> None:
        """Start from caches that are full, and say so; fill them first where there are none for this release, GPU and
        model."""
        release = str(self.measured.get("engine_version") or "")
        baked = Manifest.of(kept)
        if baked is not None and baked.release != release:
            say(f"ridgeline: {kept} was baked by release {baked.release}, this is {release}: baked again")
            baked = None
        if baked is None:
            started = time.monotonic()
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            found = self._fill(step, self._caches(kept))
            if found is None:
                shutil.rmtree(kept, ignore_errors=True)
                return  # the failure is found again, and judged, in the run that counts
            baked = Manifest(release, found.get("ready_s"), round(time.monotonic() - started, 3))
            baked.write(kept)
        add_environment(self.folder, self._caches(kept))
        self.measured["baked"] = {**asdict(baked), "folder": str(kept)}
        without = "" if baked.ready_s is None else f"; without them it was ready after {baked.ready_s:g} s"
        say(f"ridgeline: starts from caches baked in {kept}{without}")

    def _caches(self, place: Path) -> dict[str, str]:
        """Those that the study does not place itself."""
        places = self.dialect.cache_variables.items()
        return {name: str(place / folder) for name, folder in places if name not in os.environ}

    def _fill(self, step: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any] | None:
        """The trial's own command once, with other traffic; when it was ready, where that was seen. None: it failed."""
        add_environment(self.folder, env)
        exit_diagnosis, found = ExitDiagnosis(self.dialect, self._log), dict[str, Any]()
        try:
            with self._process(step) as process:
                if not self.spec["serves"]:
                    measure_offline(process, exit_diagnosis, found)
                    return found
                limit_s = float(self.spec["ready_limit_s"])
                found["ready_s"] = await_ready(process, self.port, exit_diagnosis, limit_s)
                self._send(_FILL_REQUESTS, number=2)
        except EngineFailed:
            return None
        finally:
            (self.folder / OFFLINE_RESULT).unlink(missing_ok=True)
        return found

    def _send(self, most: int, number: int = 1) -> None:
        plan = plan_of(self.load, self.port, None, self.dialect)
        send_other(plan, min(most, self.load.requests), self.load.concurrency or _FILL_REQUESTS, number)

    @property
    def _log(self) -> Path:
        return self.folder / "prepare.log"

    @contextmanager
    def _process(self, step: Mapping[str, Any]) -> Iterator[node.EngineProcess]:
        process = self.started(str(step["start"]), self._log, int(step.get("nodes", 1)))
        try:
            yield process
        finally:
            process.stop()

    def _kept(self, step: Mapping[str, Any]) -> Path:
        cache = users_cache() / "prepared"
        gpu = "".join(c if c.isalnum() else "-" for c in node.gpu_name()) or "no-gpu"
        return cache / f"{step['step']}-{gpu}-{step['key']}"

    def _run_step(self, step: Mapping[str, Any], kept: Path) -> None:
        partial = kept.with_name(f".{kept.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        started = time.monotonic()
        try:
            add_environment(self.folder, {KEEP: str(partial)})
            if step["own"]:
                self._run_own(step, partial)
            elif self._fill(step, {}) is None:
                return  # found again, and judged, in the run that counts
            (partial / DONE).write_text(f"{time.monotonic() - started:.0f} s\n")
            with suppress(OSError):  # a run elsewhere may have been faster
                partial.rename(kept)
            if not (kept / DONE).exists():
                raise EngineFailed(FailureCause("died", 0, f"preparation {step['step']}: {kept} cannot be written"))
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _run_own(self, step: Mapping[str, Any], partial: Path) -> None:
        """A step that is not the trial's own command."""
        with self._process(step) as process:
            if step["serves"]:
                why = self._record(process, partial)
            else:
                code = process.wait(_STEP_S)
                why = "" if code == 0 else f"ended with {code}; see prepare.log"
        if why:
            raise EngineFailed(FailureCause("died", 0, f"preparation {step['step']}: {why}"))

    def _record(self, process: node.EngineProcess, partial: Path) -> str:
        """How often each expert is used under traffic like the measured one; why it is not known, else empty."""
        await_ready(process, self.port, ExitDiagnosis(self.dialect, self._log), float(self.spec["ready_limit_s"]))
        if why := node.post(self.port, "/start_expert_distribution_record", {}, _ANSWER_S):
            return why
        self._send(_RECORD_REQUESTS)
        for path in ("/stop_expert_distribution_record", "/dump_expert_distribution_record"):
            if why := node.post(self.port, path, {}, _ANSWER_S):
                return why
        records = sorted(partial.glob("expert_distribution_recorder_*.pt"))
        if not records:
            return "the engine left no record; see prepare.log"
        records[-1].rename(partial / self.dialect.steps["eplb"].file)
        return ""
