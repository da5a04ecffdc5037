"""Result files of load generators: says which tool wrote a file and reads its runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.files import read_regular
from ridgeline.serving.traffic.bench.aiperf import aiperf_run, is_aiperf, with_requests
from ridgeline.serving.traffic.bench.evalscope import evalscope_run, is_evalscope, with_percentiles
from ridgeline.serving.traffic.bench.genai import genai_run, is_genai
from ridgeline.serving.traffic.bench.guidellm import guidellm_runs, is_guidellm
from ridgeline.serving.traffic.bench.ridgeline import (
    is_ridgeline,
    is_ridgeline_sweep,
    ridgeline_run,
    summary_beside,
    sweep_runs,
)
from ridgeline.serving.traffic.bench.run import BenchRun
from ridgeline.serving.traffic.bench.sglang import is_one_batch, is_serving, one_batch_run, serving_run

_TOOLS = (
    "ridgeline bench, genai-bench, evalscope, guidellm, aiperf, vllm bench, sglang bench_serving and "
    "bench_one_batch_server"
)

_Document = Mapping[str, Any]
# (whether it is this tool's, how to read it, what to add from the second file in which some tools keep half of a run)
_READERS: tuple[
    tuple[
        Callable[[_Document], bool], Callable[[_Document, str], BenchRun], Callable[[BenchRun, Path], BenchRun] | None
    ],
    ...,
] = (
    (is_ridgeline, ridgeline_run, None),
    (is_serving, serving_run, None),
    (is_one_batch, one_batch_run, None),
    (is_aiperf, aiperf_run, with_requests),
    (is_genai, genai_run, None),
    (is_evalscope, evalscope_run, with_percentiles),
)


def read_bench_results(path: Path) -> list[BenchRun]:
    """Every run in a result file, or in all result files of a folder; raises InputError naming what is not one."""
    if path.is_dir():
        found = (p for p in path.rglob("*") if p.suffix in (".json", ".jsonl") and p.is_file())
        files = sorted({summary_beside(p) or p for p in found})
        runs = [run for file in files for run in _runs(file)]
    else:
        runs = list(_runs(path))
    if not runs:
        raise InputError(f"{path}: no result that we know; `ridgeline twin import` reads files of {_TOOLS}")
    return runs


def _runs(path: Path) -> Iterator[BenchRun]:
    path = summary_beside(path) or path
    for document in _documents(path):
        yield from _known(document, path)


def _documents(path: Path) -> Iterator[Any]:
    try:
        text = read_regular(path).decode("utf-8")
    except OSError as bad:
        raise InputError(f"{path}: {bad.strerror}; name a result file or its folder") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: not a text file; `ridgeline twin import` reads JSON and JSONL results of {_TOOLS}"
        ) from None
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if whole is not None:
        yield whole
        return
    for line in text.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                continue  # a torn last line, or a log line between results


def _known(document: Any, path: Path) -> Iterator[BenchRun]:
    if not isinstance(document, dict):
        return
    if is_guidellm(document):
        yield from guidellm_runs(document, str(path))
        return
    if is_ridgeline_sweep(document):
        yield from sweep_runs(document, str(path))
        return
    for is_it, read, add_beside in _READERS:
        if is_it(document):
            run = read(document, str(path))
            yield run if add_beside is None else add_beside(run, path)
            return
