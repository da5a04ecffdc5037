"""What every verb leaves with: scripts go by it, so each code that is promised is seen to happen, verb by verb."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from ridgeline.cli.main import commands
from ridgeline.errors import ExitCode
from ridgeline.study.folder import StudyFolder
from ridgeline.study.lock import StudyLock
from tests.command_line import ridgeline
from tests.load.scripted import Scripted, tokens

# its rate is what RATE makes of x, so that nothing depends on the machine
STUDY = """\
version: 1
name: quick
workload: {{kind: command, run: '{run}', metrics: {{rate: {{regex: "rate (.*)"}}}}}}
space: {{x: {values}}}
goal: {{maximize: rate}}
baseline: {{x: 1}}
budget: {budget}
stages: {{baseline: {{repeats: 1}}, search: {{sampler: grid, sentinel_every: 0}}, confirm: {confirm}}}
"""
NO_ROOM = "{trials: 1, node_hours: 0.0000001}"
HELD = "@held"  # in a row: with the study folder locked by somebody else
INTERRUPTED = "@interrupted"  # with a Ctrl-C once a run is under way
SERVER = "@server"  # the address of one that answers
NO_LOAD_TOO_MUCH = "@no-load-too-much"  # the search for goodput ends with one end only, whatever this machine can do
TWIN = ("--model", "llama-8b", "--gpu", "h100", "--nodes", "1", "--gpus-per-node", "1", "--tp", "1")
PLAN = (*TWIN[:4], "--gpus-per-node", "1", "--traffic", "fixed:64:8", "--requests", "8")
HUGE = ("--model", "deepseek-r1", "--gpu", "h100", "--nodes", "1", "--gpus-per-node", "1", "--tp", "1")

# verb -> code -> what is typed, in the folder that `home` has made
LEAVES: dict[str, dict[int, tuple[str, ...]]] = {
    "mcp": {2: ("--root", "nowhere")},
    "check": {0: ("better.yaml",), 2: ("two-blocks.yaml",)},
    "tune": {
        0: ("better.yaml", "--out", "tuned"),
        1: ("unconfirmed.yaml", "--out", "tuned-1"),
        2: ("two-blocks.yaml",),
        3: ("refusing.yaml", "--out", "tuned-3"),
        5: ("better.yaml", "--out", "better"),
        130: (INTERRUPTED, "waiting.yaml", "--out", "tuned-130"),
    },
    "status": {0: ("better",), 2: ("better", "--why", "99"), 5: (".",)},
    "best": {
        0: ("better",), 1: ("top-0",), 2: ("better", "--at", "rate=1"), 5: (".",), 6: ("worse",), 7: ("undecided",),
    },
    "report": {0: ("better",), 2: ("better", "--format", "cake"), 5: ("empty",)},
    "resume": {0: ("better",), 1: ("top-0",), 2: ("better", "--blocks", "3"), 5: (HELD, "better"), 7: ("undecided",)},
    "watch": {2: ("better", "--port", "none"), 5: ("empty",)},
    "compare": {
        0: ("better.yaml", "x=2", "--out", "c0"),
        1: ("same.yaml", "x=2", "--out", "c1"),
        2: ("better.yaml", "x=7"),
        6: ("better.yaml", "x=1", "--a", "x=2", "--out", "c6"),
        7: ("no-room.yaml", "x=2", "--out", "c7"),
    },
    "ci gate": {
        0: ("better.yaml", "--against", "ref.json", "--out", "g0"),
        1: ("--against", "of-a-failure.json", "--update", "--out", "g1", "--", "exit 3"),
        2: ("nothing.yaml",),
        6: ("better.yaml", "--against", "faster.json", "--out", "g6"),
        7: ("better.yaml", "--against", "elsewhere.json", "--out", "g7"),
    },
    "ci bisect": {
        0: ("slower.yaml", "--over", "x", "--out", "b0"),
        1: ("same.yaml", "--over", "x", "--out", "b1"),
        2: ("slower.yaml",),
        7: ("slower-no-room.yaml", "--over", "x", "--out", "b7"),
    },
    "study edge": {
        0: ("failing.yaml", "--knob", "x", "--out", "e0"),
        1: ("failing-no-room.yaml", "--knob", "x", "--out", "e1"),
        2: ("better.yaml", "--knob", "y"),
    },
    "study scale": {
        0: ("better.yaml", "--over", "x", "--out", "s0"),
        1: ("failing-2.yaml", "--over", "x", "--out", "s1"),
        2: ("better.yaml", "--over", "y"),
        7: ("better.yaml", "--over", "x", "--repeats", "1", "--out", "s7"),
    },
    "study steps": {
        0: ("better", "--out", "st0"),
        1: ("same.yaml", "x=2", "--out", "st1"),
        2: ("better.yaml",),
        6: ("worse.yaml", "x=2", "--out", "st6"),
        7: ("no-room.yaml", "x=2", "--out", "st7"),
    },
    "site grant show": {0: ("grant.yaml",), 2: ("nothing.yaml",)},
    "site grant create": {0: ("new-grant.yaml", "2"), 2: ("another.yaml", "none")},
    "site grant top-up": {0: ("grant.yaml", "1"), 2: ("nothing.yaml", "1")},
    "site grant release": {2: ("nothing.yaml", "better")},
    "site check": {2: ("nothing.yaml",)},
    "site list": {0: (), 2: ("more",)},
    "site schema": {0: ("study",), 2: ("cake",)},
    "diagnose": {0: ("oom.log",), 2: ("nothing.log",), 4: ("/dev/null",)},
    "study nodes": {5: (".",), 7: ("better",), 2: ("--all",)},
    "study verify": {0: ("better",), 1: ("edited",), 5: ("empty",), 2: ("--all",)},
    "study diff": {0: ("better", "better"), 1: ("better", "other"), 2: ("better",), 5: ("better", "empty")},
    "study bug": {0: ("FAILED",), 2: ("better/runs/nothing",)},
    "study export": {0: ("better",), 2: ("better", "--format", "nosuch"), 5: ("empty",)},
    "bench": {
        0: (SERVER, "--requests", "2", "--max-tokens", "4"),
        2: (SERVER, "--find-goodput"),
        3: ("http://127.0.0.1:CLOSED", "--requests", "2"),
        7: (NO_LOAD_TOO_MUCH, SERVER, "--find-goodput", "--slo", "ttft_p95_ms=2000"),
    },
    "twin import": {0: ("bench.json",), 2: ("oom.log",)},
    "twin sessions": {0: ("sessions:chat",), 2: ("nowhere.jsonl",)},
    "site preflight": {2: ("better.yaml",)},
    "model make": {0: ("llama-8b", "made"), 2: ("no-such-shape", "made")},
    "plan": {
        0: PLAN,
        1: (*PLAN, "--slo", "ttft_p95_ms=0.1"),
        2: ("--model", "no-such-model"),
    },
    "twin simulate": {0: (*TWIN, "--traffic", "fixed:64:8", "--requests", "4"), 2: (*HUGE, "--requests", "4")},
    "plan memory": {0: TWIN, 1: HUGE, 2: ("--model", "no-such-model")},
    "plan layouts": {
        0: ("--model", "llama-8b", "--gpus", "1"),
        1: ("--model", "deepseek-r1", "--gpus", "1"),
        2: ("--model", "llama-8b"),
    },
    "plan sessions": {
        0: (*TWIN, "--traffic", "sessions:chat:3:200:20", "--duration", "60"),
        1: (*TWIN, "--traffic", "sessions:chat:3:200:20", "--duration", "60", "--slo", "ttft_p95_ms=0.01"),
        2: HUGE,
    },
    "plan fleet": {2: ("--tokens",)},
    "twin explain": {0: TWIN, 2: HUGE},
    "twin calibrate": {2: ("--from", "nothing.log")},
    "model show": {0: ("llama-8b",), 2: ("no-such-model",)},
    "model list": {0: (), 2: ("llama-8b",)},
    "plan hardware": {0: (), 2: ("cake",)},
    "service check": {2: ("nothing.yaml",)},
    "service render": {2: ("nothing.yaml",)},
    "service up": {2: ("nothing.yaml",)},
    "service status": {2: ("nothing.yaml",)},
    "service restart": {2: ("nothing.yaml",)},
    "service drain": {2: ("nothing.yaml", "server-1")},
    "service undrain": {2: ("nothing.yaml", "server-1")},
    "service down": {2: ("nothing.yaml",)},
    "service keep": {2: ("nothing.yaml",)},
    "service rehearse": {2: ("nothing.yaml",)},
    "twin serve": {2: ("--port", "none")},
}  # fmt: skip
EACH = [(verb, code) for verb, rows in LEAVES.items() for code in rows]


def study(run: str, values: str = "[1, 2]", budget: str = "{trials: 1}", confirm: str = "{top: 1, blocks: 3}") -> str:
    return STUDY.format(run=run, values=values, budget=budget, confirm=confirm)


def written(home: Path) -> None:
    files = {
        "better": study("echo rate $((100 * {x}))"),
        "same": study("echo rate $((100 + 0 * {x}))"),
        "worse": study("echo rate $((300 - 100 * {x}))"),
        "two-blocks": study("echo rate $((100 * {x}))", confirm="{top: 1, blocks: 2}"),
        "top-0": study("echo rate $((100 * {x}))", confirm="{top: 0}"),
        "unconfirmed": study("echo rate $((100 * {x}))", confirm="{top: 0}"),
        "no-room": study("echo rate $((100 * {x}))", budget=NO_ROOM),
        "slower": study("echo rate $((100 - 40 * ({x} > 2)))", "[1, 2, 3, 4]"),
        "slower-no-room": study("echo rate $((100 - 40 * ({x} > 2)))", "[1, 2, 3, 4]", NO_ROOM),
        "failing": study("[ {x} -lt 3 ] || exit 9; echo rate $((100 * {x}))", "[1, 2, 3, 4]", "{trials: 3}"),
        "failing-no-room": study("[ {x} -lt 3 ] || exit 9; echo rate $((100 * {x}))", "[1, 2, 3, 4]", NO_ROOM),
        "failing-2": study("[ {x} -lt 2 ] || exit 9; echo rate $((100 * {x}))"),
        "waiting": study("echo rate {x}; exec sleep 60"),
        "other": study("echo rate $((100 * {y}))", "[1, 7]").replace("{x:", "{y:"),
        # it fails of x 2 once, and never again
        "once": study(
            f"[ {{x}} -lt 2 ] || [ -e {home}/seen ] || exec sh -c \"touch {home}/seen; exit 9\"; echo rate {{x}}"
        ),
        "refusing": study(
            "n=$(cat ../../seen 2>/dev/null || echo 0); echo $((n + 1)) > ../../seen; "
            "[ $n -lt 3 ] || exec sh -c \"echo serve: unrecognized argument --port 68123 >&2; exit 2\"; "
            "echo rate $((100 * {x}))"
        ),
    }  # fmt: skip
    for name, text in files.items():
        (home / f"{name}.yaml").write_text(text)
    (home / "empty").mkdir()
    (home / "oom.log").write_text("Traceback (most recent call last):\nMemoryError: out of memory\n")
    shutil.copy(next((Path(__file__).parents[1] / "samples" / "bench").glob("*.json")), home / "bench.json")


def run(home: Path, *words: object) -> int:
    return ridgeline(*words, cwd=home).returncode


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies, and the folders of campaigns that ended in every way."""
    home = tmp_path_factory.mktemp("home")
    written(home)
    assert run(home, "tune", "better.yaml", "--out", "better") == 0
    assert run(home, "tune", "other.yaml", "--out", "other") == 0
    assert run(home, "tune", "top-0.yaml", "--out", "top-0") == 1
    assert run(home, "tune", "once.yaml", "--out", "once") == 1
    assert run(home, "compare", "worse.yaml", "x=2", "--out", "worse") == 6
    assert run(home, "compare", "no-room.yaml", "x=2", "--out", "undecided") == 7
    assert run(home, "ci", "gate", "better.yaml", "--against", "ref.json", "--update", "--out", "reference") == 0
    reference = (home / "ref.json").read_text()
    (home / "faster.json").write_text(reference.replace("100.0", "200.0"))
    other = {**json.loads(reference), "machine": {"cpu": "another", "cores": 999}}
    (home / "elsewhere.json").write_text(json.dumps(other))
    shutil.copytree(home / "better", home / "edited")
    journal = home / "edited" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"rate",200.0', '"rate",900.0'))
    assert run(home, "site", "grant", "create", "grant.yaml", "2") == 0
    return home


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# a Ctrl-C for the process that runs this first, once its journal says that a run is under way
CTRL_C = """
import os, pathlib, signal, threading, time
def wait():
    journal = pathlib.Path({out!r}) / "journal.jsonl"
    while not journal.exists() or '"event":"submitted"' not in journal.read_text():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=wait, daemon=True).start()
"""


ONE_END = """
import ridgeline.serving.load.session as session
from ridgeline.serving.load.edge import Edge
session.find_goodput = lambda *given, **named: Edge("rate_s", 5.0, None, 60.0, 60.0, 90.0, 4.9, None, ())
"""


def left(home: Path, verb: str, words: tuple[str, ...]) -> tuple[int, str]:
    if SERVER in words:
        with Scripted(tokens(4)) as server:
            return left(home, verb, tuple(server.url if word == SERVER else word for word in words))
    failed = next(home.glob("once/runs/*x2*"), home)
    typed = [word.replace("FAILED", str(failed)).replace("CLOSED", str(closed_port())) for word in words]
    if typed[:1] == [HELD]:
        with StudyLock(StudyFolder.open(home / typed[1]).lock_path):
            done = ridgeline(*verb.split(), *typed[1:], cwd=home)
    elif typed[:1] == [INTERRUPTED]:
        before = CTRL_C.format(out=str(home / typed[-1]))
        done = ridgeline(*verb.split(), *typed[1:], cwd=home, before=before)
    elif typed[:1] == [NO_LOAD_TOO_MUCH]:
        done = ridgeline(*verb.split(), *typed[1:], cwd=home, before=ONE_END)
    else:
        done = ridgeline(*verb.split(), *typed, cwd=home)
    return done.returncode, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("verb", "code"), EACH, ids=[f"{verb}: {code}" for verb, code in EACH])
def test_each_code_that_is_promised_happens(home: Path, verb: str, code: int) -> None:
    found, told = left(home, verb, LEAVES[verb][code])
    assert found == code, told
    assert "Traceback (most recent" not in told or verb == "diagnose"


def test_no_verb_is_missing_and_no_code() -> None:
    assert set(LEAVES) == {name for name, _ in commands()}
    assert {code for rows in LEAVES.values() for code in rows} == {code.value for code in ExitCode}
    assert all(2 in rows for rows in LEAVES.values()), "every verb can be typed wrongly"


PROMISED = re.compile(r"\b(\d{1,3}): ")


def test_what_a_verbs_help_promises_is_seen_to_happen() -> None:
    for verb, command in commands():
        text = " ".join((command.__doc__ or "").split())
        promised = {int(code) for code in PROMISED.findall(text[text.find("Exit code") :]) if "Exit code" in text}
        assert promised <= LEAVES[verb].keys(), verb


def test_the_reference_says_what_the_codes_mean() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/reference/verbs.md").read_text().split())
    for code in ExitCode:
        assert f"| {code.value} | {' '.join(code.meaning.split())} |" in page, code
