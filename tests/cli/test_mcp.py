"""`ridgeline mcp`, driven by the protocol's own client as a coding agent drives it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

STUDY = """\
version: 1
name: levels
workload:
  kind: command
  run: echo {mode}; echo rate {level}$(date +%N | tail -c 2)
  metrics: {rate: {regex: "rate ([0-9]+)"}}
space: {level: [10, 20, 40], mode: ["a,b", c]}
goal: {maximize: rate}
baseline: {level: 20, mode: c}
budget: {trials: 4}
confirm: {blocks: 3}
job: {limit: 20}
"""
Ask = Callable[..., Awaitable[dict[str, Any]]]


def talk(root: Path, conversation: Callable[[Ask], Awaitable[None]], *options: str) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "ridgeline", "mcp", "--root", str(root), *options], cwd=str(root)
    )

    async def whole() -> None:
        async with Client(server) as client:

            async def ask(tool: str, **given: Any) -> dict[str, Any]:
                answer = await client.call_tool(tool, given)
                assert not answer.is_error, answer.content
                assert len(json.dumps(answer.structured_content)) < 6_000
                return answer.structured_content  # type: ignore[return-value]

            await conversation(ask)

    anyio.run(whole)


async def over(ask: Ask, folder: str) -> dict[str, Any]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if (now := await ask("status", folder=folder))["answered"]:
            return now
        await anyio.sleep(0.3)
    raise AssertionError(f"not over: {now}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path


def test_a_campaign_from_check_to_its_verdict(root: Path) -> None:
    async def conversation(ask: Ask) -> None:
        checked = await ask("check", study="study.yaml")
        assert checked["answered"]
        assert "6 legal points" in checked["text"]
        started = await ask("tune", study="study.yaml")
        assert started["facts"] == {"folder": "studies/levels"}
        await over(ask, "studies/levels")
        found = await ask("best", folder="studies/levels")
        assert found["answered"]
        assert found["facts"]["settings"]["level"] == 40
        assert "95%" in found["facts"]["change"]
        # again: it is over, and nothing is measured twice
        runs = len([*(root / "studies/levels/runs").iterdir()])
        await ask("tune", study="study.yaml")
        await over(ask, "studies/levels")
        assert len([*(root / "studies/levels/runs").iterdir()]) == runs
        # edited: the folder answers another question, and says nothing about this one
        (root / "study.yaml").write_text(STUDY.replace("[10, 20, 40]", "[20, 80]"))
        refused = await ask("tune", study="study.yaml")
        assert not refused["answered"]
        assert "name another folder" in refused["text"]

    talk(root, conversation)


def test_a_comparison_takes_any_value_and_calls_nothing_better_that_is_not(root: Path) -> None:
    async def conversation(ask: Ask) -> None:
        started = await ask("compare", study="study.yaml", b={"level": 10, "mode": "a,b"})
        folder = started["facts"]["folder"]
        await over(ask, folder)
        found = await ask("best", folder=folder)
        assert not found["answered"]
        assert not found["facts"]["confirmed"]
        assert "paste" not in found["facts"]
        again = await ask("compare", study="study.yaml", b={"level": 40})
        assert again["facts"]["folder"] == f"{folder}-2"
        await over(ask, f"{folder}-2")
        assert (await ask("best", folder=f"{folder}-2"))["answered"]

    talk(root, conversation)


def test_what_runs_has_no_answer_yet_and_can_be_stopped(root: Path) -> None:
    (root / "study.yaml").write_text(STUDY.replace("echo {mode}", "sleep 2; echo {mode}"))

    async def conversation(ask: Ask) -> None:
        folder = (await ask("compare", study="study.yaml", b={"level": 40}, blocks=9))["facts"]["folder"]
        early = await ask("best", folder=folder)
        assert not early["answered"]
        assert not early["facts"].keys() & {"settings", "paste"}
        assert early["next"] == "status, until it is over"
        assert (await ask("stop", folder=folder))["answered"]
        await over(ask, folder)
        assert not (await ask("best", folder=folder))["answered"]

    talk(root, conversation)


def test_what_it_refuses(root: Path) -> None:
    (root.parent / "outside.yaml").write_text(STUDY)
    (root / "link.yaml").symlink_to(root.parent / "outside.yaml")
    (root / "endless.yaml").write_text(STUDY.replace("{trials: 4}", "{wall: 1h}"))
    (root / "wrong.yaml").write_text(STUDY.replace("goal:", "gaol:"))

    async def conversation(ask: Ask) -> None:
        for path in ("../outside.yaml", str(root.parent / "outside.yaml"), "link.yaml"):
            for tool, name in (("check", "study"), ("tune", "study"), ("diagnose", "file"), ("best", "folder")):
                refused = await ask(tool, **{name: path})
                assert not refused["answered"]
                assert "is outside" in refused["text"]
        wrong = await ask("tune", study="wrong.yaml")
        assert not wrong["answered"]
        assert "goal" in wrong["text"]
        unknown = await ask("compare", study="study.yaml", b={"levle": 1})
        assert not unknown["answered"]
        assert "level" in unknown["text"]
        assert not (await ask("stop", folder="studies/levels"))["answered"]
        for elsewhere in ({"model": "/etc/passwd"}, {"model": "llama-8b", "traffic": "../trace.jsonl"}):
            outside = await ask("simulate", gpu="h200", **elsewhere)
            assert not outside["answered"]
            assert "is outside" in outside["text"]
        far = await ask("bench", url="http://192.0.2.1:8000")
        assert not far["answered"]
        assert "--host 192.0.2.1" in far["text"]

    talk(root, conversation)
    assert not (root / "studies" / "levels").exists()


def test_only_what_its_grant_pays_for_is_run(root: Path) -> None:
    (root / "paid.yaml").write_text(STUDY.replace("{trials: 4}", "{trials: 4, grant: other.grant}"))

    async def conversation(ask: Ask) -> None:
        for name in ("study.yaml", "paid.yaml"):
            refused = await ask("tune", study=name)
            assert not refused["answered"]
            assert "grant" in refused["text"]

    talk(root, conversation, "--grant", str(root / "team.grant"))
    assert not (root / "studies").exists()


def test_tools_of_a_wing_are_served_beside_ours(root: Path) -> None:
    async def conversation(ask: Ask) -> None:
        predicted = await ask("simulate", model="llama-8b", gpu="h200", concurrency=16)
        assert predicted["answered"]
        assert "modelled" in predicted["text"]

    talk(root, conversation)
