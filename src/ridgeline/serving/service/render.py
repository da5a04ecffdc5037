"""Plain scripts or manifests of a service, to be read, changed and used by hand: local, Slurm, PBS, Kubernetes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.errors import InputError
from ridgeline.executors.base import Executor
from ridgeline.files import write_whole
from ridgeline.serving.service.folder import ServiceFolder
from ridgeline.serving.service.kubernetes import manifests
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.quoting import in_comment, in_unit
from ridgeline.serving.service.scripts import ADDRESS_FILE, START_FILE, URL_FILE, start_script
from ridgeline.serving.service.service import Service

_METRICS_PORT = "9400"  # of a `keep` that systemd runs


def _unit_name(service: Service) -> str:
    return f"ridgeline-keep-{re.sub(r'[^A-Za-z0-9_.-]+', '-', service.name)}.service"


def _unit_text(service: Service, file: Path) -> str:
    """What `service render FILE --for systemd` writes."""
    variables = [name for name in (service.api_key_env, service.notify.webhook_env) if name]
    secrets = file.absolute().with_suffix(".env")
    holds = f"# holds {' and '.join(variables)}, as NAME=value; readable by you alone"
    argv = [sys.executable, "-m", "ridgeline", "service", "keep", str(file.absolute()), "--metrics", _METRICS_PORT]
    return "\n".join(
        [
            f"# For you alone: ~/.config/systemd/user/{_unit_name(service)}, `systemctl --user enable --now` it, and",
            "# `loginctl enable-linger` once, so that it runs while you are logged out. For the machine: in",
            "# /etc/systemd/system, with `User=` below [Service].",
            "[Unit]",
            f"Description=ridgeline service keep {_text(service.name)}",
            "Wants=network-online.target",
            "After=network-online.target",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            f"WorkingDirectory={_text(str(file.absolute().parent))}",
            f"ExecStart={' '.join(in_unit(word) for word in argv)}",
            *([holds, f"EnvironmentFile={_text(str(secrets))}"] if variables else []),
            "Restart=always",
            "RestartSec=5",
            "# servers that keep started keep running when it ends",
            "KillMode=process",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _text(text: str) -> str:
    """systemd fills in what begins with %."""
    return text.replace("%", "%%").replace("\n", " ")


TARGETS = ("local", "slurm", "pbs", "kubernetes", "systemd")
_LAUNCHERS = {"slurm": "srun", "pbs": "openmpi"}


def render(service: Service, out: Path, target: str = "", file: Path | None = None) -> Iterator[Path]:
    """Writes a folder for each member with its start script and, for a batch system, its job; yields the files.

    For systemd only the unit of `keep`, which needs to know the deployment `file`.
    """
    chosen = target or service.site.batch
    if chosen not in TARGETS:
        raise InputError(f"service render knows {', '.join(TARGETS)}; {chosen!r} is none of them")
    if chosen == "systemd":
        assert file is not None, "a unit names the deployment file"
        texts = [(_unit_name(service), _unit_text(service, file))]
    elif chosen == "kubernetes":
        texts = list(manifests(service))  # all of them, or none where one cannot be made
    else:
        yield from _scripts(service, out, chosen)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts:
        write_whole(out / name, text)
        yield out / name


def _scripts(service: Service, out: Path, chosen: str) -> Iterator[Path]:
    site = service.site
    if chosen != site.batch:
        launcher = site.launcher if site.launcher != "none" else _LAUNCHERS.get(chosen, "none")
        service = replace(service, site=replace(site, batch=chosen, launcher=launcher))
    folder = ServiceFolder(out, service)
    executor: Executor = catalog.part("executors", chosen)(service.site)
    members = members_of(service)
    out.mkdir(parents=True, exist_ok=True, mode=0o700)  # engines print their arguments, keys among them, into logs
    for member in members:
        folder.of(member).mkdir(parents=True, exist_ok=True)
        path = folder.of(member) / START_FILE
        write_whole(path, start_script(service, member), mode=0o755)
        yield out / path.relative_to(folder.root)
        if chosen != "local":
            job, path = folder.job(member, 1), folder.of(member) / "job.sh"
            job.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, executor.script(job), mode=0o755)
            yield out / path.relative_to(folder.root)
    submit = {"slurm": "sbatch", "pbs": "qsub"}.get(chosen)
    lines = [
        "#!/bin/sh",
        f"# starts {in_comment(service.name)}: every server, then the router, which waits for their addresses",
        'cd "$(dirname "$0")" || exit 74',
        f"rm -f members/*/{ADDRESS_FILE} members/*/{ADDRESS_FILE}.* {URL_FILE}  # of an earlier start",
    ]
    for member in members:
        if submit:
            lines.append(f"{submit} members/{member.name}/job.sh")
        else:
            lines.append(f"setsid sh members/{member.name}/{START_FILE} > members/{member.name}/log 2>&1 &")
    all_of_it = out / "start-all.sh"
    write_whole(all_of_it, "\n".join([*lines, ""]), mode=0o755)
    yield all_of_it
