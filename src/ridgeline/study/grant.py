"""A grant of node-hours or service units that several studies and people share: one append-only file of JSON lines.

A campaign reserves the most that a run may take before it is submitted, and settles it with what it took. Each line
holds a digest of itself and all before it, so that a line that was edited, removed or moved is seen; only lines cut off
the end are not. Everybody writes under a flock of the file: on NFS that works between hosts from version 4, or with
lockd, and not on mounts with `nolock`.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, SiteError, StoreError

NODE_HOURS = "node-hours"
BATCH_SYSTEM, MEASURED = "batch system", "measured"  # who says what a run took
_EXACT = 1e-9  # sums of hours are not exact


Paid = int | str  # the number of a run, or a build on the site by its name


class GrantUsedUp(SiteError):  # noqa: N818  nothing went wrong
    """What is left of a grant is less than a job may take."""


@dataclass(frozen=True, slots=True)
class GrantedRun:
    """What a run or a build has reserved, or has spent once it is settled, in the grant's unit."""

    study: str
    run: Paid
    who: str
    at: float
    reserved: float = 0.0
    spent: float = 0.0
    source: str = ""  # who says what it spent: measured, or the batch system


@dataclass
class Grant:
    """A grant as its lines say. `runs` are those of all studies, by folder and number."""

    unit: str = NODE_HOURS
    per_node_hour: float = 1.0
    total: float = 0.0
    runs: dict[tuple[str, Paid], GrantedRun] = field(default_factory=dict)
    chain: str = ""  # digest of the last line

    @property
    def spent(self) -> float:
        return sum(run.spent for run in self.runs.values())

    @property
    def reserved(self) -> float:
        return sum(run.reserved for run in self.runs.values())

    @property
    def left(self) -> float:
        return self.total - self.spent - self.reserved

    def unsettled(self, study: str) -> list[Paid]:
        """Runs that are reserved, or settled as measured and not yet as the batch system charged them."""
        return [run.run for run in self.runs.values() if run.study == study and run.source != BATCH_SYSTEM]

    def apply(self, line: dict[str, Any]) -> None:
        act, amount = line["act"], float(line["amount"])
        if act == "grant":
            self.total += amount
            self.unit = str(line.get("unit", self.unit))
            self.per_node_hour = float(line.get("per_node_hour", self.per_node_hour))
            return
        key = str(line["study"]), line["run"] if isinstance(line["run"], str) else int(line["run"])
        known = self.runs.get(key) or GrantedRun(*key, str(line["by"]), float(line["at"]))
        if act == "reserve":
            self.runs[key] = replace(known, reserved=amount)
        else:
            self.runs[key] = replace(known, reserved=0.0, spent=amount, source=str(line["source"]))


def create(path: Path, amount: float, unit: str = NODE_HOURS, per_node_hour: float = 1.0) -> Grant:
    """A new ledger; those who share it must be able to write it."""
    _require_amount(amount)
    if not per_node_hour > 0:
        raise InputError(f"{per_node_hour:g} {unit} a node-hour is not a rate; give a number above 0")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664))
    except FileExistsError:
        raise InputError(
            f"{path} is there already; add to it with `ridgeline site grant top-up {path} AMOUNT`"
        ) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be made ({error.strerror}); choose a folder that you can write") from None
    with _locked(path, new=True) as ledger:
        ledger.append(act="grant", amount=amount, unit=unit, per_node_hour=per_node_hour)
    return ledger.grant


def top_up(path: Path, amount: float) -> Grant:
    _require_amount(amount)
    with _locked(path) as ledger:
        ledger.append(act="grant", amount=amount)
    return ledger.grant


def reserve(path: Path, study: str, run: Paid, node_hours: float) -> None:
    """Set aside what a run may take at most. GrantUsedUp where that is more than is left; what is reserved stays so."""
    with _locked(path) as ledger:
        grant = ledger.grant
        amount = node_hours * grant.per_node_hour
        if (known := grant.runs.get((study, run))) is not None and known.reserved:
            return  # by a controller that did not live to submit it
        if amount > grant.left + _EXACT:
            what, limit = ("a build", "builds: limit") if isinstance(run, str) else ("a run", "job: limit")
            raise GrantUsedUp(
                f"the grant {path} has {grant.left:.4g} of {grant.total:.4g} {grant.unit} left ({grant.spent:.4g} "
                f"spent, {grant.reserved:.4g} reserved for runs under way), and {what} may take {amount:.4g}: nothing "
                f"more is submitted. Add to it with `ridgeline site grant top-up {path} AMOUNT`, or shorten `{limit}`, "
                "then resume"
            )
        ledger.append(act="reserve", study=study, run=run, amount=amount)


def settle(path: Path, study: str, run: Paid, node_hours: float, source: str) -> None:
    """What a run took, instead of what was reserved for it; what is so settled already is not written again."""
    with _locked(path) as ledger:
        known = ledger.grant.runs.get((study, run))
        amount = node_hours * ledger.grant.per_node_hour
        if known is None:
            return  # it ran before the study had this grant
        if not known.reserved and abs(known.spent - amount) < _EXACT and known.source == source:
            return
        ledger.append(act="settle", study=study, run=run, amount=amount, source=source)


def release(path: Path, study: str) -> int:
    """Give back what a campaign has reserved that will never be resumed; how many runs that were."""
    with _locked(path) as ledger:
        waiting = [run for run in ledger.grant.runs.values() if run.study == study and run.reserved]
        if not waiting:
            known = (
                ", ".join(dict.fromkeys(run.study for run in ledger.grant.runs.values() if run.reserved)) or "nobody"
            )
            raise InputError(f"{path} holds no reservation of {study}; reserved for: {known}")
        for run in waiting:
            ledger.append(act="settle", study=study, run=run.run, amount=0.0, source=f"released by {_user()}")
    return len(waiting)


def read_grant(path: Path) -> Grant:
    """StoreError names the first line that does not follow from those before it; InputError: there is no ledger."""
    with _locked(path, shared=True) as ledger:
        return ledger.grant


def _require_amount(amount: float) -> None:
    if not 0 < amount < float("inf"):
        raise InputError(f"{amount:g} is not an amount; give a number above 0")


@dataclass
class _Ledger:
    """The file while it is ours. `end` is where its last whole line ends: what follows was cut off by a kill."""

    descriptor: int
    grant: Grant
    end: int

    def append(self, **line: object) -> None:
        entry = {"at": round(time.time(), 3), "by": f"{_user()}@{socket.gethostname()}", **line}
        chain = _digest(self.grant.chain, entry)
        text = json.dumps({**entry, "chain": chain}, separators=(",", ":")) + "\n"
        os.ftruncate(self.descriptor, self.end)
        os.pwrite(self.descriptor, text.encode(), self.end)
        os.fsync(self.descriptor)
        self.grant.apply(entry)
        self.grant.chain = chain
        self.end += len(text.encode())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container knows no names


@contextmanager
def _locked(path: Path, *, shared: bool = False, new: bool = False) -> Iterator[_Ledger]:
    try:
        descriptor = os.open(path, os.O_RDONLY if shared else os.O_RDWR)
    except FileNotFoundError:
        raise InputError(f"{path}: no such grant; make it with `ridgeline site grant create {path} AMOUNT`") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened ({error.strerror}); its group must be able to write it") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be locked ({error.strerror}); put the grant on a file system with locks (on NFS not "
                "mounted with nolock), or several people would spend the same hours"
            ) from None
        content = b""
        while piece := os.read(descriptor, 1 << 20):
            content += piece
        yield _Ledger(descriptor, _replayed(path, content, new=new), content.rfind(b"\n") + 1)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); free space or check the disk") from None
    finally:
        os.close(descriptor)


def _replayed(path: Path, content: bytes, *, new: bool) -> Grant:
    grant = Grant()
    for number, text in enumerate(content.split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
            chain = line.pop("chain")
            follows = chain == _digest(grant.chain, line)
            if follows:
                grant.apply(line)
        except (ValueError, LookupError, TypeError, AttributeError):
            follows = False
        if not follows:
            raise StoreError(
                f"{path}:{number}: this line does not follow from those before it: the file was edited by hand, or "
                "written without a working lock. Restore it from a copy, or make a new grant of what is left with "
                "`ridgeline site grant create`"
            )
        grant.chain = chain
    if not grant.chain and not new:
        raise StoreError(
            f"{path}: is empty, so nothing was granted; restore it from a copy, or remove it and create it"
        )
    return grant


def _digest(before: str, entry: dict[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:32]
