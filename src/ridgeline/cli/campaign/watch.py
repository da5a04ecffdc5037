from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.campaign import watched
from ridgeline.errors import StoreError
from ridgeline.report.live import server
from ridgeline.study import folder as study_folder

if TYPE_CHECKING:
    from ridgeline.report.live.snapshot import Watched


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR|FOLDER", help="A study folder, or a folder of several.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = ("127.0.0.1"),
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token of your own, instead of a new one each time.")
    ] = None,
) -> None:
    """Show a campaign in the browser while it runs; pause it, stop it, add to its budget, try a setting.

    Prints the address, with its token.

    Example: ridgeline watch studies --port 8765
    """
    token = server.token_from(token_file, host)
    found = FoundFolders(folder)
    shown = server.Dashboard(found.look_around, str(folder), found.several)
    server.serve(shown, host, port, token, lambda line: print(line, flush=True))


def journals_below(root: Path) -> set[Path]:
    """Folders with a journal, one or two levels below."""
    return {path.parent for depth in ("*", "*/*") for path in root.glob(f"{depth}/journal.jsonl")}


_OF_A_STUDY = ("study.yaml", "sources", "runs")


class FoundFolders:
    """The studies at a path: itself, or those one or two folders below; they may come and go."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, Watched] = {}
        self.several = not (root / "study.yaml").is_file()
        if not self.several and not (root / "journal.jsonl").is_file():
            study_folder.StudyFolder.open(root)  # says what is missing
        if self.several and (not root.is_dir() or not self._paths()):
            raise StoreError(f"{root}: no study folder here, nor in a folder below; name what `ridgeline tune` wrote")

    def _paths(self) -> list[Path]:
        if not self.several:
            return [self._root]
        # others keep a journal too, as a service does; a study that has lost its file is shown as damaged
        return sorted(p for p in journals_below(self._root) if any((p / name).exists() for name in _OF_A_STUDY))

    def look_around(self) -> dict[str, Watched]:
        shown: dict[str, Watched] = {}
        for path in self._paths():
            if path not in self._known:
                self._known[path] = watched.WatchedStudy(path)
            name = path.relative_to(self._root) if self.several else path.resolve().name
            shown[_slug(str(name), shown)] = self._known[path]
        return shown


def _slug(path: str, taken: dict[str, Watched]) -> str:
    """The folder's name as part of an address."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", path).strip("-") or "study"
    return slug if slug not in taken else next(f"{slug}-{n}" for n in range(2, 10**6) if f"{slug}-{n}" not in taken)
