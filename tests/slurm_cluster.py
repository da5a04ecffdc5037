"""A real Slurm on this machine: munge, slurmctld and four slurmd, in a folder of their own, ended by pid.

    python tests/slurm_cluster.py COMMAND ...      runs COMMAND with such a cluster under it

Needs Debian's slurm-wlm and munge, and root (slurmd starts jobs for users). Every cluster has its own ports, munge
socket and key, so several may live side by side and none touches a Slurm that is already there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.free_ports import free_row

# What a user may have exported: sbatch obeys it before the script, and queries print by it. The cluster's own commands
# do without it; whatever Ridgeline does under the cluster has it around itself
EXPORTED = {
    "SBATCH_PARTITION": "short",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_REQUEUE": "1",
    "SBATCH_EXCLUSIVE": "user",
    "SBATCH_MEM_PER_NODE": "1",
    "SQUEUE_FORMAT": "%i",
    "SQUEUE_FORMAT2": "jobid",
    "SQUEUE_STATES": "SUSPENDED",
    "SACCT_FORMAT": "jobid",
    "SCANCEL_STATE": "SUSPENDED",
    "SLURM_TIME_FORMAT": "relative",
    "SRUN_CPUS_PER_TASK": "64",
    "SLURM_DISTRIBUTION": "nonsense",
}


def plain_environment() -> dict[str, str]:
    """For a test's own questions to the cluster: as the test has it, without what a user has exported."""
    return {name: value for name, value in os.environ.items() if name not in EXPORTED}


NODES = ("n1", "n2", "n3", "n4")
# of the size of a real cluster's, so that real requests can be tried on them; what they have is only said
GPU_NODES = ("g1", "g2")
GPU_NODE = "CPUs=112 RealMemory=1925120 Gres=gpu:8"

CONF = """\
ClusterName=ridge
FirstJobId={first_job}
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType={tracking}
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdParameters=config_overrides
MessageTimeout=5
KillWait={kill_wait_s}
MinJobAge={min_job_age_s}
JobAcctGatherType=jobacct_gather/linux
{accounting}
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
{nodes}
PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=02:00:00 State=UP
PartitionName=short Nodes=n[1-4] MaxTime=00:10:00 State=UP
PartitionName=gpu Nodes=g[1-2] MaxTime=2-00:00:00 State=UP
PartitionName=urgent Nodes=n[1-4] PriorityTier=10 MaxTime=00:10:00 State=UP
PartitionName=members Nodes=n[1-4] AllowAccounts=members MaxTime=00:10:00 State=UP
"""


# with accounting: a database behind its own socket, and slurmdbd in front of it
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket"""
DATABASE_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""

# As computing centres run it: Slurm tracks a job's processes by cgroup. TERM then reaches the batch script alone, and
# what the script started hears of it from the script or not at all (linuxproc signals every process of the job).
V1 = "CgroupPlugin=cgroup/v1\n"
V2 = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nEnableControllers=yes\n"


def tracking() -> tuple[str, str]:
    """How processes are tracked here, and what cgroup.conf says; linuxproc where no cgroup can be made."""
    for root, conf in (("/sys/fs/cgroup/freezer", V1), ("/sys/fs/cgroup/cgroup.controllers", V2)):
        if Path(root).exists() and os.access(root, os.W_OK):
            return "proctrack/cgroup", conf
    return "proctrack/linuxproc", ""


def missing() -> str:
    """Why no cluster can be started here; empty when it can."""
    programs = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name, path=_PATH) is None]
    if programs:
        return f"{', '.join(programs)} not installed (Debian: slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


def missing_for_accounting() -> str:
    """Why a cluster here cannot have accounting; empty when it can."""
    wanted = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
    programs = [name for name in wanted if shutil.which(name, path=_PATH) is None]
    return f"{', '.join(programs)} not installed (Debian: slurmdbd mariadb-server)" if programs else ""


def missing_for_networks() -> str:
    """Why the nodes of a cluster here cannot have networks of their own; empty when they can."""
    programs = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name, path=_PATH) is None]
    if programs:
        return f"{', '.join(programs)} not installed (Debian: iproute2 util-linux)"
    links = "ip link add rb0 type bridge && ip link add rv0 type veth peer name rv1"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", links],
        env={**os.environ, "PATH": _PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no network of its own can be made: {tried.stderr.strip()}" if tried.returncode else ""


_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@dataclass
class SlurmCluster:
    folder: Path
    min_job_age_s: int = 300
    kill_wait_s: int = 2  # between TERM and KILL; Slurm's own default is 30
    accounting: bool = False
    networks: bool = False  # each of n1 to n4 has a name, an address and an interface `hsn0` of its own

    def __post_init__(self) -> None:
        for name in ("munge", "state", "spool", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o755)
        sizes = {**dict.fromkeys(NODES, "CPUs=2 RealMemory=4000"), **dict.fromkeys(GPU_NODES, GPU_NODE)}
        first = free_row(2 + len(sizes))
        ports = list(range(first, first + 2 + len(sizes)))
        self._number = ports[0] % 500  # of the network, where the nodes have one
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name if self._apart(name) else 'localhost'} NodeAddr={self.address(name)} "
            f"Port={port} {size}"
            for (name, size), port in zip(sizes.items(), ports[2:], strict=True)
        )
        # slurmd counts the files of its GPUs, whatever they are
        for number in range(8):
            (self.folder / f"gpu{number}").touch()
        names = ",".join(GPU_NODES)
        (self.folder / "gres.conf").write_text(f"NodeName={names} Name=gpu File={self.folder}/gpu[0-7]\n")
        kind, cgroups = tracking()
        # a job's cgroup is named after node and job id: clusters side by side must not give out the same ids
        fields = {"ports": ports, "nodes": nodes, "tracking": kind, "first_job": 1 + ports[0] % 20000 * 1000}
        fields |= {"min_job_age_s": self.min_job_age_s, "kill_wait_s": self.kill_wait_s}
        fields["controller"] = f"localhost({self._subnet}.1)" if self.networks else "localhost"
        fields["accounting"] = "AccountingStorageType=accounting_storage/none"
        if self.accounting:
            fields["accounting"] = ACCOUNTING.format(folder=self.folder, port=ports[1])
            database = self.folder / "slurmdbd.conf"
            database.write_text(DATABASE_CONF.format(folder=self.folder, port=ports[1]))
            database.chmod(0o600)
        self.conf.write_text(CONF.format(folder=self.folder, **fields))
        (self.folder / "cgroup.conf").write_text(cgroups)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def jobcomp(self) -> Path:
        return self.folder / "log" / "jobcomp.txt"

    @property
    def env(self) -> dict[str, str]:
        """What a command under this cluster gets: where it is, and what its user has exported."""
        return {**self.where, **EXPORTED}

    @property
    def where(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)}

    def _apart(self, node: str) -> bool:
        return self.networks and node in NODES

    @property
    def _subnet(self) -> str:
        # 198.18.0.0/15 is kept for tests of networks: no host has such an address
        return f"198.{18 + self._number // 250}.{self._number % 250}"

    def address(self, node: str) -> str:
        return f"{self._subnet}.{10 + NODES.index(node)}" if self._apart(node) else "127.0.0.1"

    def start(self) -> None:
        if self.networks:
            self.start_networks()
        self.start_munge()
        if self.accounting:
            self.start_database()
            self.start_accounting()
            self.run("sacctmgr", "-i", "add", "cluster", "ridge")
        self.start_controller(fresh=True)
        for node in (*NODES, *GPU_NODES):
            self.start_node(node)
        self.await_idle()

    def stop(self) -> None:
        """Ends the daemons by the pids they wrote, and everything that jobs left behind is ended by slurmd first."""
        if self.pid("slurmctld"):
            self.run("scancel", "--user=root", check=False)
            _until(lambda: not self.run("squeue", "-h", check=False).stdout.strip(), 15)
        for name in (
            *(f"slurmd-{node}" for node in (*NODES, *GPU_NODES)),
            "slurmctld",
            "slurmdbd",
            "mariadb",
            "munge/munged",
        ):
            self.end(name)
        if self.networks:
            self.stop_networks()

    # -- the networks: a namespace for each node, and a bridge between them

    def start_networks(self) -> None:
        bridge = f"rb{self._number}"
        self.run("ip", "link", "add", bridge, "type", "bridge")
        self.run("ip", "address", "add", f"{self._subnet}.1/24", "dev", bridge)
        self.run("ip", "link", "set", bridge, "up")
        names = "".join(f"{self.address(node)} {node}\n" for node in NODES)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for node in NODES:
            space, port = self._namespace(node), self._bridge_port(node)
            self.run("ip", "netns", "add", space)
            self.run("ip", "link", "add", port, "type", "veth", "peer", "name", "hsn0", "netns", space)
            self.run("ip", "link", "set", port, "master", bridge, "up")
            inside = ("ip", "-n", space)
            self.run(*inside, "address", "add", f"{self.address(node)}/24", "dev", "hsn0")
            for interface in ("lo", "hsn0"):
                self.run(*inside, "link", "set", interface, "up")

    def stop_networks(self) -> None:
        for node in NODES:
            self.run("ip", "netns", "delete", self._namespace(node), check=False)
            self.run("ip", "link", "delete", self._bridge_port(node), check=False)
        self.run("ip", "link", "delete", f"rb{self._number}", check=False)

    def cut_link(self, node: str) -> None:
        self.run("ip", "link", "set", self._bridge_port(node), "down")

    def mend_link(self, node: str) -> None:
        self.run("ip", "link", "set", self._bridge_port(node), "up")

    def _namespace(self, node: str) -> str:
        return f"ridge{self._number}-{node}"

    def _bridge_port(self, node: str) -> str:
        return f"rv{self._number}-{node}"

    # -- the daemons, one by one: tests take them away and give them back

    def start_munge(self) -> None:
        munge = self.folder / "munge"
        files = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "munged.pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        # --force: the folder is under /tmp, which munged finds too open for a production key
        subprocess.run(["munged", "--force", *options], check=True, env=self._environ, stderr=subprocess.DEVNULL)
        _until((munge / "socket").exists, 5)

    def stop_munge(self) -> None:
        self.end("munge/munged")

    def start_database(self) -> None:
        data, socket_ = self.folder / "database", self.folder / "mariadb.sock"
        # no network: whoever may look into this folder may use it, and nobody else can
        options = ["--no-defaults", f"--datadir={data}", "--user=root"]
        alone = ["--skip-networking", f"--socket={socket_}", f"--pid-file={self.folder}/mariadb.pid"]
        self.run("mariadb-install-db", *options, "--auth-root-authentication-method=normal")
        with (self.folder / "log/mariadb.log").open("w") as log:
            subprocess.Popen(
                ["mariadbd", *options, *alone], env=self._environ, stdout=log, stderr=log, start_new_session=True
            )
        _until(lambda: socket_.exists() and self.pid("mariadb"), 60)

    def start_accounting(self) -> None:
        self.run("slurmdbd")
        _until(lambda: self.run("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0, 60)

    def stop_accounting(self) -> None:
        self.end("slurmdbd")

    def start_controller(self, *, fresh: bool = False) -> None:
        self.run("slurmctld", *(["-c"] if fresh else []), "-f", str(self.conf))
        _until(lambda: "UP" in self.run("scontrol", "ping", check=False).stdout, 20)

    def stop_controller(self) -> None:
        self.end("slurmctld")

    def start_node(self, node: str) -> None:
        slurmd = ["slurmd", "-N", node, "-f", str(self.conf)]
        if not self._apart(node):
            self.run(*slurmd)
            return
        # nsenter and not `ip netns exec`, which would hide the cgroups behind a /sys of its own
        own_names = f'mount --bind {self.folder}/hosts /etc/hosts && hostname {node} && exec "$@"'
        enter = ["nsenter", f"--net=/run/netns/{self._namespace(node)}", "unshare", "--uts", "--mount"]
        self.run(*enter, "sh", "-c", own_names, "sh", *slurmd)

    def end(self, name: str) -> None:
        pid = self.pid(name)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        if not _until(lambda: not _alive(pid), 15):
            os.kill(pid, signal.SIGKILL)
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def pid(self, name: str) -> int | None:
        try:
            pid = int((self.folder / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _alive(pid) else None

    def await_idle(self, limit_s: float = 20) -> None:
        def idle() -> bool:
            listed = self.run("sinfo", "-h", "-N", "-p", "debug,gpu", "-o", "%T", check=False).stdout.split()
            return listed.count("idle") == len(NODES) + len(GPU_NODES)

        if not _until(idle, limit_s):
            log = (self.folder / "log" / "slurmctld.log").read_text()[-2000:]
            raise RuntimeError(f"the nodes of the test cluster did not become idle\n{self.run('sinfo').stdout}\n{log}")

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=600)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return done

    @property
    def _environ(self) -> dict[str, str]:
        own = {**plain_environment(), **self.where, "PATH": _PATH}
        return {**own, "MYSQL_UNIX_PORT": str(self.folder / "mariadb.sock")}  # by which slurmdbd finds its database


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(true: object, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@contextmanager
def slurm_cluster(
    min_job_age_s: int = 300, kill_wait_s: int = 2, accounting: bool = False, networks: bool = False
) -> Iterator[SlurmCluster]:
    """A running cluster in a folder that goes away with it."""
    # mkdtemp makes the folder 0700; munge's socket must be reachable through it
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder, min_job_age_s, kill_wait_s, accounting, networks)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(command: list[str]) -> int:
    if reason := missing():
        sys.exit(f"no Slurm here: {reason}")
    with slurm_cluster() as cluster:
        return subprocess.run(command, env={**os.environ, **cluster.where}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
