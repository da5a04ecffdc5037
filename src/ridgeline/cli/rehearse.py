"""ridgeline rehearse FILE --traffic T"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.serving import options as option
from ridgeline.cli.text.json import json_text
from ridgeline.errors import InputError

SHARE_OF_CAPACITY = 0.8


def rehearse(
    file: Annotated[Path, typer.Argument(help="The deployment file.")],
    traffic: option.TrafficText = "sharegpt",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; default: 0.8 of what the file expects.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each policy is loaded.", min=1)] = 20.0,
    shared_prefix: Annotated[int, typer.Option(help="Tokens at the start of every prompt that are the same.")] = 0,
    policy: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    write: Annotated[bool, typer.Option(help="Write the best policy into the file.")] = True,
    as_json: option.AsJson = False,
) -> None:
    """Try every policy of the router on this machine, over servers of the twin, and lose a server under the best.

    Example: ridgeline rehearse service.yaml --traffic sharegpt --rate 20
    """
    from ridgeline.cli.text.deploy import rehearsals_text
    from ridgeline.deploy.file import load_service, with_router
    from ridgeline.deploy.rehearse.rehearsal import RehearsedLoad, best_of
    from ridgeline.deploy.rehearse.rehearsal import rehearse as run
    from ridgeline.files import write_whole

    service = load_service(file)
    rate_s = rate or SHARE_OF_CAPACITY * float(service.expected.get("requests_s", 0.0))
    if rate_s <= 0:
        raise InputError("the file expects no rate; say how many requests a second to send, such as --rate 20")
    load = RehearsedLoad(traffic, rate_s, seconds, shared_prefix)
    with tempfile.TemporaryDirectory(prefix="ridgeline-rehearsal-") as folder:
        done = run(service, Path(folder), load, policy or (), lambda line: print(line, file=sys.stderr, flush=True))
    best = best_of(done)
    if write and not policy:
        write_whole(file, with_router(file, {"policy": best.policy}))
    if as_json:
        print(json_text({"runs": [one.as_json() for one in done], "policy": best.policy, "origin": "modelled"}))
    else:
        print(rehearsals_text(done, best))
