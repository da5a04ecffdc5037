"""A unit of systemd that runs `keep` for a service, for ever."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ridgeline.service.quoting import in_unit
from ridgeline.service.service import Service


def unit_name(service: Service) -> str:
    return f"ridgeline-keep-{re.sub(r'[^A-Za-z0-9_.-]+', '-', service.name)}.service"


def unit_text(service: Service, file: Path) -> str:
    """What `deploy render FILE --for systemd` writes."""
    variables = [name for name in (service.api_key_env, service.notify.webhook_env) if name]
    secrets = file.absolute().with_suffix(".env")
    needs = [
        f"# holds {' and '.join(variables)}, as NAME=value; readable by you alone",
        f"EnvironmentFile={_text(str(secrets))}",
    ]
    words = [sys.executable, "-m", "ridgeline", "keep", str(file.absolute())]
    return "\n".join(
        [
            f"# For you alone: ~/.config/systemd/user/{unit_name(service)}, `systemctl --user enable --now` it, and",
            "# `loginctl enable-linger` once, so that it runs while you are logged out. For the machine: in",
            "# /etc/systemd/system, with `User=` below [Service].",
            "[Unit]",
            f"Description=ridgeline keep {_text(service.name)}",
            "After=network-online.target",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            f"WorkingDirectory={_text(str(file.absolute().parent))}",
            f"ExecStart={' '.join(map(_quoted, words))}",
            *(needs if variables else []),
            "Restart=always",
            "RestartSec=5",
            "# servers that keep started go on when it ends",
            "KillMode=process",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _text(text: str) -> str:
    """systemd fills in what begins with %."""
    return text.replace("%", "%%").replace("\n", " ")


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=@+,-]+", word) else in_unit(word)
