"""One truth about what should run: what was accepted, whatever the deployment file says since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError, StoreError
from ridgeline.serving.service import rolling
from ridgeline.serving.service.accepted import ACCEPTED_FILE, read_accepted
from ridgeline.serving.service.keep.keeper import Keeper
from ridgeline.serving.service.keep.watch import ServerPoll
from ridgeline.serving.service.operate import Operator
from ridgeline.serving.service.rolling import canary_restart, restart
from ridgeline.serving.verbs.deploy import _edited_text, operator_of

from .test_goes_on import FILE, World, fresh, run_until, settle
from .test_goes_on import world as world  # a site and a router in memory


def edit(world: World, old: str = "{tp: 1}", new: str = "{tp: 1, max_running_requests: 7}") -> None:
    path = world.root / "two.yaml"
    path.write_text(path.read_text().replace(old, new))


def started_with(world: World, name: str) -> str:
    """The word of its latest start script that the edit changes."""
    script = (world.root / "service" / "members" / name / "start.sh").read_text()
    return "new" if "--max-running-requests 7" in script else "old"


def everybody(world: World) -> list[str]:
    return [started_with(world, name) for name in ("server-0", "server-1")]


def kill(world: World, service: Operator, name: str) -> None:
    service.refresh()
    world.jobs[service.folder.started[name].ticket] = "exit code 1"


def rolled(world: World) -> None:
    service = fresh(world)
    with service.commanding():
        restart(service, service.servers, 60)


def tried(world: World, speed: float) -> None:
    service, rows = fresh(world), iter(range(99))

    def polls() -> dict[str, ServerPoll]:
        at_s = 5.0 * next(rows)
        paces = {"server-0": 40 * speed, "server-1": 40.0}
        return {name: ServerPoll(at_s, running=8.0, tokens=at_s * pace) for name, pace in paces.items()}

    with service.commanding():
        canary_restart(service, service.servers, 60, 0.12, polls)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "STEP_S", 0.01)


def test_an_edit_is_not_what_a_dead_server_is_started_with(world: World) -> None:
    """Also not by a keeper that was started after it."""
    fresh(world).up(60)
    edit(world)
    kill(world, fresh(world), "server-1")
    service = settle(world)
    assert service.folder.started["server-1"].generation == 2
    assert everybody(world) == ["old", "old"]
    assert service.edited() == (["server-0", "server-1"], ["units"])


def test_a_keeper_from_before_starts_a_dead_server_as_it_was_restarted(world: World) -> None:
    fresh(world).up(60)
    keeper = Keeper(fresh(world))
    keeper.step()
    edit(world)
    rolled(world)
    assert everybody(world) == ["new", "new"]
    kill(world, keeper.operator, "server-1")
    for _ in range(6):
        keeper.step()
    assert keeper.operator.folder.started["server-1"].generation == 3
    assert started_with(world, "server-1") == "new"
    assert keeper.operator.service.units[0].settings["max_running_requests"] == 7


def test_what_a_rejected_canary_tried_is_started_by_nobody(world: World) -> None:
    fresh(world).up(60)
    before = (world.root / "service" / ACCEPTED_FILE).read_bytes()
    edit(world)
    with pytest.raises(SiteError, match=r"server-0 runs as it did before"):
        tried(world, 0.5)
    assert everybody(world) == ["old", "old"]
    assert (world.root / "service" / ACCEPTED_FILE).read_bytes() == before
    kill(world, fresh(world), "server-0")
    settle(world)
    assert everybody(world) == ["old", "old"]


def test_a_canary_that_passed_is_accepted_with_the_others(world: World) -> None:
    fresh(world).up(60)
    edit(world)
    tried(world, 1.0)
    assert everybody(world) == ["new", "new"]
    service = fresh(world)
    assert service.edited() == ([], [])
    assert not any(start.trial for start in service.folder.started.values())
    kill(world, service, "server-0")
    settle(world)
    assert everybody(world) == ["new", "new"]


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_a_canary_that_is_killed_at_any_line_leaves_what_was_or_is_accepted(world: World, speed: float) -> None:
    for lines in range(1, 99):
        (world.root / "two.yaml").write_text(FILE)
        fresh(world).up(60)
        edit(world)
        ended = run_until(lambda: swallow(lambda: tried(world, speed)), lines)
        service = settle(world)
        accepted = read_accepted(world.root / "service")
        assert accepted is not None
        for name in ("server-0", "server-1"):
            limit = accepted.of(name).units[0].settings.get("max_running_requests")
            assert started_with(world, name) == ("new" if limit == 7 else "old"), "what runs is what was accepted"
        assert speed == 1.0 or everybody(world) == ["old", "old"]
        assert len(world.listed) == 2 and not service.folder.moving
        fresh(world).down()
        if ended:
            assert lines > 8
            return
    raise AssertionError("it never came to its end")


def swallow(act: Callable[[], None]) -> None:
    try:
        act()
    except SiteError:
        pass


def test_a_restart_that_is_killed_leaves_each_server_with_what_was_accepted_for_it(world: World) -> None:
    seen = set[tuple[str, ...]]()
    for lines in range(1, 99):
        (world.root / "two.yaml").write_text(FILE)
        fresh(world).up(60)
        edit(world)
        ended = run_until(lambda: rolled(world), lines)
        service = settle(world)
        seen.add(tuple(everybody(world)))
        unlike = [n for n, how in zip(("server-0", "server-1"), everybody(world), strict=True) if how == "old"]
        assert service.edited()[0] == unlike, "and status says who has yet to follow"
        fresh(world).down()
        if ended:
            break
    assert seen == {("old", "old"), ("new", "old"), ("new", "new")}


def test_a_keeper_leaves_a_server_to_the_command_that_restarts_it(world: World) -> None:
    """It would start it as it was before, and the person's edit would be lost."""
    fresh(world).up(60)
    service, keeper = fresh(world), Keeper(fresh(world))
    with service.commanding():
        with service.action():
            event = {"event": "leaving", "member": "server-1", "why": "restart", "until": 0.0, "command": True}
            service.folder.record(event)
        for _ in range(4):
            keeper.step()
        assert keeper.operator.folder.generation("server-1") == 1
    for _ in range(6):
        keeper.step()
    assert keeper.operator.folder.generation("server-1") == 2, "nobody commands any more"


def test_ports_that_an_edit_moves_are_those_of_who_was_restarted(world: World) -> None:
    fresh(world).up(60)
    edit(world, "units:", "first_port: 31000\nunits:")
    service = fresh(world)
    with service.commanding():
        restart(service, [service.member("server-1")], 60)
    found = {member.name: member.port for member in fresh(world).members}
    assert found == {"server-0": 30000, "server-1": 31001, "router": 9000}
    assert "http://$at_server_0:30000" in fresh(world).member("router").line
    assert "http://$at_server_1:31001" in fresh(world).member("router").line
    assert fresh(world).service.first_port == 30000, "the whole follows when all servers have"
    with service.commanding():
        restart(service, [service.member("server-0")], 60)
    assert fresh(world).service.first_port == 31000


def test_up_accepts_what_concerns_no_running_member(world: World) -> None:
    fresh(world).up(60)
    edit(world, "units:", "notify: {command: 'true'}\nunits:")
    assert fresh(world).edited() == ([], ["notify"])
    said = _edited_text(world.root / "two.yaml", *fresh(world).edited())
    assert said.startswith("edited, not applied: notify of ")
    assert "service up" in said
    assert not fresh(world).service.notify.ways
    fresh(world).up(60)
    assert fresh(world).service.notify.ways == ["command"]
    assert fresh(world).edited() == ([], [])


def test_a_file_that_cannot_be_read_is_in_nobodys_way(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(world).up(60)
    (world.root / "two.yaml").write_text("version: 1\nunits: [")
    service = operator_of(world.root / "two.yaml", world.root / "service")
    assert "what was accepted is used" in capsys.readouterr().err
    kill(world, service, "server-1")
    keeper = Keeper(service)
    for _ in range(8):
        keeper.step()
    assert world.running() == ["router", "server-0", "server-1"]
    with pytest.raises(InputError, match="cannot be read as it is"):
        restart(service, service.servers, 60)
    service.down()
    assert world.running() == []


def spoiled(path: Path, how: str) -> None:
    found = json.loads(path.read_text())
    if how == "torn":
        path.write_text(path.read_text()[:-40])
    elif how == "empty":
        path.write_text("")
    elif how == "by hand":
        found["settings"][0]["units"][0]["settings"]["tp"] = 2
    elif how == "a list":
        found = [found]
    elif how == "newer":
        found |= {"format": 2, "written_by": "9.1.0", "settings": "another way"}
    elif how == "another":
        path.write_text(path.read_text().replace('"two"', '"three"'))
        found = json.loads(path.read_text())
        from ridgeline.serving.service.accepted import _digest

        found["digest"] = _digest(found["settings"], found["members"])
    if how not in ("torn", "empty"):
        path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("torn", "is damaged"),
        ("empty", "is damaged"),
        ("by hand", "is damaged"),
        ("a list", "is damaged"),
        ("newer", r"was written by ridgeline 9\.1\.0, which is newer than this one"),
        ("another", "is of the service 'three', and the deployment file describes 'two'"),
    ],
)
def test_an_accepted_file_that_cannot_be_used_is_named_and_nothing_is_started(
    world: World, how: str, said: str
) -> None:
    fresh(world).up(60)
    keeper = Keeper(fresh(world))
    path = world.root / "service" / ACCEPTED_FILE
    kill(world, keeper.operator, "server-1")
    spoiled(path, how)
    jobs = dict(world.jobs)
    for act in (keeper.step, lambda: fresh(world), lambda: fresh(world).up(60)):
        with pytest.raises(StoreError, match=said) as error:
            act()
        assert str(path) in str(error.value)
        assert "Nothing was started" in str(error.value)
    assert world.jobs == jobs


def test_a_damaged_one_is_set_aside_by_down(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    from ridgeline.serving.verbs.deploy import down

    fresh(world).up(60)
    path = world.root / "service" / ACCEPTED_FILE
    path.write_text("{")
    down(world.root / "two.yaml", world.root / "service")
    assert world.running() == []
    assert "set aside as" in capsys.readouterr().err
    assert path.with_suffix(".damaged").read_text() == "{"
    fresh(world).up(60)
    assert world.running() == ["router", "server-0", "server-1"]


def test_a_service_of_an_earlier_release_is_accepted_by_up(world: World) -> None:
    """Its folder has no such file: nobody starts anything. What runs by other scripts than the file's is named."""
    fresh(world).up(60)
    path = world.root / "service" / ACCEPTED_FILE
    path.unlink()
    edit(world)
    before = path.with_name("journal.jsonl").read_text()
    with pytest.raises(InputError, match=r"`ridgeline service up two.yaml`, which leaves alone what runs"):
        Keeper(fresh(world), file="two.yaml").step()
    assert path.with_name("journal.jsonl").read_text() == before
    said: list[str] = []
    service = fresh(world)
    service.say = said.append
    service.up(60)
    assert sum("as it was accepted before" in line for line in said) == 2
    assert service.edited()[0] == ["server-0", "server-1"]
    assert not path.stat().st_mode & 0o077
