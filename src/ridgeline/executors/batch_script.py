"""run.sh for a batch system: directives, state files the job keeps by itself, limits that hold to the second.

The batch system's own output (its footer, its kill message) goes to batch.out; the program's goes to stdout and stderr,
live, also where the batch system copies its own file back only after the end.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ridgeline.errors import SiteError
from ridgeline.executors import script
from ridgeline.executors.base import BY_HAND, EXIT_FILE, STARTED_FILE, TICKET_FILE, WAITING_FILE
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect
from ridgeline.executors.energy import ENERGY_FILE
from ridgeline.records.launch import RANK_ERRORS
from ridgeline.records.run import QUIET_FILE, Cause, Job
from ridgeline.records.site import Site
from ridgeline.study.state_files import RESULT_FILE, state_text

REQUEUED_FILE = "requeued"  # written by run.sh when the batch system starts the same job a second time
_STOPPED_FILE = "stopped"  # written by run.sh when it ends the command for going over a limit: which limit
SUBMISSION_FILE, REFUSED_FILE = "submission", "refused"  # what `batch` writes, beside the ticket
LEFT_BY_RUN_SH = (
    *(STARTED_FILE, REQUEUED_FILE, _STOPPED_FILE, QUIET_FILE),
    *(script.MACHINE_FILE, ENERGY_FILE, script.USED_FILE, EXIT_FILE),
)
# not copied into the folder of a run that a person hands over again
_LEFT_BY_THE_FIRST = (
    *(SUBMISSION_FILE, TICKET_FILE, REFUSED_FILE, WAITING_FILE),
    *(STARTED_FILE, REQUEUED_FILE, _STOPPED_FILE, script.USED_FILE, EXIT_FILE, RESULT_FILE),
)
USER_SCRIPT = "site-script"
_HOSTS = "RIDGELINE_HOSTS"  # in the environment of a job over several nodes: their names
_KILL_AFTER_S = 10.0  # between TERM and KILL for a job past its limits, unless it needs longer
_CANCEL_GRACE_S = 1.5  # between TERM and KILL for a job that was cancelled, unless it needs longer


# outside of what `timeout` ends: the last words of the ranks are wanted most where the job was stopped
_GATHER_ERRORS = f"""\
for file in {RANK_ERRORS.format("[0-9]*")}; do
  [ ! -s "$file" ] || {{ echo "$file:"; cat "$file"; }} >&2
  rm -f "$file"
done
"""


def render(job: Job, site: Site, dialect: BatchDialect) -> str:
    """The text of run.sh: handed to the batch system again it repeats the run, and so does `sh run.sh`."""
    command, own = job.command, _user_script(site)
    directives = dialect.directives(job, site)
    if own is not None:
        command = f"export RIDGELINE_COMMAND={shlex.quote(job.command)}\nexec ./{USER_SCRIPT}"
        directives = _with_users(directives, own.read_text(), dialect)
    inside = f'[ -n "${{{dialect.job_variable}:-}}" ]'
    return script.render(
        job,
        site,
        command=_watched(command, job) + (_GATHER_ERRORS if site.options.get("rank_errors") else ""),
        directives=[*directives, *site.directives],
        enter=_enter(job, dialect, inside),
        before=_by_hand(dialect, inside) + _before(job, site, dialect, inside),
        keep_state=inside,
    )


def stage_user_script(job: Job, site: Site) -> None:
    """Put the user's own script into the folder, byte for byte."""
    own = _user_script(site)
    if own is not None:
        copy = job.folder / USER_SCRIPT
        copy.write_bytes(own.read_bytes())
        copy.chmod(0o755)


def stopped(folder: Path) -> tuple[Cause, str] | None:
    """Which limit made run.sh end the command, if any did, and the sentence about it."""
    try:
        cause, _, reason = state_text(folder, _STOPPED_FILE).strip().partition(": ")
        return Cause(cause), reason
    except ValueError:
        return None


def _user_script(site: Site) -> Path | None:
    given = site.options.get("script")
    if given is None:
        return None
    path = Path(str(given))
    if not path.is_file():
        raise SiteError(f"{path}: the job script that site {site.name} names is not there; correct options.script")
    return path


def _with_users(ours: list[str], text: str, dialect: BatchDialect) -> list[str]:
    """The user's directives as they stand, and those of ours that they do not set."""
    theirs = [line for line in text.splitlines() if line.startswith(f"{dialect.directive} ")]
    taken = {dialect.option(line) for line in theirs} - set(dialect.kept_options)
    return [
        *(line for line in theirs if dialect.option(line) in taken),
        *(line for line in ours if dialect.option(line) not in taken),
    ]


def _enter(job: Job, dialect: BatchDialect, inside: str) -> str:
    """Batch systems run a copy of the script from a spool folder, so it names its own; unless that was copied."""
    named = f"run_home={shlex.quote(str(job.folder.absolute()))}"
    lines = [named, f'{inside} || run_home=$(dirname "$0")']
    if folder := dialect.submit_folder_variable:
        # handed over in a folder whose run.sh names the same home: that folder is a copy of it, or it itself
        there = f'[ -n "${{{folder}:-}}" ] && grep -qsxF -e {shlex.quote(named)} "${folder}/{script.SCRIPT_FILE}"'
        lines += [f"if {inside} && {there}; then", f"  run_home=${folder}", "fi"]
    lines.append(f'cd "$run_home" || exit {script.STATE_FAILED}')
    return "".join(f"{line}\n" for line in lines)


def _by_hand(dialect: BatchDialect, inside: str) -> str:
    """What an earlier start left stays as it is: one by hand gets a folder beside it, a requeued job ends.

    Of a run that has ended and whose state files are folded, result.json alone says that there was one, and under
    `books` which job it was.
    """
    number = f"${{{dialect.job_variable}%%[!0-9]*}}"
    left = " ".join((*_LEFT_BY_THE_FIRST, BATCH_OUTPUT))
    books = f'^ *"({TICKET_FILE}|{STARTED_FILE})": .*"text": "{number}[^0-9]'.replace('"', '\\"')
    restarts = f"${{{dialect.restart_variable}:-0}}" if dialect.restart_variable else "0"
    return f"""\
if {inside}; then
  again="$PWD{BY_HAND}{number}"
  if [ -r {STARTED_FILE} ] && read -r first < {STARTED_FILE} && [ "${{first%%[!0-9]*}}" = "{number}" ] \\
    || grep -qsE "{books}" {RESULT_FILE} \\
    || {{ [ -e {RESULT_FILE} ] && [ "{restarts}" != 0 ]; }} || [ -e "$again" ]; then
    said="the batch system started job ${dialect.job_variable} a second time; what its first start left is kept"
    # a run whose result is written is over: nothing of it is added to
    [ -e {RESULT_FILE} ] || echo "$said" > {REQUEUED_FILE}
    echo "ridgeline: $said" >&2
    exit {script.STATE_FAILED}
  fi
  for file in {TICKET_FILE} {STARTED_FILE} {RESULT_FILE}; do
    [ -r "$file" ] || continue
    read -r first < "$file"
    [ "${{first%%[!0-9]*}}" != "{number}" ] || continue
    cp -R . "$again.partial" && ( cd "$again.partial" && rm -f {left} ) && mv "$again.partial" "$again" \\
      && cd "$again" && break
    echo "ridgeline: $again cannot be made, and what is in $PWD must not be written over" >&2
    exit {script.STATE_FAILED}
  done
fi
"""


def _before(job: Job, site: Site, dialect: BatchDialect, inside: str) -> str:
    lines = [
        f"if {inside}; then",
        f"  export {script.MARKER}={script.run_id(job.folder)}",
        "  exec > stdout 2> stderr < /dev/null",
        f'  {{ printf "%s\\n" "${dialect.job_variable}"; {dialect.nodes_text}; }} > {STARTED_FILE}.partial \\',
        f"    && mv -f {STARTED_FILE}.partial {STARTED_FILE} || exit {script.STATE_FAILED}",
        *([f'  export {_HOSTS}="$({dialect.hosts_text})"'] if job.resources.nodes > 1 else []),
        "fi",
    ]
    if site.scratch:
        # quoted, except that $USER, $TMPDIR and the like are for the node to fill in
        scratch = re.sub(r'(["`\\])', r"\\\1", site.scratch)
        # one folder a job: two jobs on a node must not read each other's files, and what is left would fill the disk
        lines += [
            f'export RIDGELINE_SCRATCH="{scratch}/ridgeline-${{{dialect.job_variable}:-$$}}"',
            'mkdir -p "$RIDGELINE_SCRATCH" || {',
            '  echo "ridgeline: scratch $RIDGELINE_SCRATCH cannot be made on $(uname -n): full, or not writable" >&2',
            f"  exit {script.STATE_FAILED}",
            "}",
            "trap 'rm -rf \"$RIDGELINE_SCRATCH\"' EXIT",
            # a death by a signal runs no EXIT trap; once the command runs, TERM is passed on to it instead
            "trap 'rm -rf \"$RIDGELINE_SCRATCH\"; trap - TERM; kill $$' TERM",
        ]
    return "".join(f"{line}\n" for line in lines)


def _watched(command: str, job: Job) -> str:
    """The command under `timeout`, which gives it a process group and ends all of it; TERM is passed on to it.

    Where processes are tracked by cgroup, this script alone gets the signal. A program that did not hear of it
    would compute on until it is killed, together with this script: no exit file, and scratch left behind.
    """
    grace_s = max(_KILL_AFTER_S, job.grace_s or 0.0)
    # nobody waits for the result of a job that was cancelled; a program that needs time to end has said so
    cancel_s = max(_CANCEL_GRACE_S, job.grace_s or 0.0)
    # the time since boot: somebody may set the date meanwhile
    now = "$(cut -d. -f1 /proc/uptime 2>/dev/null || date +%s)"
    run = 'sh -c "$1"'  # a shell of its own, so that `$$` and a trap are the command's
    watcher = "" if job.silence_limit_s is None else _silence_watch(job.silence_limit_s, grace_s)
    return f"""\
rm -f {_STOPPED_FILE} {QUIET_FILE}
told='' ridgeline_pid='' since={now}
told_to_stop() {{
  told=TERM heard=yes
  [ -n "$ridgeline_pid" ] || return 0
  kill "$ridgeline_pid" 2>/dev/null
  ( sleep {cancel_s:g}; kill -s KILL -- "-$ridgeline_pid" ) > /dev/null 2>&1 &
}}
trap told_to_stop TERM; trap : HUP INT
timeout -k {grace_s:g} {job.limit_s:g} sh -c '
ask_usage=$2
{script.metered(job, run)}
' sh {shlex.quote(command)} "$ask_usage" &
ridgeline_pid=$!
[ -z "$told" ] || told_to_stop
{watcher}# `wait` also returns when a signal came in; the command may still be running then
code=''
while :; do
  heard=''
  wait "$ridgeline_pid"; got=$?
  [ "$got" = 127 ] && [ -n "$code" ] || code=$got
  [ -n "$heard" ] || break
done
if [ -n "$told" ]; then
  # its children may still be writing; one that has ended and that nobody has waited for is no child to wait for
  living() {{
    kill -s 0 -- "-$ridgeline_pid" 2>/dev/null || return 1
    for file in /proc/[0-9]*/stat; do
      read -r line < "$file" || continue
      set -- ${{line##*) }}
      [ "$3" != "$ridgeline_pid" ] || [ "$1" = Z ] || return 0
    done
    return 1
  }} 2>/dev/null
  tries={int(cancel_s * 10)}
  while [ $tries -gt 0 ] && living; do sleep 0.1; tries=$((tries - 1)); done
  kill -s KILL -- "-$ridgeline_pid" 2>/dev/null
fi
{"kill $watcher 2>/dev/null" if watcher else ":"}
# timeout leaves with 124, or dies by the KILL it had to send; a program could do both by itself, but not so late
case $code in 124|137) [ -e {_STOPPED_FILE} ] || [ $(({now} - since)) -lt {int(job.limit_s)} ] \\
  || echo '{Cause.TIME_LIMIT}: ran longer than its limit of {job.limit_s:g} s' > {_STOPPED_FILE} ;; esac
"""


def _silence_watch(limit_s: float, grace_s: float) -> str:
    step_s = min(10.0, max(0.2, limit_s / 5))
    return f"""\
# the clock starts with the command, not with files a former run left
touch {STARTED_FILE}
( while sleep {step_s:g}; do
    # any file that changes is a sign of life
    if [ -z "$(find . -type f -mmin -{limit_s / 60:.6f} -print -quit 2>/dev/null)" ]; then
      find . -maxdepth 1 -type f -printf '%T@ %s %f\\n' > {QUIET_FILE}
      echo '{Cause.SILENCE}: wrote nothing for {limit_s:g} s' > {_STOPPED_FILE}
      kill $ridgeline_pid; sleep {grace_s:g}; kill -9 $ridgeline_pid; exit
    fi
  done ) > /dev/null 2>&1 &
watcher=$!
"""
