"""ridgeline site check SITE, ridgeline site list"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.errors import InputError, SiteError

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
    """Try a site: submit, run, start ranks, watch and cancel small jobs; or list the shipped sites."""
    if action == "list":
        _list(as_json)
    elif action == "check" and name:
        _check(name, folder, patience, as_json)
    else:
        raise InputError("write `ridgeline site check SITE` or `ridgeline site list`")


def _list(as_json: bool) -> None:
    from ridgeline import catalog
    from ridgeline.cli.text.site import sites_text
    from ridgeline.study.site_file import SHIPPED, load_site, shipped_names

    sites = [(load_site(name, Path()), SHIPPED / f"{name}.yaml") for name in shipped_names()]
    batch = catalog.origins("executors")
    if as_json:
        rows = [{"name": shipped.name, "batch": shipped.batch, "file": str(path)} for shipped, path in sites]
        known = [{"name": name, "from": package} for name, package in batch.items()]
        print(json.dumps({"sites": rows, "batch": known}, indent=1))
    else:
        print(sites_text(sites, batch))


def _check(name: str, folder: Path, patience_s: float, as_json: bool) -> None:
    from ridgeline import catalog
    from ridgeline.cli.text.site import site_head, step_text
    from ridgeline.executors.site_check import CheckStep, SiteCheck
    from ridgeline.study.site_file import load_site

    chosen = load_site(name, Path())
    executor = catalog.part("executors", chosen.batch)(replace(chosen, poll_s=min(chosen.poll_s, POLL_S)))
    home = Path(tempfile.mkdtemp(prefix="site-check-", dir=folder.absolute()))
    steps: list[CheckStep] = []
    if not as_json:
        print(site_head(chosen))
    for step in SiteCheck(executor, chosen, home, patience_s).steps():
        steps.append(step)
        if not as_json:
            print(step_text(step), flush=True)
    failed = [step.name for step in steps if not step.ok]
    if as_json:
        print(json.dumps({"site": chosen.name, "ok": not failed, "steps": [asdict(step) for step in steps]}, indent=1))
    ran = len(steps) > 1 and steps[1].ok
    if not failed or not ran:
        shutil.rmtree(home)
    if failed:
        kept = f"; what the jobs wrote is in {home}" if ran else ""
        raise SiteError(f"site {chosen.name} is not ready: {', '.join(failed)} failed{kept}")
