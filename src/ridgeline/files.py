"""Files put in place in one step, files that may not be there or may be gzipped. Open to every room, like errors."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

LARGEST_UNZIPPED_BYTES = 512 << 20
_GZIP = b"\x1f\x8b"


@contextmanager
def in_one_step(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file or a folder to. On leaving it is renamed, or removed after an error.

    So nobody ever sees half of it, also when this process is killed.
    """
    # a native thread id is the process id, or one that no process of this machine has
    partial = path.parent / f".{path.name}.{threading.get_native_id()}.partial"
    _remove(partial)
    try:
        yield partial
        partial.rename(path)
    except BaseException:
        _remove(partial)
        raise


def write_whole(
    path: Path, content: str | Iterable[bytes], *, mode: int | None = None, survives_power_cut: bool = True
) -> None:
    """All of the content or, after a crash, the old file. `mode` as chmod takes it; None: what the umask leaves."""
    with in_one_step(path) as partial:
        with partial.open("wb") as file:
            file.writelines([content.encode()] if isinstance(content, str) else content)
            if survives_power_cut:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            partial.chmod(mode)
    if survives_power_cut:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """So that a new or renamed file is still there after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems have no fsync on folders; they order metadata themselves
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def text_of(path: Path) -> str:
    """What a text file holds, whatever its bytes; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_unzipped(path: Path) -> bytes:
    """What a file holds, gzipped or not, whatever its name is.

    OSError also where the zipped part is torn, or unpacks to more than anybody writes: a kilobyte can hold a gigabyte.
    """
    raw = path.read_bytes()
    if not raw.startswith(_GZIP):
        return raw
    import gzip

    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            content = stream.read(LARGEST_UNZIPPED_BYTES + 1)
    except (EOFError, zlib.error) as torn:
        raise OSError(errno.EIO, f"torn gzip file: {torn}", str(path)) from None
    if len(content) > LARGEST_UNZIPPED_BYTES:
        raise OSError(errno.EFBIG, f"unpacks to more than {LARGEST_UNZIPPED_BYTES >> 20} MiB", str(path))
    return content


def is_there(path: Path) -> bool:
    """Whether there is a file or folder of this name; a text that cannot be a name names none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def below_home(name: str) -> Path:
    """The path with `~` filled in; as it stands where nobody of that name has a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does; zeros where there is none."""
    try:
        seen = path.stat()
    except OSError:
        return 0, 0
    return seen.st_size, seen.st_mtime_ns
