"""From what canaries say to what `keep` tells and does; and the small promises of the guide."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.records.study import NotifyChoice
from ridgeline.serving.service import history, probe
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.keep.canary import Canaries
from ridgeline.serving.service.keep.exporter import _metrics_text
from ridgeline.serving.service.keep.keeper import ALERTS, Keeper
from ridgeline.serving.service.keep.watch import HUNG_AFTER_S
from ridgeline.serving.service.kubernetes import manifests
from ridgeline.serving.service.probe import TokenAnswer
from ridgeline.serving.service.render import render
from ridgeline.serving.verbs.deploy import operator_of
from ridgeline.serving.verbs.keep import _test_alert, keep
from ridgeline.study.notify import Notifier

from .test_goes_on import World, fresh
from .test_goes_on import world as world  # a site and a router in memory

PAGE = 'sglang:num_running_reqs 0\nhttp_requests_total{handler="/v1/completions",method="POST",status="5xx"} 3\n'


class Told:
    """A keeper whose clock is ours; `answers` is what the canary of a server comes back with."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        fresh(world).up(60)
        monkeypatch.setattr(probe, "metrics_page", lambda url: PAGE)
        self.now_s, self.alerts, self.said = 0.0, list[tuple[str, str]](), list[str]()
        service = fresh(world)
        service.say = self.said.append
        self.keeper = Keeper(
            service, clock=lambda: self.now_s, alert=lambda kind, member, text: self.alerts.append((kind, member))
        )
        self.keeper.step()

    def canaries(self, name: str = "server-1") -> Canaries:
        return self.keeper.seen._canaries[name][1]

    def answers(self, answer: TokenAnswer, name: str = "server-1") -> None:
        self.canaries(name)._under_way += 1
        self.canaries(name)._take(answer)
        self.now_s += 2.0
        self.keeper.step()

    def state(self, name: str = "server-1") -> str:
        return next(row.state for row in self.keeper.seen.states if row.member == name)


def test_a_wrong_key_is_told_at_once_and_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(world, monkeypatch)
    for _ in range(4):
        told.answers(TokenAnswer("401: no", refused=True, wrong_key=True))
        assert told.alerts == [("wrong-key", "server-1")]
    assert told.state() == "refuses"
    assert "set api_key_env to the key that it was started with" in told.said[0]
    assert told.keeper.operator.folder.generation("server-1") == 1, "another start would not help"
    told.answers(TokenAnswer(took_s=0.1))
    assert told.state() == "ready"


def test_refusals_are_told_from_the_second_on_and_again_after_a_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, refusal = Told(world, monkeypatch), TokenAnswer("429: too many", refused=True)
    told.answers(refusal)
    assert told.alerts == [] and told.state() == "ready"
    for _ in range(3):
        told.answers(refusal)
    assert told.alerts == [("refuses", "server-1")] and told.state() == "refuses"
    told.answers(TokenAnswer(took_s=0.1))
    for _ in range(2):
        told.answers(refusal)
    assert len(told.alerts) == 2
    page = _metrics_text(told.keeper)
    assert 'ridgeline_member_canaries_total{service="two",member="server-1",outcome="refused"} 6' in page
    assert 'ridgeline_member_canaries_total{service="two",member="server-0",outcome="refused"} 0' in page
    assert 'ridgeline_keep_events_total{service="two",kind="refuses"} 2' in page
    assert 'ridgeline_member_requests_total{service="two",member="server-1",status="5xx"} 3' in page


def test_a_server_that_answers_without_tokens_is_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(world, monkeypatch)
    while told.keeper.operator.folder.generation("server-1") == 1:
        told.answers(TokenAnswer("an answer without choices", broken=True))
        assert told.now_s < 3 * HUNG_AFTER_S
        if "server-1" not in told.keeper.seen._canaries:
            told.keeper.step()
            break
    assert told.now_s >= HUNG_AFTER_S
    assert ("hung", "server-1") in told.alerts
    assert "it answers canaries without a token for 10 s: an answer without choices" in told.said[0]
    for _ in range(4):
        told.keeper.step()
    assert told.keeper.operator.folder.generation("server-1") == 2


def test_every_count_is_there_from_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    page = _metrics_text(Told(world, monkeypatch).keeper)
    for kind in ALERTS:
        assert f'ridgeline_keep_events_total{{service="two",kind="{kind}"}} 0' in page


def test_back_off_counts_deaths_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(world).up(60)
    service, now_s = fresh(world), float(int(time.time()))
    monkeypatch.setattr(history.time, "time", lambda: now_s)
    name = {"member": "server-1", "event": "mend", "evidence": "as if"}
    with service.action():
        for why in ("hung", "slow", "hung"):
            service.folder.record({**name, "why": why})
        assert service.folder.next_try_in_s("server-1") == 0.0, "its start has not failed once"
        service.folder.record({**name, "why": "dead"})
        assert service.folder.next_try_in_s("server-1") == 15.0
        service.folder.record({**name, "why": "dead"})
        assert service.folder.next_try_in_s("server-1") == 60.0


def test_a_server_that_has_not_answered_yet_is_starting_and_one_that_has_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh(world).up(60)
    monkeypatch.setattr(probe, "is_healthy", lambda url: False)
    service = fresh(world)
    with service.action():
        service.folder.record({"event": "planned", "member": "server-1", "generation": 2})
        service.folder.record({"event": "submitted", "member": "server-1", "ticket": "2 x"})
    states = {state.name: state.state for state in fresh(world).status()}
    assert states == {"server-0": "silent", "server-1": "starting", "router": "silent"}


def test_a_hook_whose_variable_is_not_set_is_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(InputError, match=r"the variable HOOK.*is not set"):
        Notifier("chat", NotifyChoice(webhook_env="HOOK"), print).require_ways()
    monkeypatch.setenv("HOOK", "http://x")
    Notifier("chat", NotifyChoice(webhook_env="HOOK"), print).require_ways()
    file, lines = world.root / "two.yaml", tmp_path / "lines"
    plain = file.read_text()
    with pytest.raises(InputError, match="names nobody"):
        _test_alert(load_service(file))
    file.write_text(plain + f"notify: {{command: 'echo \"$RIDGELINE_ALERT\" > {lines}'}}\n")
    _test_alert(load_service(file))
    assert lines.read_text().startswith("two: keep: test: a test alert")
    assert "sent to command" in capsys.readouterr().out
    file.write_text(plain + "notify: {command: 'exit 3'}\n")
    with pytest.raises(SiteError, match="command failed"):
        _test_alert(load_service(file))


def test_the_unit_waits_for_the_network_and_the_secret_holds_the_hook(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    text = "version: 1\nmodel: org/m\nengine: {kind: vllm}\nunits: [{gpus: 1}]\nnotify: {webhook_env: CHAT_HOOK}\n"
    path.write_text(text)
    (unit,) = render(load_service(path), tmp_path / "out", "systemd", path)
    lines = unit.read_text().splitlines()
    assert "Wants=network-online.target" in lines and "After=network-online.target" in lines
    assert any(line.startswith("ExecStart=") and line.endswith("--metrics 9400") for line in lines)
    assert not any("CHAT_HOOK" in content for _, content in manifests(load_service(path))), "nobody there sends alerts"


def test_keep_says_whom_it_watches_and_who_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, root = world.root / "two.yaml", world.root / "service"
    monkeypatch.setattr("ridgeline.serving.verbs.keep.signal.signal", lambda *_: None)
    monkeypatch.setattr(Keeper, "run", lambda self, stop: None)
    keep(file, folder=root)
    everybody = "server-0, server-1, router every 2 s"
    assert capsys.readouterr().out == f"keep: waits for `service up` of {everybody}; alerts go to nobody\n"
    file.write_text(f"{file.read_text()}notify: {{command: 'true'}}\n")
    service = operator_of(file, root)
    with service.action():
        service.folder.record({"event": "planned", "member": "server-0", "generation": 1})
    keep(file, folder=root)
    assert capsys.readouterr().out == f"keep: watches {everybody}; alerts go to command\n"
