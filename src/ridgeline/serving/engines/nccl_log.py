"""NCCL's own lines (NCCL_DEBUG=INFO) among any program's output: version, settings, NICs, transports, algorithms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ridgeline.diagnose.readers.lines import plain, whole

_LINE = re.compile(r"NCCL (INFO|WARN|ERROR) (.*)", re.DOTALL)
_VERSION = re.compile(r"NCCL version ([\w.+-]{1,40})", re.ASCII)
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{2,40}) set (?:by environment )?to (\S{1,200})", re.ASCII)
_EXPORTED = re.compile(
    r"^(?:\+{1,3} |export |declare -x |\+ export )?(NCCL_[A-Z0-9_]{2,40})=([^\s;]{1,200})\s*$", re.ASCII
)
_NIC = re.compile(r"\[\d{1,3}\]\s?([\w.-]{1,60}):(\d{1,3})/(IB|RoCE|Ethernet)\b", re.ASCII)
_SOCKET_NIC = re.compile(r"\[\d{1,3}\]\s?([\w.-]{1,60}):[0-9a-fA-F.:%]{3,60}<\d{1,5}>", re.ASCII)
_NETWORK = re.compile(r"Using network ([\w./-]{1,40})", re.ASCII)
_CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? ?: (\d{1,7})\[\S{1,20}\] -> (\d{1,7})\[\S{1,20}\].{0,20} via (\S{1,60})", re.ASCII
)
_COMPLETE = re.compile(r"rank (\d{1,7}) nranks (\d{1,7}) .{0,200}Init COMPLETE", re.ASCII)
_CHOSEN = re.compile(r"(?:(\w{1,40}): )?(\d{1,18}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})", re.ASCII)
_IGNORED = re.compile(r"(?=.{0,400}NCCL_)(?:.{0,400})(?:ignor|[Ii]nvalid|unknown|not supported|deprecated)")

# NCCL before 2.23 prints the numbers of its enums
_MOST_KEPT = 1000  # of what a log can repeat without end
_ALGORITHMS = dict(enumerate(("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")))
_PROTOCOLS = dict(enumerate(("LL", "LL128", "SIMPLE")))


@dataclass(frozen=True, slots=True)
class _Said:
    """A value or a text, and the line that has it."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class NcclNic:
    """`link` is IB, RoCE or Ethernet as NCCL printed it; Socket for an interface used through TCP."""

    name: str
    link: str
    line: int


@dataclass(slots=True)
class NcclTransport:
    """How many channels go this way (P2P/IPC, SHM/direct/direct, NET/IB/0/GDRDMA, ...); `line` is the first."""

    name: str
    line: int
    channels: int = 0


@dataclass(frozen=True, slots=True)
class _NcclChoice:
    """Algorithm and protocol that NCCL chose for one collective of a given size (NCCL_DEBUG_SUBSYS has TUNING)."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    line: int


@dataclass(slots=True)
class NcclLog:
    """`settings` are what NCCL says it applied, `exported` what the log shows was asked for (env, set -x, export)."""

    version: str | None = None
    settings: dict[str, _Said] = field(default_factory=dict)
    exported: dict[str, _Said] = field(default_factory=dict)
    refused: list[_Said] = field(default_factory=list)
    network: _Said | None = None
    nranks: int | None = None
    chosen: list[_NcclChoice] = field(default_factory=list)
    warnings: list[_Said] = field(default_factory=list)
    info_lines: int = 0
    warned: int = 0  # all warnings; `warnings` are the first of them
    no_p2p_line: int | None = None
    _nics: dict[tuple[str, str], NcclNic] = field(default_factory=dict)
    _transports: dict[str, NcclTransport] = field(default_factory=dict)

    @property
    def nics(self) -> list[NcclNic]:
        return list(self._nics.values())

    @property
    def transports(self) -> list[NcclTransport]:
        """Those of most channels first."""
        return sorted(self._transports.values(), key=lambda transport: -transport.channels)

    def unapplied(self, asked: Mapping[str, str]) -> dict[str, str | None]:
        """Of the settings asked for, those NCCL did not echo with this value: name -> what it says instead, or None.

        Empty where NCCL printed nothing at all: silence of a program without NCCL_DEBUG=INFO proves nothing.
        """
        if not self.info_lines:
            return {}
        said = {name: self.settings[name].value.rstrip(".") if name in self.settings else None for name in asked}
        # NCCL_DEBUG itself is never echoed: that we read INFO lines is its proof
        return {n: v for n, v in said.items() if not n.startswith("NCCL_DEBUG") and v != asked[n].rstrip(".")}

    def read(self, line: int, text: str) -> None:
        if exported := _EXPORTED.match(text):
            self.exported[exported.group(1)] = _Said(exported.group(2).strip("'\""), line)
            return
        if (version := _VERSION.search(text)) and self.version is None:
            self.version = version.group(1)
        said = _LINE.search(text)
        if said is None:
            return
        message = _Said(said.group(2)[:300], line)
        self._message(line, said.group(2))
        if said.group(1) == "INFO":
            self.info_lines += 1
        else:
            self.warned += 1
            if len(self.warnings) < _MOST_KEPT:
                self.warnings.append(message)
        if len(self.refused) < _MOST_KEPT and _IGNORED.match(said.group(2)):
            self.refused.append(message)

    def _message(self, line: int, text: str) -> None:
        if found := _CHANNEL.search(text):
            name = found.group(3)
            if name in self._transports or len(self._transports) < _MOST_KEPT:
                self._transports.setdefault(name, NcclTransport(name, line)).channels += 1
        elif found := _CHOSEN.search(text):
            self._choice(line, *found.groups())
        elif found := _SET.search(text):
            self.settings.setdefault(found.group(1), _Said(found.group(2), line))
        elif "NET/IB : Using" in text or "NET/Socket : Using" in text:
            self._read_nics(line, text)
        elif found := _NETWORK.search(text):
            self.network = self.network or _Said(found.group(1), line)
        elif "P2P is disabled" in text or "peer access is not supported" in text:
            self.no_p2p_line = self.no_p2p_line or line
        elif found := _COMPLETE.search(text):
            self.nranks = int(found.group(2))

    def _choice(self, line: int, collective: str | None, size: str, algorithm: str, protocol: str) -> None:
        size_bytes = whole(size)
        if size_bytes is None or len(self.chosen) >= _MOST_KEPT:
            return
        a, p = whole(algorithm), whole(protocol)
        name = algorithm.upper() if a is None else _ALGORITHMS.get(a, algorithm)
        kind = protocol.upper() if p is None else _PROTOCOLS.get(p, protocol)
        self.chosen.append(_NcclChoice(collective or "?", size_bytes, name, kind, line))

    def _read_nics(self, line: int, text: str) -> None:
        for name, port, link in _NIC.findall(text.partition("OOB")[0]):
            self._nics.setdefault((name, port), NcclNic(name, link, line))
        if "NET/Socket" in text:
            for name in _SOCKET_NIC.findall(text):
                self._nics.setdefault((name, ""), NcclNic(name, "Socket", line))


def read_nccl_log(lines: Iterable[str]) -> NcclLog:
    """Gather NCCL's lines; a file without any gives an empty record."""
    log = NcclLog()
    for line_number, raw in enumerate(lines, 1):
        if "NCCL" in raw:
            log.read(line_number, plain(raw)[:8000])
    return log
