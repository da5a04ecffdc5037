"""Whom to tell: of a service what `keep` sees and does, of a campaign that it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotifyChoice:
    """Every channel that is named is used."""

    webhook: str = ""
    webhook_env: str = ""  # the variable that holds the webhook's address, which is often a secret
    command: str = ""
    mail: str = ""
    mail_from: str = ""
    smtp: str = "localhost:25"
    most_an_hour: int = 20

    @property
    def ways(self) -> list[str]:
        configured = {"webhook": self.webhook or self.webhook_env, "command": self.command, "mail": self.mail}
        return [way for way, value in configured.items() if value]


NOBODY = NotifyChoice()
