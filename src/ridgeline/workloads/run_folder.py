"""What every workload does with a run's folder: fill it, and make it a job."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ridgeline.errors import StoreError
from ridgeline.records.run import Job, Resources, job_name
from ridgeline.records.site import Site
from ridgeline.records.space import Settings
from ridgeline.records.study import Builds, Study
from ridgeline.records.trial import Trial


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Makes the folder. A full disk is the store's trouble, and no fault of the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: cannot fill the run folder ({error.strerror}); make room and resume"
        ) from error


def job_in(
    folder: Path,
    study: Study,
    resources: Resources,
    command: str,
    env: Mapping[str, str] | None = None,
    grace_s: float | None = None,
) -> Job:
    """The job of that folder, within the study's limits. `grace_s` as `Job` has it."""
    limits = study.job
    return Job(
        name=job_name(study.name, folder.name),
        folder=folder,
        command=command,
        env=env or {},
        resources=resources,
        limit_s=limits.limit_s,
        silence_limit_s=limits.silence_limit_s,
        grace_s=grace_s,
    )


def build_seen_from(folder: Path, trial: Trial) -> str:
    """The way from a run folder to what was built for it; `.` where nothing was."""
    return os.path.relpath(trial.build.resolve(), folder.resolve()) if trial.build else "."


# Shell text that a person pastes: it starts what run.sh started and leaves the shell it is pasted into as it was.
#
# Run.sh exports the environment, loads the site's modules, and runs the command in a subshell. `NAME=value program`
# means the same only where one program is started; anything else goes into a subshell of its own.

# Blanks, characters that no shell gives a meaning to, and quoted text in which none can be hidden.
_PLAIN = re.compile(r"""(?:[A-Za-z0-9_ \t%+,./:=@-]|'[^'\n]*'|"[A-Za-z0-9_ %+,./:=@-]*")+""")
_ASSIGNMENT = re.compile(r"\w+\+?=")
# These act on the shell itself, or start something else: what stands in front of them does not reach the program.
NOT_A_PROGRAM = re.compile(
    r"[.:]|alias|bg|break|builtin|case|cd|command|continue|coproc|declare|do|done|elif|else|esac|eval|exec|exit|export|"
    r"fc|fg|fi|for|function|getopts|hash|if|in|jobs|let|local|nocorrect|noglob|popd|pushd|read|readonly|repeat|return|"
    r"select|set|shift|shopt|source|suspend|then|time|times|trap|typeset|ulimit|umask|unalias|unset|until|wait|while"
)
# Set in front of a command, these change how the shell finds or reads that very command, each shell in its own way.
_READ_BY_SHELLS: Final = frozenset(("PATH", "HOME", "IFS", "CDPATH", "ENV", "BASH_ENV", "SHELLOPTS", "POSIXLY_CORRECT"))
_END_OF_INPUT = "END_OF_INPUT"
# where pasted text writes files: in the study's folder they could take the place of others
OWN_FOLDER: Final = ("mkdir -p run-by-hand", "cd run-by-hand")


def _is_one_program(command: str) -> bool:
    """Whether it certainly is a program with plain arguments, and nothing that a shell does by itself."""
    if "\n" in command or not _PLAIN.fullmatch(command):
        return False
    arguments = shlex.split(command)
    return bool(arguments) and not NOT_A_PROGRAM.fullmatch(arguments[0]) and not _ASSIGNMENT.match(arguments[0])


def pasted_run(site: Site, env: Mapping[str, str], command: str, before: Sequence[str] = ()) -> str:
    """`command` with the site's environment and `env`, once every line of `before` has gone well."""
    merged = {**site.env, **env}
    setup = [*(f"module load {shlex.quote(name)} || exit" for name in site.modules), *site.setup]
    if not setup and not _READ_BY_SHELLS & merged.keys() and all(map(_is_one_program, (*before, command))):
        line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in merged.items()), command])
        return " &&\n".join([*before, line])
    # `set -e` would be ignored in a subshell that is followed by &&, so all of it is one subshell
    guarded = ["set -e", *before, "set +e"] if before else []
    return "\n".join(["(", *guarded, *_exports(merged), *setup, command, ")"])


def build_lines(builds: Builds, settings: Settings) -> list[str]:
    """Lines for `before`: the build of these settings, with an environment that the program does not see."""
    env = builds.environment(settings)
    commands = builds.commands(settings)
    return commands if not env and all(map(_is_one_program, commands)) else ["(", *_exports(env), *commands, ")"]


def pasted_file(name: str, text: str) -> str:
    """Shell text that writes a file with exactly this text."""
    target = shlex.quote(f"./{name}" if name.startswith("-") else name)
    parent = posixpath.dirname(name)
    made = f"mkdir -p -- {shlex.quote(parent)}\n" if parent else ""
    if not text.endswith("\n"):
        return f"{made}printf %s {shlex.quote(text)} > {target}"
    end = _END_OF_INPUT
    while end in text.split("\n"):
        end += "_"
    return f"{made}cat > {target} <<'{end}'\n{text}{end}"


def _exports(env: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
