"""What was accepted to run: the settings of each member, in one file of the service's folder.

`up` and `restart` accept what the deployment file says, each member's at the moment it is started with it, and a canary
when it has passed. Whoever starts a member, `keep` above all, starts it as this file says: what lies in the deployment
file since is an edit that nobody has applied.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ridgeline import __version__
from ridgeline.errors import StoreError
from ridgeline.files import read_text, write_whole
from ridgeline.serving.service.members import every_member, first_slot
from ridgeline.serving.service.scripts import member_command, start_script
from ridgeline.serving.service.service import Service

ACCEPTED_FILE = "accepted.json"
_FORMAT = 1
# fields of a service -> their keys in the deployment file, where they are called something else
_KEYS = {"release": "engine", "python": "engine", "gpu": "engine", "planned_release": "engine", "pods": "kubernetes"}
_KEYS |= {"in_turn": "start", "limit_s": "limit"}


class DamagedAcceptedError(StoreError):
    """What was accepted cannot be made out; `path` is the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: is damaged, so that nobody knows what was accepted to run; restore a copy of it, or run "
            "`ridgeline service down FILE`, which sets it aside, and then `up`. Nothing was started"
        )
        self.path = path


def set_aside(path: Path) -> Path:
    """For whoever wants to find out what happened to it."""
    return path.replace(path.with_suffix(".damaged"))


@functools.cache
def _form() -> TypeAdapter[Service]:
    return TypeAdapter(Service)


@dataclass(frozen=True, slots=True)
class Accepted:
    """`service` is that of the whole, and of members that come later; `members` are those that run with other settings.

    A server and the one that takes its place before its job ends are the same one here.
    """

    service: Service
    members: Mapping[str, Service] = field(default_factory=dict)

    def of(self, name: str) -> Service:
        return self.members.get(first_slot(name), self.service)

    def with_member(self, name: str, settings: Service, servers: Collection[str]) -> Accepted:
        """After this member was started with these settings; they are the whole's once all `servers` have them."""
        found = Accepted(self.service, {**self.members, first_slot(name): settings})
        whole = all(_start_of(found.of(server), server) == _start_of(settings, server) for server in servers)
        return found.with_service(settings, found.members) if whole else found

    def with_service(self, settings: Service, names: Collection[str]) -> Accepted:
        """These for the whole; those of `names` that would be started differently keep their own."""
        kept = {first_slot(n): self.of(n) for n in names if _start_of(self.of(n), n) != _start_of(settings, n)}
        return Accepted(settings, kept)

    def edits(self, file: Service, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Members of `names` that the file would start with other settings, and its keys that differ."""
        members = [n for n in names if _start_of(self.of(n), n) != _start_of(file, n)]
        keys = [f.name for f in fields(Service) if getattr(file, f.name) != getattr(self.service, f.name)]
        return members, list(dict.fromkeys(_KEYS.get(key, key) for key in keys))


def _start_of(service: Service, name: str) -> object:
    """All that a start of this member consists of, wherever its service's other members run; None: it has no such."""
    member = every_member(service).get(first_slot(name))
    if member is None:
        return None
    return start_script(service, member), member_command(service, member, "."), member.resources, service.job_limit_s


def read_accepted(root: Path, name: str = "") -> Accepted | None:
    """None where nothing was accepted yet. StoreError where it cannot be used: damaged, or of another service."""
    path = root / ACCEPTED_FILE
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    try:
        found = json.loads(text)
        newer = found["format"] > _FORMAT
        if not newer:
            intact = found["digest"] == _digest(found["settings"], found["members"])
            services = [_form().validate_python(settings) for settings in found["settings"]] if intact else []
    except (ValueError, KeyError, TypeError, ValidationError):
        newer = intact = False
    if newer:
        by = f"ridgeline {found.get('written_by', 'of a later release')}, which is newer than this one ({__version__})"
        raise StoreError(f"{path}: was written by {by}; use that release. Nothing was started")
    if not intact or not services:
        raise DamagedAcceptedError(path)
    members = {member: services[number] for member, number in found["members"].items()}
    if name and services[0].name != name:
        raise StoreError(
            f"{path}: is of the service {services[0].name!r}, and the deployment file describes {name!r}; name that "
            "service's own folder with --folder, or give the file its old name back. Nothing was started"
        )
    return Accepted(services[0], members)


def write_accepted(root: Path, accepted: Accepted) -> None:
    """In one step: whoever is killed meanwhile leaves what was accepted before, or this."""
    services = list(dict.fromkeys(map(_text, (accepted.service, *accepted.members.values()))))
    settings = [json.loads(text) for text in services]
    members = {name: services.index(_text(service)) for name, service in accepted.members.items()}
    head = {"format": _FORMAT, "written_by": __version__, "digest": _digest(settings, members)}
    write_whole(
        root / ACCEPTED_FILE,
        json.dumps({**head, "settings": settings, "members": members}, indent=1) + "\n",
        mode=0o600,
    )


def _text(service: Service) -> str:
    return _form().dump_json(service, by_alias=True).decode()


def _digest(settings: Any, members: Any) -> str:
    return hashlib.sha256(json.dumps([settings, members], sort_keys=True).encode()).hexdigest()
