"""The text of run.sh: what all executors share.

A person can read it and repeat the run with `sh run.sh`. When an executor starts it, the variable RIDGELINE_RUN is set
and the script also keeps state files in its folder, so that nothing depends on the controller being alive:
- `process` (on this machine only): who runs it, written so that only the first start of a run counts;
- `machine`: host, boot and GPUs, before anything of the job runs;
- `exit.used`: what the command left with and its CPU time, as soon as it has ended; a part of `exit` a moment later;
- `exit`: the exit code, start, end, host, and the CPU time, put in place in one step after the command has ended. Start
  and end are there twice: as the date, for people, and as the time since the node's boot, which nobody can set.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import SiteError
from ridgeline.executors.base import EXIT_FILE
from ridgeline.executors.energy import meters_begin, meters_end
from ridgeline.files import write_whole
from ridgeline.records.launch import STARTED_BY_DAEMONS
from ridgeline.records.run import Job, Machine
from ridgeline.records.secrets import reference_lines
from ridgeline.records.site import Site
from ridgeline.records.template import NO_VARIABLE, is_variable
from ridgeline.study.state_files import state_file, state_text

MARKER = "RIDGELINE_RUN"  # in the environment of a job and of everything it starts
STATE_FAILED = 74  # EX_IOERR of sysexits.h: run.sh could not write its own files
SCRIPT_FILE = "run.sh"
ENV_FILE = "env"

MACHINE_FILE = "machine"
USED_FILE = f"{EXIT_FILE}.used"
USUAL_LOCALE = "C.UTF-8"
_LOCALE = re.compile(r"LANG|LC_\w+")
_OF_A_LOCALE = ("LC_ALL", "LC_NUMERIC", "LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_MESSAGES")
# `date` tells nanoseconds and can be set; /proc/uptime cannot be set and tells hundredths. Where both say the same but
# for that, and for the time to ask them, nobody has set the date and the finer one counts
_CLOCKS_AGREE_S = 0.03

# batch systems run a copy in a spool folder: they need another text here
_ENTER = f'cd "$(dirname "$0")" || exit {STATE_FAILED}\n'

_MODULES = """\
command -v module >/dev/null 2>&1 || for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh; do
  [ -r "$file" ] && . "$file"
done
"""

# In a shell of its own: its variables may be in the environment of the program, and mean something else there.
# A card that sleeps may say ??? for its id, and some sandboxes hide /proc/driver; nvidia-smi knows, but takes its time.
_MACHINE = f"""\
(
  boot='' gpus=''
  [ ! -r /proc/sys/kernel/random/boot_id ] || read -r boot < /proc/sys/kernel/random/boot_id
  for file in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$file" ] || continue
    while read -r first second value; do [ "$first $second" != 'GPU UUID:' ] || gpus="$gpus $value"; done < "$file"
  done
  [ ! -e /dev/nvidiactl ] || case $gpus in '' | *'?'*)
    gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | sed -n 's/.*UUID: *\\([^ )]*\\).*/\\1/p' | tr '\\n' ' ') ;;
  esac
  printf 'host=%s\\nboot=%s\\ngpus=%s\\n' "${{host:-$(uname -n)}}" "$boot" "$gpus" > {MACHINE_FILE}
) || exit {STATE_FAILED}
"""

# The CPU time of the command alone: that of all that the shell around it has waited for. `times` of most shells counts
# in steps of 10 ms; the same process asks more finely once it has become Perl, whose own time is not that of a child.
# `date` is a child that it waits for afterwards. Nothing is printed where the number of the system call is not known.
_ASK_USAGE = """\
use Config;
my $call = $Config{archname} =~ /^x86_64/ ? 98 : $Config{archname} =~ /^(?:aarch64|riscv64)/ ? 165 :
  $Config{archname} =~ /^p(?:ower)?pc64/ ? 77 : 0;
my $used = "\\0" x 144;
if ($call && !syscall($call, -1, $used)) {
  my ($us, $uu, $ss, $su, $kib) = unpack "q5", $used;
  printf "command_cpu_s=%.6f\\nmax_rss_kib=%d\\n", $us + $ss + ($uu + $su) / 1e6, $kib;
}
wait;
exit $ARGV[0]"""
_PERL_VARIABLES = "LD_PRELOAD LD_LIBRARY_PATH PERL5LIB PERL5OPT"  # the program's: a Perl may not start with them


def run_id(folder: Path) -> str:
    """The value of RIDGELINE_RUN by which the processes of this run folder are recognised."""
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


def mark(folder: Path) -> str:
    return f"{MARKER}={run_id(folder)}"


def environment(job: Job, site: Site) -> dict[str, str]:
    """What run.sh exports: the site's environment, overruled by the job's; in a locale whose numbers have a point.

    A decimal comma would be read as the end of a number. Site and study may set a locale of their own.
    """
    merged = {**site.env, **job.env}
    for name in merged:
        if not is_variable(name):
            raise SiteError(f"env: {name!r} {NO_VARIABLE}")
    return merged if any(map(_LOCALE.fullmatch, merged)) else {"LC_ALL": USUAL_LOCALE, **merged}


def exports(env: Mapping[str, str]) -> str:
    # whoever sets LANG means it, whatever the caller's LC_ALL says
    own = "" if "LC_ALL" in env or not any(map(_LOCALE.fullmatch, env)) else f"unset {' '.join(_OF_A_LOCALE)}\n"
    return own + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def setup(job: Job, site: Site) -> str:
    """Modules and the site's own lines. A module that does not load stops the run: it would measure something else."""
    names = [shlex.quote(name) for name in (*site.modules, *job.modules)]
    failed = f">&2; exit {STATE_FAILED}; }}"
    loads = "".join(f"module load {n} || {{ echo ridgeline: a module did not load: {n} {failed}\n" for n in names)
    lines = "".join(f"{line}\n" for line in site.setup)
    return (_MODULES + loads if loads else "") + lines


def render(
    job: Job,
    site: Site,
    *,
    directives: Sequence[str] = (),
    enter: str = _ENTER,
    before: str = "",
    command: str | None = None,
    keep_state: str = f'[ -n "${{{MARKER}:-}}" ]',
) -> str:
    """The whole script. `enter` goes to its folder, `before` runs first there; where `keep_state` is true, it keeps
    state files.

    `command` runs the job's command, as `metered` gives it, and leaves `code` and `told`; without one it is run as is.
    """
    head = "".join(f"{line}\n" for line in directives)
    title = job.name.replace("\n", " ")
    started = f"{_uptime('up_began')}started=$(date +%s.%N)\n"
    ended = f"ended=$(date +%s.%N)\n  {_uptime('up_ended')}"
    secrets = "".join(f"{line}\n" for name in site.secrets for line in reference_lines(name))
    before_command, after_command = meters_begin(site, keep_state), meters_end(site, keep_state)
    if before_command:  # the clock runs without the meters, which may take part of a second
        before_command, after_command, ended = before_command + started, f"{ended}{after_command}", ""
    return f"""\
#!/bin/sh
{head}# {title}: `sh {SCRIPT_FILE}` repeats this run by hand
{_uptime("up_first")}{enter}{before}if {keep_state}; then
{_MACHINE}fi
{started}{exports(environment(job, site))}{secrets}{setup(job, site)}
{before_command}ask_usage='{_ASK_USAGE}'
if {keep_state}; then exec 7> {USED_FILE}; else exec 7> /dev/null; fi
{command or _plain(job)}
exec 7>&-
# a Perl that cannot start leaves with a code of its own; `timeout` means 124 and 137 for what it ended
if {keep_state} && [ -s {USED_FILE} ]; then
  case $code in 124|137) ;; *) read -r code < {USED_FILE} ;; esac
fi
{after_command}if {keep_state}; then
  {ended}  {{
    printf 'exit_code=%s\\nstarted_s=%s\\nended_s=%s\\nhost=%s\\n' "$code" "$started" "$ended" "${{host:-$(uname -n)}}"
    printf 'up_first_s=%s\\nup_began_s=%s\\n' "$up_first" "$up_began"
    printf 'up_ended_s=%s\\nup_left_s=%s\\ntold=%s\\n' "$up_ended" "$up_ended" "$told"
    # the command's own end comes last and counts
    while read -r line; do printf '%s\\n' "$line"; done < {USED_FILE}
  }} > {EXIT_FILE}.partial && mv -f {EXIT_FILE}.partial {EXIT_FILE} || exit {STATE_FAILED}
fi
exit "$code"
"""


def _plain(job: Job) -> str:
    return f"""\
# The command may be told to stop; this script stays, to write down how it ended.
told=''; trap 'told=TERM' TERM; trap : HUP INT
(
{metered(job, job.command)}
)
code=$?
"""


def metered(job: Job, command: str) -> str:
    """`command` in a shell of its own, and then what it left with and the CPU time that it took on file descriptor 7.

    The time is that of all processes that were waited for: launchers on this node and their ranks are among them, our
    own shells are not. What others start for it (daemons, `srun`, other nodes) cannot be seen from here, and where the
    job has such processes nothing is said. It has no single quotes, so that it reads well inside of them.
    """
    seen = job.resources.nodes == 1 and not STARTED_BY_DAEMONS.search(job.command)
    perl = f"""\
unset {_PERL_VARIABLES}
! command -v perl > /dev/null 2>&1 || exec perl -e "$ask_usage" "$code" >&7 2> /dev/null
"""
    return f"""\
trap : TERM HUP INT
(
{command}
) 7>&-
code=$?
up_ended=; [ ! -r /proc/uptime ] || read -r up_ended up_rest < /proc/uptime
{{ echo "$code"; echo "up_ended_s=$up_ended"{"; times" if seen else ""}; }} >&7
date +ended_s=%s.%N >&7 &
{perl if seen else ""}wait
exit "$code\""""


def _uptime(variable: str) -> str:
    return f"{variable}=''; [ ! -r /proc/uptime ] || read -r {variable} up_rest < /proc/uptime\n"


def write(job: Job, site: Site, text: str) -> None:
    """Put run.sh and env into the job's folder, each in one step: a shell may be about to read them."""
    try:
        secrets = "".join(f"# {name}: a secret, see {SCRIPT_FILE}\n" for name in site.secrets)
        env = exports(environment(job, site)) + secrets
        for name, content, mode in ((ENV_FILE, env, 0o644), (SCRIPT_FILE, text, 0o755)):
            write_whole(job.folder / name, content, mode=mode, survives_power_cut=False)
    except OSError as error:
        raise SiteError(
            f"{error.filename or job.folder}: cannot write the job ({error.strerror}); make room or change the folder"
        ) from error


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """What run.sh wrote at its end. Dates are 0 where `date` was ended together with the job.

    `elapsed_s` is how long the command took, on the clock that nobody can set; None on a node without one. `held_s` is
    the same for the whole script. `cpu_s` and `max_rss_bytes` are of the command and all that it waited for.
    `terminated`: the script itself was asked to stop, which nothing that it starts does.
    """

    exit_code: int
    started_s: float
    ended_s: float
    host: str
    cpu_s: float | None
    elapsed_s: float | None = None
    terminated: bool = False
    held_s: float | None = None
    max_rss_bytes: float | None = None

    @property
    def signal(self) -> int | None:
        """A shell reports death by signal n as 128 + n."""
        return self.exit_code - 128 if 128 < self.exit_code <= 128 + 64 else None


def exit_record(folder: Path) -> ExitRecord | None:
    """How the run in `folder` ended by its own account; None while it has not said so."""
    found = state_file(folder, EXIT_FILE)
    if found is None:
        return None
    text, fields = found.text, fields_in(found.text)
    if not re.fullmatch(r"\d+", fields.get("exit_code", "")):
        return None
    # `times` prints user and system time of the shell, and on a second line of all it has waited for
    minutes = re.findall(r"(\d+)m([\d.]+)s", text)
    cpu_s = sum(60 * int(m) + float(s) for m, s in minutes[2:4]) if len(minutes) >= 4 else None
    peak_kib = _seconds(fields.get("max_rss_kib", ""))
    started_s, ended_s = _seconds(fields.get("started_s", "")), _seconds(fields.get("ended_s", ""))
    elapsed_s, by_date_s = _since_boot_s(fields, "up_began_s", "up_ended_s"), ended_s - started_s
    if elapsed_s is not None and started_s and ended_s and abs(by_date_s - elapsed_s) <= _CLOCKS_AGREE_S:
        elapsed_s = by_date_s
    held_s = _since_boot_s(fields, "up_first_s", "up_left_s" if "up_left_s" in fields else "up_ended_s")
    return ExitRecord(
        exit_code=int(fields["exit_code"]),
        started_s=started_s,
        ended_s=ended_s or found.changed_s,
        host=fields.get("host", ""),
        cpu_s=_seconds(fields["command_cpu_s"]) if "command_cpu_s" in fields else cpu_s,
        elapsed_s=elapsed_s,
        terminated=bool(fields.get("told")),
        # The clock since boot ticks every 10 ms: a run between two ticks would have held its nodes for nothing
        held_s=held_s if held_s is None else max(held_s, elapsed_s or 0.0),
        max_rss_bytes=peak_kib * 1024 or None,
    )


def _since_boot_s(fields: Mapping[str, str], began: str, ended: str) -> float | None:
    """From one moment to the other, on the clock that nobody can set."""
    began_s, ended_s = _seconds(fields.get(began, "")), _seconds(fields.get(ended, ""))
    return round(max(0.0, ended_s - began_s), 2) if began_s and ended_s else None


def machines(folder: Path) -> tuple[Machine, ...]:
    """The machine on which run.sh began, by its own account: of a job over several nodes, the first."""
    fields = fields_in(state_text(folder, MACHINE_FILE))
    gpus = tuple(sorted(gpu for gpu in fields.get("gpus", "").split() if "?" not in gpu))
    return (Machine(fields["host"], fields.get("boot", ""), gpus),) if fields.get("host") else ()


def fields_in(text: str) -> dict[str, str]:
    """`name=value` lines, as shells write them down."""
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def _seconds(text: str) -> float:
    # BusyBox and BSD `date` print the N of %N as it stands
    match = re.match(r"\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0
