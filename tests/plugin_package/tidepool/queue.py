"""The batch system itself: `python -m tidepool.queue submit SCRIPT NAME | list | cancel JOB`. A folder a job."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SPOOL = Path(os.environ.get("TIDE_SPOOL", "~/.tide")).expanduser()
DETACHED = {"stdin": subprocess.DEVNULL, "start_new_session": True}


def submit(script: str, name: str) -> None:
    if re.search(r"^#TIDE queue=", Path(script).read_text(), re.MULTILINE):
        sys.exit("tide: no such queue")
    number = 1
    while True:
        try:
            (SPOOL / str(number)).mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
    (SPOOL / str(number) / "name").write_text(name)
    command = [sys.executable, "-m", "tidepool.queue", "run", str(number), script]
    subprocess.Popen(command, **DETACHED, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(number)


def run(number: str, script: str) -> None:
    home = SPOOL / number
    asked = dict(re.findall(r"^#TIDE (\w+)=(.*)$", Path(script).read_text(), re.MULTILINE))
    command = ["nice", "-n", asked.get("nice", "0"), "sh", script]
    with Path(asked["output"]).open("w") as out:
        job = subprocess.Popen(command, **DETACHED, stdout=out, stderr=out, env={**os.environ, "TIDE_JOB": number})
    (home / "session").write_text(str(job.pid))
    code = job.wait()
    (home / "code").write_text(str(code if code >= 0 else 128 - code))
    (home / "code").rename(home / "ended")


def listing() -> None:
    for home in sorted(SPOOL.glob("[0-9]*")):
        ended, name = home / "ended", (home / "name").read_text() if (home / "name").exists() else "-"
        state = "running" if (home / "session").exists() else "waiting"
        if ended.exists():
            state = "cancelled" if (home / "cancelled").exists() else "exited"
        print(home.name, state, ended.read_text() if ended.exists() else 0, name)


def cancel(number: str) -> None:
    home = SPOOL / number
    if (home / "ended").exists():
        return
    (home / "cancelled").touch()
    while not (home / "session").exists():
        time.sleep(0.01)
    session = (home / "session").read_text()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent group session
            if stat.read_text().rpartition(")")[2].split()[3] == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it has just ended


if __name__ == "__main__":
    {"submit": submit, "run": run, "list": listing, "cancel": cancel}[sys.argv[1]](*sys.argv[2:])
