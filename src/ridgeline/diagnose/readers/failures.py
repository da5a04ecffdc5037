"""How programs of any kind fail, by the line that shows it: the one table behind a run's outcome and `diagnose`.

The first row that is found decides, so the cause comes before its consequences: what the site did, what is missing,
memory, crashes, then what only says that something failed. Workloads put rows of their own in front of these.
Patterns begin with letters where they can: logs may be long, and a search for letters is many times faster than one
for a word boundary. Texts in braces are filled from the pattern's groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.records.outcome import Kind, Move, Signature

_MEMORY_REMEDY = (
    "ask for more memory (--mem or mem= among the site's `directives`), use fewer ranks on a node or a smaller problem "
    "per rank, or lower what the program may allocate"
)
PROGRAM_REMEDY = (
    "correct `run`; name a file of your own under `workload: files` and start it as ./name, load an installed one with "
    "`job: modules`, or write its full path"
)


@dataclass(frozen=True)
class ProgramFailure(Signature):
    """`name` is the same for all rows of one failure. `outside`: said by the shell, the launcher, the batch system or
    the kernel, so that it counts whatever program wrote the rest of the log."""

    name: str = ""
    outside: bool = False


SESSION_ENDED = "ridgeline: run ended: "  # how an engine's session begins its last line where the engine did not die


def _rows(
    name: str, kind: Kind, patterns: Sequence[str], reason: str, remedy: str, **more: Any
) -> Iterator[ProgramFailure]:
    """A row for each pattern of one failure; `more` are its other fields."""
    for pattern in patterns:
        compiled = re.compile(pattern, re.MULTILINE)
        yield ProgramFailure(compiled, kind, reason, remedy=remedy, name=name, **more)


# A shell, or what starts a program in its place (env, timeout, nice, taskset...), and what it says of the program
_SHELL = r"^(?:sh|bash|dash|.*run\.sh|.*\.sh): (?:line )?\d+: (?:exec: )?"
_STARTERS = (
    r"^(?:\S*/)?(?:env|nice|nohup|timeout|stdbuf|taskset|setsid|time|xargs|numactl|strace): "
    r"(?:failed to (?:run command|execute) |cannot run |execution of )?[`'‘]?(?P<program>[^\s'’:]+)['’]?: "
)
_FEWER_RANKS = tuple(Move(knob, -1, "more ranks than slots") for knob in ("ranks_per_node", "ranks", "np", "nprocs"))

PROGRAM_FAILURES: tuple[ProgramFailure, ...] = (
    *_rows(
        "disk-full",
        Kind.SITE_FAULT,
        [r"No space left on device"],
        "the disk is full",
        "free it, write elsewhere (the site's `scratch`), or write less",
        outside=True,
    ),
    *_rows(
        "quota",
        Kind.SITE_FAULT,
        [r"Disk quota exceeded"],
        "the disk quota is used up",
        "delete what is not needed, ask for more, or put the study on another file system",
        outside=True,
    ),
    *_rows(
        "file-system",
        Kind.SITE_FAULT,
        [r"Stale (?:NFS )?file handle|Input/output error"],
        "the file system failed",
        "try again; if it stays so, tell the site's operator which node and file system",
        outside=True,
    ),
    *_rows(
        "port-in-use",
        Kind.SITE_FAULT,
        # servers, and routers: "Address already in use (os error 98)", or only that their metrics can't be served
        [r"[Aa]ddress already in use|EADDRINUSE|failed to install Prometheus metrics exporter"],
        "a port is in use",
        "end what listens there (`ss -ltnp`), or let the program take another",
        outside=True,
    ),
    *_rows(
        "no-library",
        Kind.REJECTED,
        [
            r"error while loading shared libraries: (?P<library>[^:]+)",
            r"ImportError: (?P<library>\S+): cannot open shared object file",
        ],
        "the shared library {library} was not found",
        "load the module that brings it (`job: modules`, or `modules` of the site file), or set LD_LIBRARY_PATH under "
        "`workload: env`",
        outside=True,
        lacking="library",
    ),
    *_rows(
        "no-interpreter",
        Kind.REJECTED,
        [
            _SHELL + r"(?P<program>.+): cannot execute: required file not found$",
            _SHELL + r"(?P<program>.+?): (?P<interpreter>\S+): bad interpreter: ",
        ],
        "{program} is there, but the interpreter that its first line names is not",
        "correct its first line (#!), or start it with the interpreter: `run: python3 {program}`",
        outside=True,
        lacking="program",
    ),
    *_rows(
        "not-executable",
        Kind.REJECTED,
        [
            _SHELL + r"(?P<program>[^:]+): Permission denied$",
            _STARTERS + r"Permission denied$",
            r"execve\(\): (?P<program>.+): Permission denied$",
            r"execvp error on file (?P<program>.+) \(Permission denied\)",
        ],
        "{program} may not be executed",
        "make it executable with `chmod +x {program}` where the study has it, or start it with its interpreter",
        outside=True,
        lacking="program",
    ),
    *_rows(
        "wrong-format",
        Kind.REJECTED,
        [
            _SHELL + r"(?P<program>[^:]+): (?:cannot execute binary file: )?Exec format error$",
            _STARTERS + r"Exec format error$",
        ],
        "{program} is no program for this machine",
        "build it for the node's processor; a script needs a first line such as #!/bin/sh",
        outside=True,
        lacking="program",
    ),
    *_rows(
        "no-program",
        Kind.REJECTED,
        [
            _SHELL + r"(?P<program>[^:]+): (?:not found|command not found|No such file or directory)$",
            r"(?:^|: )(?P<program>[\w.+/-]+): command not found$",
            _STARTERS + r"No such file or directory$",
            r"execve\(\): (?P<program>.+): No such file or directory$",
            r"execvp error on file (?P<program>.+) \(No such file or directory\)",
            r"^Executable: +(?P<program>\S+)$",  # Open MPI, under a sentence of three lines
        ],
        "the program {program} was not found",
        PROGRAM_REMEDY,
        outside=True,
        lacking="program",
    ),
    *_rows(
        "no-python-module",
        Kind.REJECTED,
        [r"ModuleNotFoundError: No module named '(?P<module>[^']+)'", r"python\S*: No module named (?P<module>\S+)$"],
        "Python has no module {module}",
        "install it into the environment that `run` uses, start that environment's own python, or name {module}.py "
        "under `workload: files`",
        lacking="module",
    ),
    *_rows(
        "no-gpu",
        Kind.REJECTED,
        [r"(?P<device>No CUDA GPUs are available|no CUDA-capable device is detected)"],
        "the program sees no GPU",
        "ask for GPUs with `job: gpus`, and see what CUDA_VISIBLE_DEVICES holds in the job",
        lacking="device",
    ),
    *_rows(
        "cuda-oom",
        Kind.OOM_RUN,
        [
            r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total capac\w+ of "
            r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free",
            r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+) \(GPU (?P<gpu>\d+); (?P<total>[\d.]+ \w+) "
            r"total capacity; [^;]*; (?P<free>[\d.]+ \w+) free",
        ],
        "out of GPU memory: {asked} asked for with {free} free of {total} on GPU {gpu}",
        "use a smaller batch or problem per GPU, or more GPUs; where much is reserved but unallocated, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    *_rows(
        "cuda-oom",
        Kind.OOM_RUN,
        [r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"],
        "out of GPU memory",
        "use a smaller batch or problem per GPU, or more GPUs",
    ),
    *_rows(
        "slurm-oom",
        Kind.OOM_RUN,
        [
            r"oom[_-]kill event|cgroup out-of-memory handler|^srun: error: .*: Out Of Memory$",
            r"slurmstepd.*: error: .*[Ee]xceeded (?:job|step)? ?memory limit",
        ],
        "Slurm killed it for using more memory than the job asked for",
        _MEMORY_REMEDY,
        outside=True,
    ),
    *_rows(
        "cgroup-oom",
        Kind.OOM_RUN,
        [
            r"Memory cgroup out of memory: Kill(?:ed)? process \d+ \((?P<process>[^)]*)\)",
            r"oom-kill:constraint=CONSTRAINT_MEMCG.*,task=(?P<process>[^,]+)",
        ],
        "the kernel killed {process}: the memory limit of its job or container was reached",
        _MEMORY_REMEDY,
        outside=True,
    ),
    *_rows(
        "node-oom",
        Kind.OOM_RUN,
        [
            r"Out of memory: Kill(?:ed)? process \d+ \((?P<process>[^)]*)\)",
            r"oom-kill:constraint=.*,task=(?P<process>[^,]+)",
        ],
        "the kernel killed {process}: the node's memory was used up",
        _MEMORY_REMEDY + "; see who else was on the node",
        outside=True,
    ),
    *_rows(
        "out-of-memory",
        Kind.OOM_RUN,
        [
            r"std::bad_alloc|[Cc]annot allocate memory|[Oo]ut of memory|oom-kill\b|MemoryError(?=$|:)|"
            r"insufficient virtual memory|Unable to allocate .*[KMGT]i?B",
        ],
        "out of memory",
        _MEMORY_REMEDY,
    ),
    *_rows(
        "segfault",
        Kind.CRASH,
        [
            r"Segmentation fault|SIGSEGV\b|invalid memory reference|Caught signal 11\b|segfault at [0-9a-f]+ ip",
            r"(?:exit (?:code|status)|EXIT CODE):? 139\b",
        ],
        "segmentation fault",
        "look at the innermost frame of the backtrace, if there is one; try a larger stack (`ulimit -s unlimited`, "
        "OMP_STACKSIZE) and libraries of the same build; a setting that crashes is passed over",
        outside=True,
    ),
    *_rows(
        "illegal-instruction",
        Kind.CRASH,
        [r"Illegal instruction|SIGILL\b|(?:exit (?:code|status)|EXIT CODE):? 132\b"],
        "illegal instruction: built for another processor",
        "build for the oldest processor it runs on (-march), or ask the site for nodes of one kind",
        outside=True,
    ),
    *_rows(
        "bus-error",
        Kind.CRASH,
        [r"Bus error|SIGBUS\b|(?:exit (?:code|status)|EXIT CODE):? 135\b"],
        "bus error",
        "most often /dev/shm or a disk under a mapped file is full: look at df on that node, and give a container more "
        "shared memory",
        outside=True,
    ),
    *_rows(
        "floating-point",
        Kind.CRASH,
        [r"Floating point exception|SIGFPE\b"],
        "floating point exception",
        "look for a division by zero or an empty block at this setting",
        outside=True,
    ),
    *_rows(
        "heap-damage",
        Kind.CRASH,
        [
            r"(?P<what>(?:double )?free\(\): .+|malloc\(\): .+|munmap_chunk\(\): .+|corrupted (?:size|double-linked).+"
            r"|double free or corruption.*|\*\*\* stack smashing detected \*\*\*)"
        ],
        "the program damaged its own memory: {what}",
        "it is a fault of the program that this setting brings out: run it once under valgrind or -fsanitize=address",
    ),
    *_rows(
        "gpu-fault",
        Kind.CRASH,
        [
            r"CUDA error: (?P<what>device-side assert triggered|an illegal memory access was encountered"
            r"|unspecified launch failure)"
        ],
        "a GPU kernel failed: {what}",
        "run it once with CUDA_LAUNCH_BLOCKING=1 to see which one, or under compute-sanitizer",
    ),
    *_rows(
        "slots",
        Kind.REJECTED,
        [r"not enough slots available"],
        "the launcher has fewer slots than ranks",
        "start fewer ranks, ask for more cores or nodes in `job`, or let ranks share cores on purpose (Open MPI 4 "
        "--oversubscribe, Open MPI 5 --map-by :OVERSUBSCRIBE)",
        outside=True,
        advice=_FEWER_RANKS,
    ),
    *_rows(
        "option",
        Kind.REJECTED,
        [r"(?:un(?:known|recogni[sz]ed)|invalid) (?:command.line )?(?:option|argument|flag)"],
        "the program does not accept an option",
        "correct the option in `run`; see the program's --help for this version",
    ),
    *_rows(
        "collective-timeout",
        Kind.HANG,
        [r"Watchdog caught collective operation timeout"],
        "a collective operation of the GPUs timed out: a rank did not arrive",
        "look at what the other ranks said last, and for a slow or lost node; NCCL_DEBUG=INFO shows the network",
    ),
    *_rows(
        "nccl",
        Kind.CRASH,
        [
            r"NCCL error in: .*?, (?P<what>[\w ]*\berror\b[\w ]*)",
            r"(?P<what>nccl(?:System|Internal|Remote|UnhandledCuda|InvalidUsage)Error)",
        ],
        "NCCL failed: {what}",
        "run again with NCCL_DEBUG=INFO and give that log to `ridgeline diagnose`; look at NCCL_SOCKET_IFNAME and "
        "NCCL_IB_HCA",
    ),
    *_rows(
        "link",
        Kind.CRASH,
        [r"Transport retry count exceeded on (?P<link>\S+)"],
        "the network link {link} gave up: the other side died or cannot be reached",
        "look at what the other ranks said first; if none failed, have the link and its switch port looked at",
        outside=True,
    ),
    *_rows(
        "ucx",
        Kind.CRASH,
        [r"UCX +ERROR (?P<what>.{1,120})"],
        "UCX failed: {what}",
        "see which transports it chose (UCX_LOG_LEVEL=info), and limit them with UCX_TLS and UCX_NET_DEVICES",
    ),
    *_rows(
        "mpi-error",
        Kind.CRASH,
        [
            r"\*\*\* (?P<what>MPI_ERR_\w+: .+)",
            r"Fatal error in (?P<what>(?:P?MPI|internal)_\w+: [^,]+)",
        ],
        "MPI reports a wrong call or a lost rank: {what}",
        "look at the lines around it for the call; a message to a rank that is not there often means too few ranks for "
        "this setting",
    ),
    *_rows(
        "cpp-exception",
        Kind.CRASH,
        [r"^\s+what\(\):\s+(?P<what>.+)"],
        "a C++ exception was not caught: {what}",
        "correct what it names in `run`, `inputs` or the setting",
    ),
    *_rows(
        "no-file",
        Kind.REJECTED,
        [
            r"FileNotFoundError: .*: '(?P<file>[^']+)'",
            r"can't open file '(?P<file>[^']+)': \[Errno 2\]",
            r"^(?:\w*sh): \d+: cannot open (?P<file>[^:]+): No such file$",
            r"(?:^|: |open |file |script |['\"‘])(?P<file>[^\s:'\"‘’]+)['\"’]?: No such file or directory$",
        ],
        "the file {file} was not found",
        "name it under `workload: files` (copied into every run folder) or `inputs`, or write its full path",
        lacking="file",
        last=True,
    ),
    *_rows(
        "no-access",
        Kind.REJECTED,
        [
            r"PermissionError: .*: '(?P<file>[^']+)'",
            r"(?:^|: |open |['\"‘])(?P<file>[^\s:'\"‘’]+)['\"’]?: Permission denied$",
        ],
        "{file} may not be read or written",
        "give the account that runs the job the right to it, or write elsewhere",
        lacking="file",
        last=True,
    ),
    # Ridgeline's own session on the node says why it ended the run; an exception of a server that lives on is not it
    *_rows(
        "session",
        Kind.CRASH,
        [rf"^{re.escape(SESSION_ENDED)}"],
        "the run could not be measured",
        "correct what the line names",
    ),
    *_rows(
        "python-exception",
        Kind.CRASH,
        [r"^(?:\[rank\d+\]: )?(?P<error>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:: .{0,200})?)"],
        "Python stopped with {error}",
        "correct what it names; the lines above say where in the program it was raised",
        last=True,
    ),
    # Shells print this bare word when a program got SIGKILL that we did not send; on Linux that is the OOM killer
    *_rows(
        "killed",
        Kind.OOM_RUN,
        [
            r"^(?:.*: line \d+: +\d+ )?Killed\b",
            r"on signal 9 \(Killed\)|^signal 9 \(Killed\)|KILLED BY SIGNAL: 9\b|EXIT STRING: Killed"
            r"|^srun: error: .*: Killed$|(?:exit (?:code|status)|EXIT CODE):? 137\b",
        ],
        "killed from outside, most likely for want of memory",
        "look at dmesg of the node for `Out of memory`; then " + _MEMORY_REMEDY,
        outside=True,
        echo=True,
    ),
    *_rows(
        "mpi-abort",
        Kind.CRASH,
        [
            r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
            r"application called MPI_Abort\(.*\) - process (?P<rank>\d+)",
            r"has exited due to process rank (?P<rank>\d+) ",
        ],
        "MPI abort: rank {rank} ended the whole job",
        "the reason is what that rank printed before; if there is nothing, look for its own output file",
        outside=True,
        echo=True,
    ),
    *_rows(
        "mpi-abort",
        Kind.CRASH,
        [
            r"MPI_A(?:bort|BORT)|BAD TERMINATION|processes exited with non-zero status"
            r"|noticed that process rank \d+ .*exited on"
        ],
        "MPI abort",
        "a rank ended with an error, and the launcher ended the others: the reason is what that rank printed before",
        outside=True,
        echo=True,
    ),
    *_rows(
        "task-exit",
        Kind.CRASH,
        [r"^srun: error: .*: Exited with exit code (?P<code>\d+)"],
        "a task ended with exit code {code}",
        "the reason is what that task printed before",
        outside=True,
        echo=True,
    ),
    *_rows(
        "aborted",
        Kind.CRASH,
        [r"^(?:.*: line \d+: +\d+ )?Aborted\b|Assertion .*failed|SIGABRT\b"],
        "the program aborted itself",
        "the reason is what it printed before",
        outside=True,
        echo=True,
    ),
)
BY_SIGNAL = {4: "illegal-instruction", 7: "bus-error", 8: "floating-point", 9: "killed", 11: "segfault"}

# Each line that a row matches has one of these. Looking for them is fifty times faster than trying the rows.
_WORDS = (
    *("No space left", "quota exceeded", "file handle", "output error", "shared", "cannot execute", "bad interpreter"),
    *("ermission denied", "PermissionError", "format error", "not found", "No such file", "NotFoundError"),
    "Executable:",
    *("can't open", "No module named", "CUDA", "cudaError", "oom", "emory", "Out Of Memory", "bad_alloc", "allocate"),
    *("Segmentation", "SIGSEGV", "Caught signal", "segfault", "exit code", "exit status", "EXIT CODE", "Illegal"),
    *("SIGILL", "Bus error", "SIGBUS", "Floating point", "SIGFPE", "free()", "malloc()", "munmap_chunk", "corrupt"),
    *("smashing", "slots", "nknown", "nrecogni", "invalid", "Watchdog", "NCCL", "nccl", "retry count", "UCX"),
    *("MPI_", "Fatal error", "what()", "Error", "Exception", "Interrupt", "Killed", "KILLED", "TERMINATION"),
    *("process rank", "non-zero status", "Aborted", "Assertion", "SIGABRT"),
)


def failure_in(line: str) -> tuple[ProgramFailure, re.Match[str]] | None:
    """The first row that this line shows, and the match."""
    if any(word in line for word in _WORDS):
        for row in PROGRAM_FAILURES:
            if match := row.pattern.search(line):
                return row, match
    return None


def failure_named(name: str) -> ProgramFailure:
    """The first row of a failure; KeyError where there is none."""
    return {row.name: row for row in reversed(PROGRAM_FAILURES)}[name]
