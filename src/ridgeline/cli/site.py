"""ridgeline site check SITE, ridgeline site list"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from ridgeline import catalog
from ridgeline.errors import InputError, SiteError
from ridgeline.executors.site_check import CheckStep, SiteCheck
from ridgeline.store.site_file import SHIPPED, load_site, shipped_names

POLL_S = 5.0  # a check is short: it may ask more often than a campaign


def site(
    action: Annotated[str, typer.Argument(help="check: try a site with small real jobs; list: the shipped ones.")],
    name: Annotated[str, typer.Argument(help="A shipped site, or the path of a site file.")] = "",
    folder: Annotated[
        Path, typer.Option(help="Where the small jobs run; compute nodes must see it.", file_okay=False)
    ] = Path(),
    patience: Annotated[float, typer.Option(help="Seconds to wait in the queue.", min=1)] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Try a site: can it submit, run, start ranks, be watched and cancel; or list what is shipped."""
    if action == "list":
        _list(as_json)
    elif action == "check" and name:
        _check(name, folder, patience, as_json)
    else:
        raise InputError("write `ridgeline site check SITE` or `ridgeline site list`")


def _list(as_json: bool) -> None:
    sites = [
        {"name": n, "batch": load_site(n, Path()).batch, "file": str(SHIPPED / f"{n}.yaml")} for n in shipped_names()
    ]
    batch = catalog.origins("executors")
    if as_json:
        known = [{"name": name, "from": package} for name, package in batch.items()]
        print(json.dumps({"sites": sites, "batch": known}, indent=1))
        return
    for shipped in sites:
        print(f"{shipped['name']:20} {shipped['batch']:6} {shipped['file']}")
    shown = [name if package == "ridgeline" else f"{name} (from {package})" for name, package in batch.items()]
    print(f"\n`batch` in a site file may be {', '.join(shown)}.")
    print("Copy a site beside your study, fill it in, and try it: ridgeline site check my-cluster.yaml")


def _check(name: str, folder: Path, patience_s: float, as_json: bool) -> None:
    chosen = load_site(name, Path())
    executor = catalog.part("executors", chosen.batch)(replace(chosen, poll_s=min(chosen.poll_s, POLL_S)))
    home = Path(tempfile.mkdtemp(prefix="site-check-", dir=folder.absolute()))
    steps: list[CheckStep] = []
    if not as_json:
        print(f"site {chosen.name} ({chosen.batch}{', queue ' + chosen.queue if chosen.queue else ''})")
    for step in SiteCheck(executor, chosen, home, patience_s).steps():
        steps.append(step)
        if not as_json:
            print(f"  {step.name:10} {'ok     ' if step.ok else 'FAILED '} {step.detail}", flush=True)
    failed = [step.name for step in steps if not step.ok]
    if as_json:
        print(json.dumps({"site": chosen.name, "ok": not failed, "steps": [asdict(step) for step in steps]}, indent=1))
    ran = len(steps) > 1 and steps[1].ok
    if not failed or not ran:
        shutil.rmtree(home)
    if failed:
        kept = f"; what the jobs wrote is in {home}" if ran else ""
        raise SiteError(f"site {chosen.name} is not ready: {', '.join(failed)} failed{kept}")
