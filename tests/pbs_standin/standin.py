"""qsub, qstat, qdel and qselect for tests: words, exit codes and formats as a real OpenPBS server gave them.

    standin.py qsub [-N NAME] SCRIPT | qstat -x -f ID... | qdel ID | qselect -x -N NAME | run ID

State lives in the folder PBS_STANDIN: one JSON file a job. Jobs run at once on this machine as sessions of their own;
a job's output is copied back PBS_STANDIN_COPY_S seconds after its end. PBS_STANDIN_HISTORY=0 forgets ended jobs,
PBS_STANDIN_FORGETS_QDEL=1 takes a deleted job for a failed one, as the server does in a job's first second.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["PBS_STANDIN"])
QUEUES = ("workq", "express")
NODES, CORES = 4, 8
COPY_S = float(os.environ.get("PBS_STANDIN_COPY_S", "0.3"))


def fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


def path_of(job_id: str) -> Path:
    return STATE / f"{job_id}.json"


def load(job_id: str) -> dict:
    return json.loads(path_of(job_id).read_text())


def save(job_id: str, job: dict) -> None:
    partial = STATE / f"{job_id}.{os.getpid()}.partial"
    partial.write_text(json.dumps(job))
    partial.replace(path_of(job_id))


def option(words: list[str], name: str, otherwise: str = "") -> str:
    return words[words.index(name) + 1] if name in words else otherwise


def directives(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in re.findall(r"^#PBS (-\w)\s*(.*)$", text, re.MULTILINE):
        if name == "-l":
            found.update(part.split("=", 1) for part in [value])
        else:
            found[name] = value
    return found


def placed(asked: dict[str, str]) -> list[str] | None:
    """The host of each chunk: as the server does it, one node after the other is filled, unless they are scattered."""
    scattered = asked.get("place", "free").startswith("scatter")
    free = {f"vm{n}": CORES for n in range(NODES)}
    hosts: list[str] = []
    for chunk in asked.get("select", "1:ncpus=1").split("+"):
        count, cores = (int(n) for n in re.match(r"(\d+):ncpus=(\d+)", chunk).groups())
        named = re.search(r":host=([\w.-]+)", chunk)
        for _ in range(count):
            fits = [h for h, left in free.items() if left >= cores and not (scattered and h in hosts)]
            if named:
                fits = [h for h in fits if h == named[1]]
            if not fits:
                return None
            hosts.append(fits[0])
            free[fits[0]] -= cores
    return hosts


def qsub(words: list[str]) -> None:
    if (STATE / "down").exists():
        fail("qsub: cannot connect to server vm (errno=15010)", 15010 % 256)
    script = Path(words[-1])
    asked = directives(script.read_text())
    if asked.get("-q", "workq") not in QUEUES:
        fail("qsub: Unknown queue", 170)
    if asked.get("-P") == "nobody":
        fail("qsub: Error: You are not a member of project nobody", 1)
    counter = STATE / "counter"
    number = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(number + 1))
    job_id = f"{number}.vm"
    name = option(words, "-N", asked.get("-N", script.name))
    job = {
        "Job_Name": name,
        "Job_Owner": "root@vm",
        "job_state": "Q",
        "queue": asked.get("-q", "workq"),
        "Output_Path": f"vm:{option(words, '-o', asked.get('-o', '')) or Path.cwd() / f'{name}.o{number}'}",
        "Resource_List": {name: asked[name] for name in ("select", "walltime") if name in asked},
        "substate": 10,
        "Variable_List": f"PBS_O_WORKDIR={Path.cwd()},PBS_O_QUEUE={asked.get('-q', 'workq')}",
        "script": str(script),
    }
    hosts = placed(asked)
    if hosts is None:
        job["comment"] = "Can Never Run: Insufficient amount of resource: ncpus"
        save(job_id, job)
    else:
        save(job_id, {**job, "hosts": hosts})
        # start_new_session: the job belongs to the server and outlives who submitted it
        subprocess.Popen(
            [sys.executable, __file__, "run", job_id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    print(job_id)


def threads(select: str) -> str:
    """As the server does it: without ompthreads the cores of the chunk, whatever mpiprocs says."""
    return (re.search(r":ompthreads=(\d+)", select) or re.search(r":ncpus=(\d+)", select))[1]


def run(job_id: str) -> None:
    job = load(job_id)
    if job["job_state"] == "F":
        return
    hosts = job.pop("hosts")
    nodefile, spool = STATE / f"{job_id}.nodes", STATE / f"{job_id}.OU"
    nodefile.write_text("".join(f"{host}\n" for host in hosts))
    hours, minutes, seconds = (int(n) for n in job["Resource_List"].get("walltime", "01:00:00").split(":"))
    limit_s = float(os.environ.get("PBS_STANDIN_WALLTIME_S", hours * 3600 + minutes * 60 + seconds))
    folder = job["Variable_List"].partition(",")[0].partition("=")[2]
    env = {
        **os.environ,
        "PBS_JOBID": job_id,
        "PBS_O_WORKDIR": folder,
        "PBS_NODEFILE": str(nodefile),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "OMP_NUM_THREADS": threads(job["Resource_List"].get("select", "1:ncpus=1")),
    }
    with spool.open("w") as output:
        # a copy, as the real server runs one: it must not depend on where it stands
        copy = STATE / f"{job_id}.SC"
        copy.write_text(Path(job["script"]).read_text())
        began = time.time()
        running = subprocess.Popen(
            ["sh", str(copy)], cwd=Path.home(), env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        comment = "Job run at Sun Nov 15 at 04:00 on (vm:ncpus=1:mem=102400kb)"
        job |= {"job_state": "R", "substate": 42, "comment": comment, "exec_host": "+".join(f"{h}/0" for h in hosts)}
        save(job_id, {**job, "session": running.pid})
        try:
            code, substate, said = running.wait(limit_s), 92, "and finished"
        except subprocess.TimeoutExpired:
            print(f"=>> PBS: job killed: walltime {limit_s + 7:.0f} exceeded limit {limit_s:.0f}", file=output)
            end_session(running.pid)
            running.wait()
            code, substate, said = -29, 93, "and exceeded resource walltime"
    if code > 0:
        substate, said = 93, "and failed"
    elif code < 0 and code != -29:
        code, substate, said = 256 - code, 93, "and failed"
    # complete_running() of the real server clears the mark of a qdel that came before it saw the job run
    if (STATE / f"{job_id}.deleted").exists() and os.environ.get("PBS_STANDIN_FORGETS_QDEL") != "1":
        code, substate, said = 0, 91, "and terminated by root@vm"
    job.pop("session", None)
    wall = time.strftime("%H:%M:%S", time.gmtime(time.time() - began))
    used = {"cpupercent": 0, "cput": "00:00:00", "mem": "2048kb", "ncpus": 1, "vmem": "0kb", "walltime": wall}
    job |= {"job_state": "F", "substate": substate, "Exit_status": code, "comment": f"{comment} {said}"}
    save(job_id, {**job, "resources_used": used})
    time.sleep(COPY_S)
    target = Path(job["Output_Path"].partition(":")[2])
    if target.parent.is_dir():
        target.write_text(spool.read_text())


def end_session(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for entry in Path("/proc").iterdir():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
                if stat and int(stat[3]) == pid and stat[0] != "Z":
                    os.kill(int(entry.name), number)
            except (OSError, ProcessLookupError):
                continue
        time.sleep(0.5)


def qstat(words: list[str]) -> None:
    if (STATE / "down").exists():
        fail("qstat: cannot connect to server vm (errno=15010)", 15010 % 256)
    with (STATE / "questions").open("a") as log:
        log.write("qstat\n")
    jobs, code = {}, 0
    for job_id in (word for word in words if "." in word):
        job = load(job_id) if path_of(job_id).exists() else None
        if job is None or (job["job_state"] == "F" and os.environ.get("PBS_STANDIN_HISTORY") == "0"):
            print(f"qstat: Unknown Job Id {job_id}", file=sys.stderr)
            code = 153
        elif job["job_state"] == "F" and "-x" not in words:
            text = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {job_id} {text}", file=sys.stderr)
            code = 35
        else:
            jobs[job_id] = {name: value for name, value in job.items() if name not in ("script", "session", "hosts")}
    for job_id, job in jobs.items():
        print(f"Job Id: {job_id}")
        for name, value in job.items():
            pairs = {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
            for key, plain in pairs.items():
                print(f"    {key} = {plain}")
        print()
    sys.exit(code)


def qdel(words: list[str]) -> None:
    job_id = words[-1]
    if not path_of(job_id).exists():
        fail(f"qdel: Unknown Job Id {job_id}", 153)
    job = load(job_id)
    if job["job_state"] == "F":
        fail(f"qdel: Job has finished {job_id}", 35)
    (STATE / f"{job_id}.deleted").touch()
    if "session" in job:
        end_session(job["session"])
    else:
        save(job_id, {**job, "job_state": "F", "substate": 91, "Exit_status": 0, "comment": "terminated by root@vm"})


def qselect(words: list[str]) -> None:
    if (STATE / "down").exists():
        fail("qselect: cannot connect to server vm (errno=15010)", 15010 % 256)
    for file in sorted(STATE.glob("*.vm.json")):
        if json.loads(file.read_text())["Job_Name"] == option(words, "-N"):
            print(file.name.removesuffix(".json"))


if __name__ == "__main__":
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "run":
        run(rest[0])
    else:
        {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect}[verb](rest)
