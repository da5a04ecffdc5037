"""`ridgeline mcp`: the verbs as tools for coding agents, by the Model Context Protocol over stdin and stdout.

A tool runs the verb of the same name in a process of its own and answers with what that printed: an agent is told
nothing that a person at the terminal would not be told. A campaign goes on in the background, also when the agent has
gone; its folder answers whoever asks next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import Parameter, signature
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlsplit

import typer

from ridgeline import __version__, catalog
from ridgeline.errors import InputError

_MOST_TEXT = 3_500  # characters of an answer: an agent pays for each, and reads the first and the last
_MOST_START_S = 60.0  # until a campaign has its folder, or was refused
_ABOUT = """Ridgeline finds the fastest correct setting of a program, with proof. A study file holds the question; its
campaign interleaves runs, confirms the winner in fresh runs against the baseline and gives an interval.
Order: check the study, tune it (it returns at once), ask status until it is over, then best. Only a setting for which
`answered` is true was shown to be better; never report another as an improvement. `next` is what to do now."""


@dataclass(frozen=True)
class ToolAnswer:
    """`answered` is false where nothing was decided, refused or found; `text` then says why."""

    answered: bool
    text: str
    next: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


Setting = dict[str, str | int | float | bool]


def mcp(
    root: Annotated[Path, typer.Option(help="Folder below which studies and files may be read and written.")] = Path(),
    grant: Annotated[
        Path | None, typer.Option(help="Only run studies that are paid from this grant (`budget: {grant: FILE}`).")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="Host that may be loaded besides this one; may be repeated.")
    ] = None,
) -> None:
    """Serve the verbs to coding agents as tools: check, tune, compare, status, best, diagnose, bug, and those of wings.

    Speaks the Model Context Protocol on stdin and stdout; needs `pip install 'ridgeline[mcp]'`. Campaigns run in the
    background and outlive the agent. A study without a limit in node-hours is refused, and so are files outside --root.

    Example: ridgeline mcp --root studies
    """
    if not root.is_dir():
        raise InputError(f"--root {root}: no such folder; name the one that holds the studies")
    try:
        from mcp.server.mcpserver import MCPServer  # an extra, and slow to load
    except ImportError:
        raise InputError("mcp: its library is not installed; use `pip install 'ridgeline[mcp]'`") from None
    server = MCPServer("ridgeline", version=__version__, instructions=_ABOUT, log_level="ERROR")
    desk = Desk(root.resolve(), None if grant is None else grant.resolve(), tuple(hosts or ()))
    for name, tool in desk.tools().items():
        server.add_tool(tool, name=name)
    server.run()


@dataclass(frozen=True)
class Desk:
    """What agents may do from here: files below `root`, studies paid from `grant`, load to this host and `hosts`."""

    root: Path
    grant: Path | None = None
    hosts: tuple[str, ...] = ()
    started: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def tools(self) -> dict[str, Callable[..., ToolAnswer]]:
        """Name -> function, its docstring and arguments being what agents read; refusals are answers."""
        own = (self.check, self.tune, self.compare, self.status, self.best, self.stop, self.diagnose, self.bug)
        brought = {
            name: self._verb(catalog.at(place)) for wing, _ in catalog.wings() for name, place in wing.tools.items()
        }
        return {name: _refusing(tool) for name, tool in {**brought, **{each.__name__: each for each in own}}.items()}

    def check(self, study: str) -> ToolAnswer:
        """Validate a study file: how many settings are legal, what the campaign may cost at most, what is doubtful.
        Nothing is run."""
        found = self._answer(["check", self._inside(study)])
        return replace(found, next="tune it" if found.answered else "mend the study file, then check again")

    def tune(self, study: str, trials: int | None = None, folder: str | None = None) -> ToolAnswer:
        """Start the campaign of a study file: baseline, search, confirmation in fresh interleaved runs. Returns at
        once; ask `status` with the folder it names. A campaign that was stopped goes on where it was."""
        path = self._inside(study)
        cost = self._affordable(path)
        out = self._inside(folder or f"studies/{cost['name']}")
        if (out / "journal.jsonl").exists():
            kept = out / "study.yaml"
            if trials or not kept.is_file() or kept.read_bytes() != path.read_bytes():
                raise InputError(
                    f"{out}: holds a campaign of another study, or of this one as it was; name another folder"
                )
            arguments: list[str | Path] = ["resume", out]
        else:
            arguments = ["tune", path, "--out", out, *(["--trials", str(trials)] if trials else [])]
        return self._start(arguments, out, cost)

    def compare(
        self, study: str, b: Setting, a: Setting | None = None, blocks: int | None = None, folder: str | None = None
    ) -> ToolAnswer:
        """Start fresh interleaved runs of setting `b` (its changes from `a`, by default the study's baseline) against
        `a`. Returns at once; `best` then gives the verdict with its interval. Use this, not two runs by hand."""
        path = self._inside(study)
        cost = self._affordable(path)
        out = self._free(self._inside(folder or f"studies/{cost['name']}-compare"))
        more = [*(["--a", json.dumps(a)] if a else []), *(["--blocks", str(blocks)] if blocks else [])]
        return self._start(["compare", path, json.dumps(b), *more, "--out", out], out, cost)

    def status(self, folder: str) -> ToolAnswer:
        """How far a campaign is: its stage, runs, failures, what was spent and when it should end."""
        path = self._inside(folder)
        now = self._json(["status", path])
        text = _said(self._ran(["status", path]))
        if now is None:
            log = _log_path(path)
            more = f"\n{_cut(log.read_text(errors='replace'))}" if log.exists() else ""
            return ToolAnswer(False, text + more, "give the folder that tune or compare named")
        over = now["verdict"] is not None or now["stopped"] is not None
        facts = {name: now[name] for name in ("stage", "trials", "runs", "node_hours", "answered")}
        return ToolAnswer(over, text, "best" if over else "ask again later", facts)

    def best(self, folder: str) -> ToolAnswer:
        """The verdict of a campaign: the setting to use with its interval, or why there is none. Where `answered` is
        false, no setting was shown to be better, and none may be called better."""
        path = self._inside(folder)
        found = self._json(["best", path])
        if found is None:
            return ToolAnswer(False, _said(self._ran(["best", path])))
        facts = {name: found[name] for name in ("verdict", "confirmed", "statement", "change", "simulated")}
        if found["answered"]:
            facts |= {"settings": found["settings"], "paste": found["paste"]}
            return ToolAnswer(True, found["statement"], "use `paste`; ridgeline study verify recomputes it", facts)
        advice = found["next_step"] or ("keep the baseline" if found["verdict"] else "status, until it is over")
        return ToolAnswer(False, found["lacks"], advice, facts)

    def stop(self, folder: str) -> ToolAnswer:
        """Stop a campaign that this server started. Nothing that was measured is lost; `tune` continues it."""
        path = self._inside(folder)
        process = self.started.get(path)
        if process is None or process.poll() is not None:
            return ToolAnswer(False, f"{path}: nothing that this server started runs there")
        process.send_signal(signal.SIGINT)
        return ToolAnswer(True, "stopping: its runs are ended and written down", "status")

    def diagnose(self, file: str) -> ToolAnswer:
        """What a log, an output, a profile or a run's folder shows: findings, the deciding lines, what to do."""
        return self._answer(["diagnose", self._inside(file)])

    def bug(self, run: str) -> ToolAnswer:
        """A failed run (its folder) as a bug report: command, versions, the deciding line, what was tried."""
        return self._answer(["study", "bug", self._inside(run)])

    def _answer(self, arguments: Sequence[str | Path]) -> ToolAnswer:
        done = self._ran(arguments)
        return ToolAnswer(done.returncode == 0, _said(done))

    def _verb(self, tool: Callable[..., Sequence[str]]) -> Callable[..., ToolAnswer]:
        """A tool of a wing gives the command line to run, and names a `url` where it sends load to one."""

        @wraps(tool)
        def run(**given: Any) -> ToolAnswer:
            if url := given.get("url"):
                self._allowed(url)
            for name in (each for each in given.values() if isinstance(each, str) and "/" in each and each != url):
                self._inside(name)  # a file of a model or of traffic
            return self._answer(tool(**given))

        return run

    def _inside(self, path: str) -> Path:
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root):
            raise InputError(f"{path}: is outside {self.root}; this server reads and writes below that folder alone")
        return found

    def _allowed(self, url: str) -> None:
        host = urlsplit(url).hostname or ""
        try:
            here = ip_address(host).is_loopback
        except ValueError:
            here = host == "localhost"
        if not here and host not in self.hosts:
            raise InputError(f"{url}: load goes to this machine alone; start `ridgeline mcp --host {host or 'HOST'}`")

    def _free(self, wanted: Path) -> Path:
        others = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 10_000))
        return wanted if not wanted.exists() else next(path for path in others if not path.exists())

    def _affordable(self, study: Path) -> dict[str, Any]:
        """What `check` says of it; InputError where nothing bounds its cost, or another grant than ours pays."""
        found = self._json(["check", study])
        if found is None or not found["ok"]:
            raise InputError(_said(self._ran(["check", study])))
        if found["cost"]["node_hours"] is None:
            raise InputError(f"{study}: nothing bounds what it costs; give it `budget: {{node_hours: N}}` or trials")
        if self.grant is not None and found["grant"] != str(self.grant):
            raise InputError(f"{study}: is not paid from the grant; give it `budget: {{grant: {self.grant}}}`")
        return found

    def _start(self, arguments: Sequence[str | Path], out: Path, cost: Mapping[str, Any]) -> ToolAnswer:
        log = _log_path(out)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                _command(arguments), stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self.root,
                start_new_session=True,
            )  # fmt: skip
        self.started[out] = process
        until = time.monotonic() + _MOST_START_S
        while time.monotonic() < until and not (out / "journal.jsonl").exists() and process.poll() is None:
            time.sleep(0.05)
        shown = out.relative_to(self.root).as_posix()
        if process.poll() not in (None, 0, 1):
            return ToolAnswer(False, _cut(log.read_text(errors="replace")), "mend what it says, and start it again")
        text = f"runs in {shown}: at most {cost['cost']['node_hours']:.3g} node-hours"
        return ToolAnswer(True, text, f"status of {shown}, from time to time; then best", {"folder": shown})

    def _ran(self, arguments: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            _command(arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            cwd=self.root, check=False, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        )  # fmt: skip

    def _json(self, arguments: Sequence[str | Path]) -> dict[str, Any] | None:
        """What a verb prints with --json; None where it printed nothing but an error."""
        printed = self._ran([*arguments, "--json"]).stdout
        return json.loads(printed) if printed.strip() else None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return _cut("\n".join(part for part in (done.stdout.strip(), done.stderr.strip()) if part))


def _log_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.log")


def _command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "ridgeline", *map(str, arguments)]


def _cut(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _refusing(tool: Callable[..., ToolAnswer]) -> Callable[..., ToolAnswer]:
    """What is refused is an answer with its reason, as every verb gives it, and not a failure of the protocol."""

    @wraps(tool)
    def run(**given: Any) -> ToolAnswer:
        try:
            return tool(**given)
        except InputError as error:
            return ToolAnswer(False, str(error))

    hints = get_type_hints(tool)
    asked = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in signature(tool).parameters.values()
    ]
    run.__signature__ = signature(tool).replace(parameters=asked, return_annotation=ToolAnswer)  # type: ignore[attr-defined]
    return run
