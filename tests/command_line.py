"""`ridgeline` as a process of its own, forked from one that has imported everything already.

Half a second of most verbs is imports. A process that was forked is one in all that a verb can notice: it has its own
pid, working directory, environment, streams and exit code, and nothing of an earlier one. What it shares with its
siblings is the seed of hashes; tests of processes as such (signals, start-up, the same twice) start Python themselves.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")


def ridgeline(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, "-m", "ridgeline", *words], capture_output=True, text=True, ...)`.

    `before` is Python that the process runs first.
    """
    given = dict(os.environ if env is None else env)
    argv = [sys.executable, "-m", "ridgeline", *map(str, words)]
    if _python(given) != _python(os.environ):  # what Python itself reads when it starts
        return subprocess.run(argv, cwd=cwd, env=given, capture_output=True, text=True, timeout=timeout, check=False)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = {"words": argv[3:], "cwd": str(cwd or Path.cwd()), "env": given, "before": before}
        code = _parent().run(request, (out.fileno(), err.fileno()), timeout)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(argv, code, *texts)


def _python(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LC_", "LANG", "TZ"))}


class _Parent:
    """The process that is forked, as seen from the tests. It ends with them."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def run(self, request: dict[str, Any], streams: tuple[int, int], timeout: float) -> int:
        text = json.dumps(request).encode()
        socket.send_fds(self._line, [_LENGTH.pack(len(text))], streams)
        self._line.sendall(text)
        pid = _LENGTH.unpack(_read(self._line, _LENGTH.size))[0]
        self._line.settimeout(timeout)
        try:
            status = _STATUS.unpack(_read(self._line, _STATUS.size))[0]
        except TimeoutError:
            os.kill(pid, 9)
            self._line.settimeout(None)
            _read(self._line, _STATUS.size)
            raise subprocess.TimeoutExpired(["ridgeline", *request["words"]], timeout) from None
        finally:
            self._line.settimeout(None)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self._line.close()
        self._process.wait()


_started: list[_Parent] = []


def _parent() -> _Parent:
    if not _started:
        _started.append(_Parent())
        atexit.register(_started[0].close)
    return _started[0]


def _read(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = line.recv(size - len(found))
        if not piece:
            raise EOFError("the other side is gone")
        found += piece
    return found


# the other side


def _serve(line: socket.socket) -> None:
    package: Any = importlib.import_module("ridgeline")
    for module in pkgutil.walk_packages(package.__path__, "ridgeline."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    while True:
        header, streams, _, _ = socket.recv_fds(line, _LENGTH.size, 2)
        if not header:
            return
        request = json.loads(_read(line, _LENGTH.unpack(header)[0]))
        pid = os.fork()
        if not pid:
            line.close()
            _become(request, streams)
        for stream in streams:
            os.close(stream)
        line.sendall(_LENGTH.pack(pid))
        line.sendall(_STATUS.pack(os.waitpid(pid, 0)[1]))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """A fresh `python -m ridgeline`, from its first line to its end."""
    code: object = 1
    try:
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        command_line: Any = importlib.import_module("ridgeline.cli.main")
        sys.argv = [str(Path(command_line.__file__).parents[1] / "__main__.py"), *request["words"]]
        exec(request["before"], {})
        command_line.main()
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    finally:
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            for face in (sys.stdout, sys.stderr):
                if not face.closed:
                    face.flush()
        finally:
            os._exit(int(code or 0) & 0xFF)


if __name__ == "__main__":
    del sys.path[0]  # this folder; a fresh `python -m` has the working directory there
    sys.path.insert(0, "")
    _serve(socket.socket(fileno=int(sys.argv[1])))
