"""Keys and tokens: in no argument, which every user reads, and in no file that we write."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ridgeline.errors import InputError, StudyError
from ridgeline.serving.service.file import load_service
from ridgeline.serving.service.members import members_of
from ridgeline.serving.service.render import TARGETS, render
from ridgeline.serving.service.scripts import start_script
from ridgeline.serving.verbs.deploy import service_summary

from .test_operate import file as file  # a service of twins behind a stand-in router
from .test_operate import operator

KEY, TOKEN = "ridge-key-0f3a9c51", "ridge-token-77e1b2"
# an engine that says what it was given, in a process of its own as well: engines start many
ENGINE = """
import json, multiprocessing, os, sys
from pathlib import Path

def seen():
    return {"argv": sys.argv, "line": Path("/proc/self/cmdline").read_bytes().decode().split(chr(0)),
            "key": os.environ.get("VLLM_API_KEY"), "token": os.environ.get("HF_TOKEN")}

def child(queue):
    queue.put(seen())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(json.dumps([seen(), queue.get(timeout=600)]))
    process.join()
"""


def cmdlines() -> dict[int, bytes]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_no_process_of_a_service_and_no_file_shows_the_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", KEY)
    file.write_text(file.read_text() + "api_key_env: SERVICE_KEY\n")
    without = file.read_text().replace("api_key_env: SERVICE_KEY\n", "")
    service = operator(file)
    try:
        # the stand-in router asks nobody for a key and passes none on
        with service.action():
            for server in service.servers:
                service.ensure(server)
            service.until_ready(service.servers, 120)
            assert service.router is not None
            service.ensure(service.router)
            service.until_ready([service.router], 120)
        lines = cmdlines()
        assert sum(b"twin\0serve" in line for line in lines.values()) >= 2, "they are looked at while they run"
        assert [line for line in lines.values() if KEY.encode() in line] == []
        assert files_with(KEY, file.parent) == []
        url = service.folder.url(service.servers[0])
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/v1/models", timeout=30)
        asked = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 200
    finally:
        service.down()
        file.write_text(without)  # for whoever takes it down without the key


@pytest.mark.parametrize(("kind", "module"), [("sglang", "launch_server"), ("vllm", "entrypoints/openai/api_server")])
def test_engines_are_given_the_key_where_nobody_else_sees_it(tmp_path: Path, kind: str, module: str) -> None:
    path = tmp_path / "site" / kind / f"{module}.py"
    path.parent.mkdir(parents=True)
    path.write_text(ENGINE)
    home = tmp_path / "home" / ".ridgeline" / "secrets"
    home.mkdir(parents=True)
    for name, value in (("SERVICE_KEY", KEY), ("HF_TOKEN", TOKEN)):
        (home / name).write_text(f"{value}\n")
        (home / name).chmod(0o600)
    text = f"version: 1\nmodel: org/m\nengine: {{kind: {kind}, python: {sys.executable}}}\nunits: [{{gpus: 1}}]\n"
    (tmp_path / "s.yaml").write_text(f"{text}api_key_env: SERVICE_KEY\nsecrets: [HF_TOKEN]\n")
    service = load_service(tmp_path / "s.yaml")
    (tmp_path / "start.sh").write_text(start_script(service, members_of(service)[0]))
    for given in ({"SERVICE_KEY": KEY, "HF_TOKEN": TOKEN}, {"HOME": str(tmp_path / "home")}):
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site"), **given}
        run = subprocess.run(
            ["sh", tmp_path / "start.sh"], env=env, capture_output=True, text=True, timeout=600, check=True
        )
        for process in json.loads(run.stdout):
            assert KEY not in " ".join(process["line"])
            assert process["token"] == TOKEN
            if kind == "vllm":
                assert process["key"] == KEY
                assert "--api-key" not in process["argv"]
            else:
                assert process["argv"][-2:] == ["--api-key", KEY]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = subprocess.run(["sh", tmp_path / "start.sh"], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 74
    assert "the secret SERVICE_KEY is neither in the environment nor in" in run.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_is_rendered_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setenv("SERVICE_KEY", KEY)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "s.yaml").write_text(
        "version: 1\nmodel: org/m\nengine: {kind: sglang}\nunits: [{replicas: 2, gpus: 8, settings: {tp: 8}}]\n"
        "router: {kind: smg}\napi_key_env: SERVICE_KEY\nsecrets: [HF_TOKEN]\nkubernetes: {router_image: 'r:1'}\n"
    )
    written = list(render(load_service(tmp_path / "s.yaml"), tmp_path / "out", target, tmp_path / "s.yaml"))
    assert written
    assert files_with(KEY, tmp_path) == files_with(TOKEN, tmp_path) == []
    named = (
        "SERVICE_KEY" if target == "systemd" else "HF_TOKEN"
    )  # a unit starts `keep`, which starts no server of its own
    assert any(named in path.read_text() for path in written)
    if target not in ("kubernetes", "systemd"):
        assert (tmp_path / "out").stat().st_mode & 0o077 == 0, "SGLang prints its key into its log"


def test_a_key_in_a_file_that_others_read_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SERVICE_KEY", raising=False)
    folder = tmp_path / ".ridgeline" / "secrets"
    folder.mkdir(parents=True)
    before = file.read_text()
    file.write_text(before + "api_key_env: SERVICE_KEY\n")
    with pytest.raises(InputError, match=r"SERVICE_KEY is empty.*put the key into ~/.ridgeline/secrets/SERVICE_KEY"):
        operator(file)
    (folder / "SERVICE_KEY").write_text(KEY)
    (folder / "SERVICE_KEY").chmod(0o644)
    with pytest.raises(InputError, match=r"is open to others.*chmod 600"):
        operator(file)
    (folder / "SERVICE_KEY").chmod(0o600)
    assert operator(file).key == KEY
    file.write_text(before)


GOOD = (
    "version: 1\nmodel: org/m\nengine: {kind: sglang}\nunits:\n  - {replicas: 2, settings: {tp: 1}}\n"
    "router: {kind: smg}\n"
)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("settings: {tp: 1}", "env: {HF_TOKEN: hf_abcdefghij0123456789}", "s.yaml:5: units[0].env.HF_TOKEN"),
        ("settings: {tp: 1}", "env: {MY_PASSWORD: swordfish}", "s.yaml:5: units[0].env.MY_PASSWORD"),
        ("settings: {tp: 1}", "arguments: --api-key swordfish", "s.yaml:5: units[0].arguments"),
        ("settings: {tp: 1}", "arguments: [--admin-api-key=swordfish]", "s.yaml:5: units[0].arguments"),
        ("settings: {tp: 1}", "arguments: --x sk-abcdefgh12345678", "s.yaml:5: units[0].arguments"),
        ("settings: {tp: 1}", "settings: {api_key: swordfish}", "s.yaml:5: units[0].settings.api_key"),
        ("{kind: smg}", "{kind: smg, arguments: --api-key swordfish}", "s.yaml:6: router.arguments"),
        ("router:", "api_key_env: sk-swordfish-0123456\nrouter:", "s.yaml:6: api_key_env"),
        ("router:", "api_key_env: swordfish\nrouter:", "s.yaml:6: api_key_env"),
        ("router:", "api_key_env: SWORDFISH0123456789ABCDEF\nrouter:", "s.yaml:6: api_key_env"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, old: str, new: str, where: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(StudyError) as error:
        load_service(path)
    assert where in str(error.value)
    assert "swordfish" not in str(error.value).lower()
    assert "hf_abc" not in str(error.value)


def test_what_is_shown_is_the_command_as_people_know_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{GOOD}api_key_env: SERVICE_KEY\n")
    service = load_service(tmp_path / "s.yaml")
    said = service_summary(service, members_of(service))
    assert "    python3 -m sglang.launch_server --model-path org/m" in said
    assert "    python3 -m smg launch --host" in said
    assert "from SERVICE_KEY itself" in said
    assert "runpy" not in said


def test_ordinary_settings_are_no_secrets(tmp_path: Path) -> None:
    said = "env: {TOKENIZERS_PARALLELISM: 'false', MAX_TOKENS: 4096}, arguments: --tokenizer-path t --max-tokens 5"
    (tmp_path / "s.yaml").write_text(GOOD.replace("settings: {tp: 1}", said))
    load_service(tmp_path / "s.yaml")
