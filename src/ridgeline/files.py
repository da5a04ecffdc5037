"""Files put in place in one step; files that may be missing, pipes or gzipped. Open to every room, like errors."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LARGEST_UNZIPPED_BYTES = 512 << 20
_LARGEST_READ_BYTES = 256 << 20  # of a file that is read as a whole
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
        with partial.open("xb") as file:  # new: never through a link that somebody placed there meanwhile
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


class NotRegularError(OSError):
    """A name that leads to a pipe, a device or a socket, which could keep a reader waiting for ever."""


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading. NotRegularError, without waiting, for what a program put there in place of a file.

    Every reader of what others wrote opens it here.
    """
    _require_regular(path.stat(), path)  # first: opening some devices does something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor), path)  # again: it may have been exchanged meanwhile
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(seen: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(seen.st_mode):
        return
    if stat.S_ISDIR(seen.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((name for is_it, name in kinds if is_it(seen.st_mode)), "a device")
    raise NotRegularError(errno.EINVAL, f"is {kind}, not a regular file", str(path))


def read_regular(path: Path, largest_bytes: int = _LARGEST_READ_BYTES) -> bytes:
    """All that a regular file holds. OSError as `open_regular`, and where it holds more than `largest_bytes`."""
    with open_regular(path) as file:
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        raise OSError(errno.EFBIG, f"is larger than {largest_bytes >> 20} MiB", str(path))
    return content


def read_text(path: Path, largest_bytes: int = _LARGEST_READ_BYTES) -> str:
    """The text of a regular file, whatever its bytes; line ends become newlines. OSError as `read_regular`."""
    return plain_lines(read_regular(path, largest_bytes))


def plain_lines(content: bytes) -> str:
    """As text, whatever the bytes; line ends become newlines."""
    return content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def text_of(path: Path) -> str:
    """What a text file holds, whatever its bytes; nothing where it cannot be read."""
    try:
        return read_text(path)
    except OSError:
        return ""


def beginning_of(path: Path, most_bytes: int) -> str:
    """The first so many bytes of a text file, unzipped where it is gzipped. OSError where it is torn or no file."""
    return plain_lines(_beginning(path, most_bytes)[0])


def read_unzipped(path: Path, largest_bytes: int | None = None) -> bytes:
    """What a file holds, gzipped or not, whatever its name is.

    OSError also where the zipped part is torn, or unpacks to more than anybody writes: a kilobyte can hold a gigabyte.
    """
    largest_bytes = LARGEST_UNZIPPED_BYTES if largest_bytes is None else largest_bytes
    content, zipped = _beginning(path, largest_bytes + 1, whole=True)
    if zipped and len(content) > largest_bytes:
        raise OSError(errno.EFBIG, f"unpacks to more than {largest_bytes >> 20} MiB", str(path))
    return content


def _beginning(path: Path, most_bytes: int, whole: bool = False) -> tuple[bytes, bool]:
    """The first so many bytes, unzipped, and whether they were zipped; `whole`: all of a file that is not."""
    with open_regular(path) as file:
        zipped = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not zipped:
            return file.read(-1 if whole else most_bytes), False
        import gzip

        try:
            with gzip.open(file) as stream:
                return stream.read(most_bytes), True
        except (EOFError, zlib.error) as torn:
            raise OSError(errno.EIO, f"torn gzip file: {torn}", str(path)) from None


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
