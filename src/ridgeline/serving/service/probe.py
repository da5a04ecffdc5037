"""Asking servers over HTTP: whether they are ready, what they count, and one real request."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import stat
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, SiteError
from ridgeline.files import text_of
from ridgeline.records.secrets import SECRETS_FOLDER
from ridgeline.serving.engines.base import figures_of_page
from ridgeline.serving.service.service import server_of

_TIMEOUT_S = 5.0
_PAGE_TIMEOUT_S = 3.0  # `keep` asks every two seconds
_REQUEST_TIMEOUT_S = 120.0
_WARM_UP_LIMIT_S = 600.0
_SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 20}
_TOKEN_IDS = (100, 1000)  # in every vocabulary


def ask(url: str, body: object = None, *, key: str = "", method: str = "", timeout_s: float = _TIMEOUT_S) -> bytes:
    """The answer's body. Raises OSError: nobody there, too slow, or an HTTP status above 299."""
    if url.startswith("/"):
        raise OSError("it has not said where it listens")
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if data else {}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers, method=method or None)  # noqa: S310  addresses are ours
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
        content: bytes = answer.read()
    return content


def is_healthy(url: str) -> bool:
    try:
        ask(f"{url}/health")
    except OSError:
        return False
    return True


def metrics(url: str) -> dict[str, float]:
    """Every figure of /metrics, summed over its labels; empty where there are none."""
    return figures_of_page(metrics_page(url))


def metrics_page(url: str) -> str:
    """The text of /metrics; empty where there is none."""
    try:
        return ask(f"{url}/metrics", timeout_s=_PAGE_TIMEOUT_S).decode(errors="replace")
    except OSError:
        return ""


CANARY_TOKENS = 8  # of a request that shows how fast a server is, too; one alone may be half a character
# also where the model would end at once, or begins with a word that nobody is shown
_WHATEVER_IT_SAYS = {"temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
NO_CHAT = (400, 404, 405, 422, 501)  # to a plain question: the model has no chat template, or the server no chat
WRONG_KEY = (401, 403)
_BUSY = (429, 503)
_EMPTY = "an answer with an empty text"


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What came of a request for tokens. `why` there were none; empty: they came, after `took_s`.

    `refused`: the server answered that it would not try; `wrong_key` where that is our key's fault. `broken`: it said
    that all was well, or that it failed, and there was no token. `chat`: whether it serves chat; None: not known.
    """

    why: str = ""
    refused: bool = False
    wrong_key: bool = False
    broken: bool = False
    took_s: float = 0.0
    chat: bool | None = None

    @property
    def good(self) -> bool:
        return not self.why


def why_no_token(content: bytes) -> str:
    """What is wrong with the body of an answer that should hold a token; empty: it does."""
    try:
        choice = json.loads(content)["choices"][0]
        message = choice.get("message") or {}
        said = [choice.get("text"), *(message.get(name) for name in ("content", "reasoning_content", "reasoning"))]
    except ValueError:
        return f"an answer that is not JSON: {' '.join(content[:80].decode(errors='replace').split())}"
    except (LookupError, TypeError, AttributeError):
        return "an answer without choices"
    return "" if any(isinstance(text, str) and text for text in said) else _EMPTY


def _asked(url: str, body: object, key: str, limit_s: float) -> TokenAnswer:
    """A path that takes no body says by its status alone whether a token was made."""
    try:
        content = ask(url, body, key=key, timeout_s=limit_s)
        why = why_no_token(content) if body is not None else ""
    except urllib.error.HTTPError as error:
        why = f"{error.code}: {' '.join(error.read().decode(errors='replace').split())[:200]}"
        refused, broken = error.code < 500, error.code >= 500 and error.code not in _BUSY
        return TokenAnswer(why, refused, error.code in WRONG_KEY, broken)
    except (OSError, http.client.HTTPException) as error:
        late = isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)
        return TokenAnswer(f"no token within {limit_s:g} s" if late else str(error) or type(error).__name__)
    return TokenAnswer(why, broken=bool(why))


def split_path(engine: str, role: str) -> str:
    """Where a server of split roles is asked for a token, where its engine has a path for that; else empty."""
    return server_of(engine).generate_path if role in ("prefill", "decode") else ""


def ask_for_token(
    url: str, model: str, key: str, limit_s: float, *, path: str = "", tokens: int = 0, chat: bool | None = None
) -> TokenAnswer:
    """A canary: a request for a few tokens, and what came. Chat is asked as well, unless it is known not to be served.

    Servers of split roles are asked by their `path` (`split_path`). `tokens` is the length of a random prompt, which no
    prefix cache has, and whose one token may be any; 0: a word.
    """
    began_s = time.monotonic()
    if path:
        return replace(_asked(f"{url}{path}", None, key, limit_s), took_s=time.monotonic() - began_s)
    if tokens:
        prompt = [random.randrange(*_TOKEN_IDS) for _ in range(tokens)]
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        found = _asked(f"{url}/v1/completions", body, key, limit_s)
        any_token = TokenAnswer() if found.why == _EMPTY else found
        return replace(any_token, took_s=time.monotonic() - began_s)
    more = {"model": model, "max_tokens": CANARY_TOKENS, **_WHATEVER_IT_SAYS}
    found = _asked(f"{url}/v1/completions", {"prompt": "Hi", **more}, key, limit_s)
    took_s = time.monotonic() - began_s
    if not found.good or chat is False:
        return replace(found, took_s=took_s, chat=chat)
    said = {"messages": [{"role": "user", "content": "Hi"}], **more}
    talked = _asked(f"{url}/v1/chat/completions", said, key, limit_s)
    if chat is None and talked.why[:3] in map(str, NO_CHAT):
        return TokenAnswer(took_s=took_s, chat=False)
    why = f"chat: {talked.why}" if talked.why else ""
    return replace(talked, why=why, took_s=took_s, chat=chat or talked.good or None)


def first_answer(url: str, model: str, key: str) -> None:
    """A real request through the front door. Raises OSError with what was said."""
    body = {"model": model, "prompt": "Say one word.", "max_tokens": 4, **_SAMPLED}
    found = _asked(f"{url}/v1/completions", body, key, _REQUEST_TIMEOUT_S)
    if found.wrong_key:
        raise wrong_key(url, found.why[:3])
    # a sampled answer of a healthy model may be empty: it may end at once
    if found.why and found.why != _EMPTY:
        raise OSError(found.why)


def warm_up(url: str, model: str, key: str) -> None:
    """A sampled request straight to a server, for as long as it takes; whether it is well is judged elsewhere."""
    body = {"model": model, "prompt": "Say one word.", "max_tokens": 4, **_SAMPLED}
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(f"{url}/v1/completions", body, key=key, timeout_s=_WARM_UP_LIMIT_S)


def why_refused(url: str, model: str, key: str, limit_s: float) -> str:
    """Why a request through a router was not served, in its own words; empty where it was, or only too much came."""
    body = {"model": model, "prompt": "Hi", "max_tokens": CANARY_TOKENS, **_WHATEVER_IT_SAYS}
    found = _asked(f"{url}/v1/completions", body, key, limit_s)
    return "" if found.why.startswith("429:") else found.why


def wrong_key(url: str, status: str) -> SiteError:
    """What to say of an answer that it is: waiting does not help."""
    return SiteError(
        f"{url} refuses our API key ({status}): it was started with another one; set the variable that api_key_env "
        "names to that key, or take the service down and up again"
    )


def served_model(url: str, key: str) -> str:
    """What the server calls its model; empty where it does not say."""
    return str(_model_card(url, key).get("id", ""))


def context_tokens(url: str, key: str) -> int:
    """The longest prompt with its answer; 0 where the server does not say."""
    found = _model_card(url, key).get("max_model_len")
    return found if isinstance(found, int) else 0


def _model_card(url: str, key: str) -> dict[str, Any]:
    try:
        card = json.loads(ask(f"{url}/v1/models", key=key))["data"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return {}
    return card if isinstance(card, dict) else {}


def key_of(variable: str) -> str:
    """From the environment, or from the file where its owner keeps it."""
    return os.environ.get(variable) or kept_secret(variable) if variable else ""


def kept_in(name: str) -> str:
    """The file of a secret that is not in the environment, as people write it."""
    return f"~/{SECRETS_FOLDER}/{name}"


def kept_secret(name: str) -> str:
    """From the file that only its owner may read; empty where there is none."""
    path = Path(kept_in(name)).expanduser()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""
    if mode & 0o077:
        raise InputError(f"{path} is open to others (mode {mode:o}); close it with `chmod 600 {path}`")
    return text_of(path).strip()
