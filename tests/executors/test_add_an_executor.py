"""An executor written from docs/guides/add-a-part.md alone: machines that ssh reaches, which share a disk.

`hosts_by_shell` stands for it here: every host is this machine, and `bash -c` stands for `ssh HOST`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from ridgeline import catalog
from ridgeline.errors import SiteError
from ridgeline.executors.batch import BatchExecutor
from ridgeline.executors.dialect import BATCH_OUTPUT, BatchDialect, Blame, JobReply, JobStatus, Phase, RefusalRule
from ridgeline.records.run import Cause, Job, Resources
from ridgeline.records.site import Site
from ridgeline.testing.contracts.executors import DialectContract, ExecutorContract

# A host is taken while the job that its file in the spool names is alive. A job is PID@HOST of the first of its hosts.
_ALIVE = 'alive() { on "${1#*@}" "kill -0 ${1%@*} 2>/dev/null"; }'
_SUBMIT = r"""
spool=$1 script=$2 name=$3 count=$4; shift 4
mkdir -p "$spool" && exec 9> "$spool/lock" && flock 9 || exit 1
free=()
for host; do
  [ ${#free[@]} = "$count" ] || { [ -s "$spool/$host" ] && alive "$(cat "$spool/$host")"; } || free+=("$host")
done
[ ${#free[@]} = "$count" ] || { echo "all hosts are busy" >&2; exit 75; }
cat > "$spool/$name" <<END
export HOSTS_JOB=\$\$@${free[0]} HOSTS_NODES='${free[*]}'
exec sh '$script' > '${script%/*}/BATCH_OUTPUT' 2>&1 < /dev/null
END
job=$(on "${free[0]}" "setsid sh '$spool/$name' > /dev/null 2>&1 < /dev/null & echo \$!")@${free[0]}
for host in "${free[@]}"; do echo "$job" > "$spool/$host"; done
echo "$job $name" | tee -a "$spool/jobs"
""".replace("BATCH_OUTPUT", BATCH_OUTPUT)
_POLL = 'for job; do ! alive "$job" || echo "$job running"; done'
_ROW = re.compile(r"^(\d+@\S+) (\S+)$", re.MULTILINE)


class Hosts(BatchDialect):
    name = "hosts"
    programs = ("bash", "ssh", "flock")
    job_variable = "HOSTS_JOB"
    nodes_text = hosts_text = "printf '%s\\n' $HOSTS_NODES"
    refusals = (RefusalRule("all hosts are busy", Blame.WEATHER, "{said}; lower jobs_at_once in the site file"),)
    reach = 'on() { ssh "$1" "$2"; }'

    def __init__(self, site: Site) -> None:
        self.hosts = [str(host) for host in site.options["hosts"]]  # type: ignore[attr-defined]
        self.spool = str(site.options["spool"])

    def shell(self, text: str, *words: str) -> list[str]:
        return ["bash", "-c", f"{self.reach}\n{_ALIVE}\n{text}", self.name, *words]

    def submit_command(self, script: Path, name: str, job: Job) -> list[str]:
        wished = job.on_nodes or sorted(self.hosts, key=lambda host: host in job.avoid_nodes)
        return self.shell(_SUBMIT, self.spool, str(script), name, str(job.resources.nodes), *wished)

    def job_id(self, answer: JobReply) -> str | None:
        found = _ROW.search(answer.stdout)
        return found[1] if found else None

    def poll_command(self, job_ids: Collection[str]) -> list[str]:
        return self.shell(_POLL, *job_ids)

    def read_poll(self, answer: JobReply) -> Mapping[str, JobStatus] | None:
        if answer.code != 0:
            return None
        return {job: JobStatus(job, Phase.RUNNING) for job, _ in _ROW.findall(answer.stdout)}

    def find_commands(self, name: str) -> list[list[str]]:
        return [self.shell('[ ! -e "$1/jobs" ] || cat "$1/jobs"', self.spool)]

    def read_found(self, answer: JobReply, name: str) -> list[str] | None:
        return None if answer.code != 0 else [job for job, named in _ROW.findall(answer.stdout) if named == name]

    def cancel_command(self, job_id: str) -> list[str]:
        return self.shell('on "${1#*@}" "kill ${1%@*}"', job_id)


class HereHosts(Hosts):
    programs = ("bash", "flock")
    # as ssh does, it hands on no open files: the job must not hold those of the command that submits it
    reach = """on() { ( for fd in /proc/$BASHPID/fd/*; do [ "${fd##*/}" -le 2 ] || eval "exec ${fd##*/}>&-"; done
      exec bash -c "$2" ); }"""


def hosts_by_shell(site: Site) -> BatchExecutor:
    return BatchExecutor(site, HereHosts(site))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.TABLE["executors"], "hosts", f"{__name__}:hosts_by_shell")


def site_of(spool: Path, hosts: Sequence[str] = ("n1", "n2")) -> Site:
    options = {"hosts": hosts, "spool": str(spool), "lost_after_s": 0.5, "settle_s": 0.5}
    return Site(name="hosts", batch="hosts", poll_s=0.1, nodes=len(hosts), options=options)


class TestHostsDialect(DialectContract):
    name = "hosts"

    def dialect(self) -> BatchDialect:
        return HereHosts(site_of(Path("/tmp/spool")))

    def answers(self) -> Sequence[str]:
        return ["41@n1 running\n42@n2 0001-a-1f\n"]


class TestHosts(ExecutorContract):
    name = "hosts"
    patience_s = 60.0

    @pytest.fixture(autouse=True)
    def _spool(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.spool = tmp_path_factory.mktemp("spool")

    def site(self) -> Site:
        return site_of(self.spool)


def job(folder: Path, name: str, **more: object) -> Job:
    (folder / name).mkdir()
    command = "echo $RIDGELINE_HOSTS; while [ ! -e go ]; do sleep 0.02; done"
    return Job(name, folder / name, command, limit_s=60.0, **more)  # type: ignore[arg-type]


def test_jobs_get_hosts_of_their_own_the_ones_they_name_and_not_those_to_avoid(tmp_path: Path) -> None:
    runs = hosts_by_shell(site_of(tmp_path / "spool", ("n1", "n2", "n3", "n4")))
    asked = {
        "first": job(tmp_path, "first", avoid_nodes=("n1",)),
        "named": job(tmp_path, "named", on_nodes=("n4",)),
        "both": job(tmp_path, "both", resources=Resources(nodes=2)),
    }
    tickets = {runs.submit(each): name for name, each in asked.items()}
    with pytest.raises(SiteError, match="all hosts are busy; lower jobs_at_once") as busy:
        runs.submit(job(tmp_path, "late"))
    assert busy.value.transient, "it is tried again"
    for each in asked.values():
        (each.folder / "go").touch()
    found = {}
    until = time.monotonic() + 60
    while len(found) < len(tickets) and time.monotonic() < until:
        found |= {tickets[ticket]: ending for ticket, ending in runs.poll(list(tickets)).items()}
        runs.wait(0.1)
    assert {name: ending.nodes for name, ending in found.items()} == {
        "first": ("n2",),
        "named": ("n4",),
        "both": ("n1", "n3"),
    }
    assert {(ending.cause, ending.exit_code) for ending in found.values()} == {(Cause.EXITED, 0)}
    assert (asked["both"].folder / "stdout").read_text().split() == ["n1", "n3"], "the program knows its nodes"
