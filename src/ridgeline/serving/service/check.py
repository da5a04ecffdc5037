"""What a deployment file asks of its model, of this machine and of a batch system: refused with its line, or noted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline import catalog
from ridgeline.errors import InputError, Problem, StudyError
from ridgeline.executors.base import Executor
from ridgeline.records.run import Job
from ridgeline.serving.node.preflight import list_gpus
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.kubernetes import manifests
from ridgeline.serving.service.members import Member, members_of, room_for_router
from ridgeline.serving.service.render import TARGETS
from ridgeline.serving.service.routers import ROUTERS
from ridgeline.serving.service.service import Service, server_of
from ridgeline.study.yaml_tree import parse_yaml, read_text

_ASK_S = 60.0  # for an interpreter to say whether it has a module


def check_service(path: Path, target: str = "") -> tuple[Service, list[str]]:
    """The service, and what is worth knowing before it is started; StudyError lists what cannot work.

    `target` is what it is meant for, where that is not the file's own site; a cluster, or Kubernetes, may have what
    this machine has not.
    """
    service = load_service(path)
    sites = [each for each in TARGETS if each != "systemd"]  # where a service runs; a unit only watches one
    if target and target not in sites:
        raise InputError(f"service check knows {', '.join(sites)}; {target!r} is none of them")
    if target and target != service.site.batch:
        service = replace(service, site=replace(service.site, batch=target))
    if target == "kubernetes":
        list(manifests(service))  # says what it could not run
        return service, []
    if not service.on_this_machine:
        return service, [*_unseen(service), *_asked_badly(service)]
    if (most := max(unit.nodes for unit in service.units)) > 1:
        raise InputError(
            f"{service.name}: a server of {most} nodes, and site local is this machine alone; name the cluster in the "
            f"file, such as `site: {{name: cluster, batch: slurm, nodes: {most}, launcher: srun}}`, or write scripts "
            "for it with `ridgeline service render FILE --for slurm`"
        )
    tree = parse_yaml(read_text(path), str(path))
    if problems := [tree.message(problem.where, problem.message) for problem in _not_here(service, path)]:
        raise StudyError(problems)
    if not server_of(service.engine).loads_model or service.model.startswith("/"):
        return service, []
    name = f"{service.model} is no folder beside the file: the engine takes it for a name and looks for it in its"
    return service, [f"{name} cache or on the network"]


def requests_of(service: Service, members: Sequence[Member]) -> dict[str, str]:
    """Member -> what a batch system is asked for, as it is put to it; empty on this machine."""
    if service.on_this_machine or service.site.batch == "kubernetes":
        return {}
    executor: Executor = catalog.part("executors", service.site.batch)(service.site)
    found = {}
    for member in members:
        job = Job(member.name, Path(), "true", resources=member.resources, limit_s=service.job_limit_s)
        options = re.findall(r"^#[A-Z]+ (-.+)$", executor.script(job), re.MULTILINE)
        found[member.name] = " ".join(option for option in options if not re.match(r"--job-name|-N ", option))
    return found


# this machine


def _not_here(service: Service, file: Path) -> Iterator[Problem]:
    command = f"ridgeline service check {shlex.quote(str(file))} --for slurm"
    elsewhere = f"name the site that has it; `{command}` (pbs, kubernetes) asks for none here"
    if server_of(service.engine).loads_model and service.model.startswith("/") and not Path(service.model).exists():
        yield Problem(("model",), f"{service.model} is not on this machine; correct the path, or {elsewhere}")
    site = service.site
    prepared = bool(site.modules or site.setup or site.container)  # what is on the PATH then is known to a job only
    if not prepared:
        engine = server_of(service.engine)
        yield from _no_python(service.python, engine.module or engine.name, ("engine", "python"))
    if service.router is not None and not prepared:
        package = ROUTERS[service.router.kind].module.partition(".")[0]
        yield from _no_python(service.router.python, package, ("router", "python"))
    yield from _too_few_gpus(service, elsewhere)


def _no_python(python: str, package: str, where: tuple[str, str]) -> Iterator[Problem]:
    which = shutil.which(python)
    key = f"`{where[0]}: {{python: ...}}`"
    if which is None:
        what = "is not on the PATH" if "/" not in python else "is not an executable file"
        yield Problem(where, f"{python} {what}; name the interpreter of the environment that has {package}: {key}")
        return
    ask = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 3)"
    try:
        # not from here: a folder of that name is taken for the package
        done = subprocess.run(
            [Path(which).absolute(), "-c", ask, package], capture_output=True, timeout=_ASK_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Problem(where, f"{python} could not be asked for {package} ({error}); correct it: {key}")
        return
    if done.returncode == 3:
        yield Problem(where, f"{python} has no {package}; name the interpreter of the environment that has it: {key}")
    elif done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        yield Problem(where, f"{python} could not be asked for {package} ({said[0]}); correct it: {key}")


def _too_few_gpus(service: Service, elsewhere: str) -> Iterator[Problem]:
    asked = sum(unit.replicas * unit.gpus for unit in service.units)
    amd = Path("/dev/kfd").exists()  # nvidia-smi does not know its GPUs
    if not server_of(service.engine).loads_model or not asked or amd:
        return
    gpus = list_gpus()
    have = 0 if isinstance(gpus, str) else len(gpus)
    if asked <= have:
        return
    why = f" ({gpus})" if isinstance(gpus, str) else ""
    taken = 0
    for n, unit in enumerate(service.units):
        taken += unit.replicas * unit.gpus
        if taken > have:
            what = f"{asked} GPUs are asked for in all, and this machine has {have}{why}"
            yield Problem(("units", n, "gpus"), f"{what}; ask for fewer, or {elsewhere}")
            return


# a cluster


def _unseen(service: Service) -> Iterator[str]:
    """This machine may lack what the nodes have."""
    paths = {
        "the model": service.model if server_of(service.engine).loads_model else "",
        "the engine's python": service.python,
        "the router's python": service.router.python if service.router is not None else "",
    }
    for what, path in paths.items():
        if path.startswith("/") and not os.path.exists(path):  # noqa: PTH110  pathlib raises for names no file can have
            yield f"{what}, {path}, is not on this machine; see that the nodes of {service.site.name} have it"


def _asked_badly(service: Service) -> Iterator[str]:
    executor: Executor = catalog.part("executors", service.site.batch)(service.site)
    yield from dict.fromkeys(doubt for member in members_of(service) for doubt in executor.doubts(member.resources))
    if service.router is not None and not room_for_router(service):
        nodes = sum(unit.replicas * unit.nodes for unit in service.units)
        why = (
            f"site {service.site.name} gives out whole nodes (`exclusive`)"
            if service.site.options.get("exclusive")
            else "the servers take whole nodes, and the site does not say `cores_per_node` and `memory_per_node`, of "
            "which the first could leave a little"
        )
        yield f"the router needs a node beside the {nodes} of the servers: {why}"
