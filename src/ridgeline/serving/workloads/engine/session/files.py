"""What a session needs beside session.json, made on the node and removed again: model, data, environment."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ridgeline.serving.engines.base import DATASET, HEAD, MODEL, OFFLINE_RESULT, PORT, RENDEZVOUS
from ridgeline.serving.traffic.prompts import Prompts
from ridgeline.serving.traffic.traffic import Arrival
from ridgeline.serving.workloads.engine.options import Load
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
    source = Path(load.traffic)
    if source.is_absolute() and source.read_text(errors="replace").lstrip()[:1] == "[":
        shutil.copyfile(source, path)
        return
    prompts, answers, others = (Prompts(load.seed + n) for n in range(3))
    rows = []
    for number in range(decoys):
        text = others.text(Arrival(number, 0.0, 8, 1)).decode()
        rows.append({"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": ""}]})
    for arrival in load.recipe(paced=False).arrivals():
        asked = replace(arrival, input_tokens=max(4, arrival.input_tokens))
        answer = replace(arrival, input_tokens=max(4, arrival.output_tokens), prefix_hashes=())
        turns = (("human", prompts.text(asked)), ("gpt", answers.text(answer)))
        rows.append({"conversations": [{"from": who, "value": text.decode()} for who, text in turns]})
    path.write_text(json.dumps(rows))
