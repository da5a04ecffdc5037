"""ridgeline keep FILE"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.service.service import Service


def keep(
    file: Annotated[Path, typer.Argument(help="The deployment file.")],
    folder: Annotated[Path | None, typer.Option(help="The service's own folder; default: beside the file.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print what it would do, without doing it.")] = False,
    lower_limits: Annotated[
        bool, typer.Option(help="Restart the router with a lower limit before KV pools fill up; cuts streams off.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a server may take to get ready.", min=1)] = 1800.0,
    metrics: Annotated[
        int | None, typer.Option(help="Port for Prometheus metrics of keep itself, on loopback.", min=1, max=65535)
    ] = None,
    front: Annotated[
        str, typer.Option(help="Only watch a service that others keep, through this URL: canaries, alerts, metrics.")
    ] = "",
    metrics_host: Annotated[str, typer.Option(help="--front: the address for --metrics.")] = "127.0.0.1",
) -> None:
    """Watch a service by the tokens it generates; take out and restart servers that have died, hung or become slow.

    Stops on Ctrl-C or SIGTERM; the service keeps running. Every action is in the service's journal with its reason,
    and goes to whoever the deployment file names under `notify`.

    Example: ridgeline keep service.yaml --dry-run
    """
    from ridgeline.cli.deploy import operator_of
    from ridgeline.service.file import load_service
    from ridgeline.service.keep.exporter import serve_metrics
    from ridgeline.service.keep.keeper import Keeper
    from ridgeline.service.keep.notify import Notifier

    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: signals.append(signum))
    if front:
        _watch_front(load_service(file), front, metrics, metrics_host, signals)
        return
    operator = operator_of(file, folder)
    notifier = Notifier(operator.service.name, operator.service.notify, operator.say)
    keeper = Keeper(operator, dry_run, timeout, lower_limits, str(file), alert=notifier)
    server = serve_metrics(keeper, metrics) if metrics is not None else None
    try:
        keeper.run(lambda: bool(signals))
    finally:
        if server is not None:
            server.shutdown()
        notifier.close()


def _watch_front(service: Service, url: str, metrics: int | None, host: str, signals: list[int]) -> None:
    from ridgeline.service import probe
    from ridgeline.service.keep.front import FrontWatch
    from ridgeline.service.keep.notify import Notifier

    def say(line: str) -> None:
        print(line, flush=True)

    notifier = Notifier(service.name, service.notify, say)
    watch = FrontWatch(service.name, url, service.served_name, probe.key_of(service.api_key_env), say, notifier)
    server = watch.serve_metrics(metrics, host) if metrics is not None else None
    try:
        watch.run(lambda: bool(signals))
    finally:
        if server is not None:
            server.shutdown()
        notifier.close()
