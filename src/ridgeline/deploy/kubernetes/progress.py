"""A liveness probe for engines that have none of their own: requests under way, and no token since the last look."""

from __future__ import annotations

from ridgeline.deploy.servers import SERVERS

PROBE_FOLDER = "/opt/ridgeline"
PROBE_FILE = "progress.py"


def progress_command(port: int) -> list[str]:
    return ["python3", f"{PROBE_FOLDER}/{PROBE_FILE}", str(port)]


def progress_script(engine: str) -> str:
    """Python that runs in the server's own container and imports nothing of ours; exit code 1: it hangs.

    A server that cannot say what it counts fails as well: it answers nobody.
    """
    dialect = SERVERS[engine]
    return f'''\
"""Liveness by token progress: python3 {PROBE_FILE} PORT; fails when requests run and no token came since last time."""
import json, os, re, sys, urllib.request

url = "http://%s:%s/metrics" % (os.environ.get("POD_IP", "127.0.0.1"), sys.argv[1])
kept = "/tmp/ridgeline-progress.json"
text = urllib.request.urlopen(url, timeout=20).read().decode(errors="replace")


def total(name):
    return sum(float(x) for x in re.findall(r"^%s(?:\\{{[^}}]*\\}})? (\\S+)$" % re.escape(name), text, re.MULTILINE))


running = total("{dialect.load_metric}")
# prompts count as well: a long one makes no token for a while
now = total("{dialect.token_metric}") + total("{dialect.prompt_metric}")
try:
    with open(kept) as file:
        before = json.load(file)
except (OSError, ValueError):
    before = {{"running": 0, "tokens": -1}}
with open(kept, "w") as file:
    json.dump({{"running": running, "tokens": now}}, file)
if running and before["running"] and now == before["tokens"]:
    sys.exit("%d requests run and no token was made since the last look" % running)
'''
