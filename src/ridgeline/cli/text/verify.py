"""What a check of a study folder found, for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.campaign.verify.verification import Mismatch, Unchecked, Verification
from ridgeline.stats.wording import count

LONGEST_VALUE = 200


def verification_lines(found: Verification) -> Iterable[str]:
    yield f"{found.folder}: {_headline(found)}"
    yield f"  {_compared(found)}"
    yield from (f"  {_receipt_text(receipt)}" for receipt in found.receipts[-1:])
    if not found.receipts:
        yield "  no receipt: an earlier version wrote this folder, so machine and command are not known"
    if found.mismatches:
        yield "does not match:"
        yield from (f"  {_mismatch_text(each)}" for each in found.mismatches)
    if found.unchecked:
        yield "not checkable:"
        yield from (f"  {_unchecked_text(each)}" for each in found.unchecked)


def _headline(found: Verification) -> str:
    if found.mismatches:
        things = count(len(found.mismatches), "thing")
        return f"{things} {'does' if len(found.mismatches) == 1 else 'do'} not match"
    return "everything that can be checked holds" if found.unchecked else "everything holds"


def _compared(found: Verification) -> str:
    verdict = {True: "verdict as derived again", False: "verdict not as derived again", None: "no verdict compared"}
    return (
        f"{count(found.runs, 'run')}, {count(found.numbers, 'number')} read again and as stated, "
        f"{count(found.outcomes, 'outcome')} judged again, {verdict[found.verdict]}"
    )


def _receipt_text(receipt: Mapping[str, Any]) -> str:
    gpus = receipt.get("gpus") or []
    machine = [str(receipt.get("host", "")), f"{receipt.get('cpu', 'CPU not known')}, {receipt.get('cores', '?')} cores"]
    machine += [f"{len(gpus)} x {gpus[0]} (driver {receipt.get('driver', '?')})"] if gpus else ["no GPU"]
    software = f"Linux {receipt.get('kernel', '?')}, ridgeline {receipt.get('ridgeline', '?')}, seed {receipt.get('seed')}"
    return f"{'; '.join(machine)}; {software}\n  {receipt.get('command', '')}"


def _mismatch_text(found: Mismatch) -> str:
    return f"{_where(found.file, found.run)}: {found.what}: stated {_value(found.stated)}, found {_value(found.found)}"


def _unchecked_text(found: Unchecked) -> str:
    return f"{_where(found.file, found.run)}: {found.why}"


def _where(file: str, run: int | None) -> str:
    return file if run is None else f"run {run}, {file}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
