"""Baked JIT caches as files: what they were baked for, a tar that each node unpacks, an image that Apptainer mounts."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import SiteError
from ridgeline.files import in_one_step, write_whole
from ridgeline.records.json_form import JsonForm, in_json
from ridgeline.serving.workloads.engine.prepare import CACHES_INSIDE

DONE = "done"
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 4096
_SUPERUSER_PATH = ":/usr/sbin:/sbin"  # where mke2fs is, and where the PATH of users often does not lead


@dataclass(frozen=True, slots=True)
class Manifest(JsonForm):
    """What baked caches say of themselves. `ready_s` is how long the start took that filled them; of a tar or an image
    `file` is its name, with its size and checksum."""

    release: str
    ready_s: float | None
    baked_s: float
    gpu: str = field(default="", metadata=in_json(if_any=True))
    key: str = field(default="", metadata=in_json(if_any=True))
    file: str = field(default="", metadata=in_json(if_any=True))
    file_bytes: int = 0
    sha256: str = field(default="", metadata=in_json(if_any=True))

    @classmethod
    def of(cls, kept: Path) -> Manifest | None:
        """None where there is none, or it was not finished."""
        try:
            said = json.loads((kept / DONE).read_text())
            cold_s = None if said["ready_s"] is None else float(said["ready_s"])
            texts = {name: str(said.get(name, "")) for name in ("gpu", "key", "file", "sha256")}
            return cls(str(said["release"]), cold_s, float(said["baked_s"]), file_bytes=int(said.get("file_bytes", 0)),
                       **texts)  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, kept: Path) -> None:
        """As the last step of baking: without it nothing is there."""
        write_whole(kept / DONE, json.dumps(asdict(self)) + "\n", survives_power_cut=False)
        for old in kept.glob("caches-*"):
            if old.name != self.file:
                old.unlink(missing_ok=True)

    def why_not(self, kept: Path, release: str, gpu: str, key: str) -> str:
        """Why a run of this release, GPU and key cannot start from them; empty where it can."""
        if self.release != release:
            return f"was baked by release {self.release}, this is {release}"
        if self.gpu != gpu and self.key:  # older ones say neither; their folder's name does
            return f"was baked on {self.gpu or 'no GPU'}, this is {gpu or 'no GPU'}"
        if self.key and self.key != key:
            return "was baked for another model, layout or engine"
        return self._damage(kept / self.file) if self.file else ""

    def _damage(self, path: Path) -> str:
        try:
            size = path.stat().st_size
            if size != self.file_bytes:
                return f"is damaged: {path.name} has {size} of {self.file_bytes} bytes"
            return "" if _sha256_of(path) == self.sha256 else f"is damaged: {path.name} does not match its checksum"
        except OSError as error:
            return f"is damaged: {path.name} cannot be read ({error.strerror})"


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def packed(kept: Path, suffix: str, make: Callable[[Path], None]) -> dict[str, Any]:
    """Put what `make` writes into `kept`, in one step and under a name of its own: whoever reads an older one can go
    on. Returns what a manifest says of it."""
    kept.mkdir(parents=True, exist_ok=True)
    with in_one_step(kept / f"new{suffix}") as partial:
        make(partial)
        checksum = _sha256_of(partial)
    file = (kept / f"new{suffix}").replace(kept / f"caches-{checksum[:8]}{suffix}")
    return {"file": file.name, "file_bytes": file.stat().st_size, "sha256": checksum}


def make_tar(folder: Path, path: Path) -> None:
    with tarfile.open(path, "x") as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, entry.name)


def unpack(tar: Path, folder: Path) -> None:
    """In place of whatever is there. SiteError where the node has no room for it."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True, mode=0o700)
        with tarfile.open(tar, "r:") as opened:
            if hasattr(tarfile, "tar_filter"):  # Python 3.11.2, which Debian 12 has, knows no filters
                opened.extraction_filter = tarfile.tar_filter
            opened.extractall(folder)  # noqa: S202  of our own making, by its checksum
    except (OSError, tarfile.TarError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SiteError(
            f"{tar} cannot be unpacked to {folder} on {os.uname().nodename}: {error}; set the site's `scratch` to a "
            "disk of the nodes with room for it, or use `bake_into: folder`"
        ) from error


class NodeFolder:
    """A folder on this node's own disk, held until it is given back.

    Its path is the same in every job that has no scratch of its own, since what some compilers build names its place
    (FlashInfer's build files do). Where another job on this node holds that one, it is a folder beside it.
    """

    def __init__(self, name: str) -> None:
        home = Path(os.environ.get("RIDGELINE_SCRATCH") or tempfile.gettempdir()) / f"ridgeline-{os.getuid()}"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home.is_symlink() or home.stat().st_uid != os.getuid():
            raise OSError(errno.EPERM, "belongs to another user", str(home))
        self._lock = (home / f"{name}.lock").open("a")
        self.path = home / name
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.path = home / f"{name}-{os.getpid()}"
        shutil.rmtree(self.path, ignore_errors=True)

    def give_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def image_tool() -> str:
    """The program that makes overlay images here. SiteError where there is none."""
    for name in ("mksquashfs", "mke2fs"):
        if found := shutil.which(name, path=os.environ.get("PATH", os.defpath) + _SUPERUSER_PATH):
            return found
    raise SiteError(
        f"bake_into: overlay needs mksquashfs or mke2fs on {os.uname().nodename}; install squashfs-tools there, or use "
        "`bake_into: tar`"
    )


def image_suffix(tool: str) -> str:
    return ".sqfs" if Path(tool).name == "mksquashfs" else ".img"


def _image_command(tool: str, root: Path, image: Path) -> list[str]:
    """Make `image` of the folder `root`, the top of what Apptainer lays over a container."""
    if image_suffix(tool) == ".sqfs":
        return [tool, str(root), str(image), "-noappend", "-no-progress"]
    files = [path for path in root.rglob("*") if not path.is_symlink()]
    data = sum(-(-path.stat().st_size // _BLOCK_BYTES) * _BLOCK_BYTES for path in files)
    inodes = 2 * len(files) + 256
    size_kib = (data * 5 // 4 + inodes * 512 + (8 << 20)) >> 10
    more = ["-b", str(_BLOCK_BYTES), "-N", str(inodes), "-m", "0", "-d", str(root)]
    return [tool, "-q", "-F", "-t", "ext3", *more, str(image), f"{size_kib}k"]


def make_image(tool: str, root: Path, image: Path) -> None:
    """Of what is below `root`, where CACHES_INSIDE leads. SiteError with what the tool said."""
    if image_suffix(tool) != ".sqfs":
        # of an ext3 image Apptainer takes `upper`, as its own `overlay create` lays it out
        upper = root / "upper"
        upper.mkdir()
        (root / "work").mkdir()
        (root / CACHES_INSIDE.lstrip("/")).rename(upper / CACHES_INSIDE.lstrip("/"))
    done = subprocess.run(_image_command(tool, root, image), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise SiteError(f"{tool} made no image of the baked caches (exit code {done.returncode}): {last[0]}")
