"""ridgeline service keep FILE"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.serving.service.service import Service


def keep(
    file: Annotated[Path, typer.Argument(help="The deployment file.")],
    folder: Annotated[Path | None, typer.Option(help="The service's own folder; default: beside the file.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print what it would do, without doing it.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a server may take to get ready.", min=1)] = 1800.0,
    metrics: Annotated[
        int | None, typer.Option(help="Port for Prometheus metrics of keep itself, on loopback.", min=1, max=65535)
    ] = None,
    test_alert: Annotated[
        bool, typer.Option("--test-alert", help="Send a test alert to everybody whom `notify` names, and end.")
    ] = False,
) -> None:
    """Watch a service by the tokens it generates; take out and restart servers that have died, hung or become slow.

    Everything is started as it was accepted by `service up` or `restart`, never as the file was edited since. Canaries
    ask each server for a few tokens and look at them: no token for longer than its engine can be busy is a hang,
    answers without a token for 10 s too; a refusal is retried, counted and told, a wrong key at once. Slow is a server
    below 40% of the others' tokens a second (20% sooner) in time without prompts, in all and for each request, below
    20% for each and 55% in all, or whose canaries take five times as long. Servers that are drained, restarted or tried
    are not judged. Waits between restarts grow with deaths only. While no server is left in the router, keep answers
    requests there itself: 503 with Retry-After.

    Stops on Ctrl-C or SIGTERM; the service keeps running. Every action is in the service's journal with its reason,
    and goes to whoever the deployment file names under `notify`.

    Example: ridgeline service keep service.yaml --dry-run
    """
    from ridgeline.serving.service.file import load_service
    from ridgeline.serving.service.keep.keeper import Keeper, serve_metrics
    from ridgeline.serving.verbs.deploy import operator_of
    from ridgeline.study.notify import Notifier

    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: signals.append(signum))
    if test_alert:
        _test_alert(load_service(file))
        return
    operator = operator_of(file, folder)
    notifier = Notifier(operator.service.name, operator.service.notify, operator.say)
    notifier.require_ways()

    def alert(kind: str, member: str, text: str) -> None:
        notifier.choice = operator.service.notify  # as it is accepted by now
        notifier(kind, member, text)

    keeper = Keeper(operator, dry_run, timeout, str(file), alert=alert)
    server = serve_metrics(keeper, metrics) if metrics is not None else None
    ways = ", ".join(operator.service.notify.ways) or "nobody"
    watched = "waits for `service up` of" if operator.folder.is_down or not operator.folder.started else "watches"
    print(f"keep: {watched} {', '.join(m.name for m in operator.members)} every 2 s; alerts go to {ways}", flush=True)
    try:
        keeper.run(lambda: bool(signals))
    finally:
        if server is not None:
            server.shutdown()
        notifier.close()


def _test_alert(service: Service) -> None:
    from ridgeline.errors import InputError, SiteError
    from ridgeline.study.notify import Notifier

    if not service.notify.ways:
        raise InputError("the deployment file names nobody under `notify`; add a webhook or a command")
    notifier = Notifier(service.name, service.notify, print)
    notifier.require_ways()
    if failed := notifier.test():
        raise SiteError("\n".join(failed))
    print(f"a test alert was sent to {', '.join(service.notify.ways)}")
