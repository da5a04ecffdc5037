"""Probes for engines that have none of their own: a request for one token, and what the engine counts."""

from __future__ import annotations

from ridgeline.service.servers import server_of

PROBE_FOLDER = "/opt/ridgeline"
PROBE_FILE = "progress.py"


def progress_command(port: int, probe: str) -> list[str]:
    """`probe` is ready or alive: each remembers its own last poll."""
    return ["python3", f"{PROBE_FOLDER}/{PROBE_FILE}", str(port), probe]


def progress_script(engine: str, key_variable: str = "") -> str:
    """Python that runs in the server's own container and imports nothing of ours; exit code 1: it hangs.

    Good is who makes a token within 15 s, or else has moved one of its counters since the last poll: the request may
    wait behind long prompts. A server that cannot say what it counts fails: it answers nobody.
    """
    metrics = server_of(engine).metrics
    counted = (metrics.output_tokens, metrics.prompt_tokens, metrics.kv_share)
    return f'''\
"""python3 {PROBE_FILE} PORT NAME: fails when no token is made and nothing has moved since NAME looked last."""
import json, os, re, sys, urllib.request

address, port = os.environ.get("POD_IP", "127.0.0.1"), sys.argv[1]
kept = "/tmp/ridgeline-%s.json" % sys.argv[2]
key = os.environ.get("{key_variable}", "")


def ask(path, body=None, limit_s=5):
    headers = {{"content-type": "application/json"}}
    if key:
        headers["authorization"] = "Bearer " + key
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request("http://%s:%s%s" % (address, port, path), data, headers)
    return urllib.request.urlopen(request, timeout=limit_s).read().decode(errors="replace")


text = ask("/metrics")
now = [re.findall(r"^%s(?:\\{{[^}}]*\\}})? (\\S+)$" % re.escape(name), text, re.MULTILINE) for name in {counted!r}]
try:
    with open(kept) as file:
        before = json.load(file)
except (OSError, ValueError):
    before = None
with open(kept, "w") as file:
    json.dump(now, file)
try:
    model = json.loads(ask("/v1/models"))["data"][0]["id"]
    ask("/v1/completions", {{"model": model, "prompt": "Hi", "max_tokens": 1, "temperature": 0}}, 15)
except (OSError, ValueError, LookupError) as error:
    if now == before:
        sys.exit("no token (%s), and nothing has moved since the last poll" % error)
'''
