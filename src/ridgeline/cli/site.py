"""ridgeline site check SITE, ridgeline site list"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import catalog
from ridgeline.errors import SiteError
from ridgeline.executors import site_check
from ridgeline.study import site_file

if TYPE_CHECKING:
    from ridgeline.executors.site_check import CheckStep
    from ridgeline.records.site import Site

POLL_S = 5.0  # a check is short: it may ask more often than a campaign


_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def list_sites(as_json: _AsJson = False) -> None:
    """List the site files that come with Ridgeline, to copy and fill in.

    Example: ridgeline site list
    """
    sites = [
        (site_file.load_site(name, Path()), site_file.SHIPPED / f"{name}.yaml") for name in site_file.shipped_names()
    ]
    batch = catalog.origins("executors")
    if as_json:
        rows = [{"name": shipped.name, "batch": shipped.batch, "file": str(path)} for shipped, path in sites]
        known = [{"name": name, "from": package} for name, package in batch.items()]
        print(json.dumps({"sites": rows, "batch": known}, indent=1))
    else:
        print(_sites_text(sites, batch))


def check(
    name: Annotated[str, typer.Argument(metavar="SITE", help="A shipped site, or the path of a site file.")],
    folder: Annotated[
        Path, typer.Option(help="Where the small jobs run; compute nodes must see it.", file_okay=False)
    ] = Path(),
    patience: Annotated[float, typer.Option(help="Seconds to wait in the queue.", min=1)] = 600.0,
    as_json: _AsJson = False,
) -> None:
    """Test a site with small real jobs: submit, run, launch ranks, cancel.

    Example: ridgeline site check local
    """
    chosen = site_file.load_site(name, Path())
    executor = catalog.part("executors", chosen.batch)(replace(chosen, poll_s=min(chosen.poll_s, POLL_S)))
    home = Path(tempfile.mkdtemp(prefix="site-check-", dir=folder.absolute()))
    steps: list[CheckStep] = []
    if not as_json:
        print(f"site {chosen.name} ({chosen.batch}{', queue ' + chosen.queue if chosen.queue else ''})")
    for step in site_check.SiteCheck(executor, chosen, home, patience).steps():
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


_COPY_ONE = "Copy a site beside your study, fill it in, and try it: ridgeline site check my-cluster.yaml"


def _sites_text(sites: Sequence[tuple[Site, Path]], batch: Mapping[str, str]) -> str:
    """`batch` names the batch systems there are, each with the package it comes from."""
    shown = [name if package == "ridgeline" else f"{name} (from {package})" for name, package in batch.items()]
    rows = (f"{site.name:20} {site.batch:6} {path}" for site, path in sites)
    return "\n".join([*rows, "", f"`batch` in a site file may be {', '.join(shown)}.", _COPY_ONE])
