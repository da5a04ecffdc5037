"""Questions with known answers: read from a file, asked of a server at temperature 0, and scored.

One JSON object a line. `prompt` (text, completed as it is) or `messages` (a chat) is what is asked; how the answer is
scored follows from the other keys:
    {"prompt": "2+2=", "answer": "4"}                                 the same text, whatever its spaces and capitals
    {"prompt": "...", "choices": ["A", "B", "C"], "answer": "B"}      the first of the choices that the answer names
    {"messages": [...], "match": "####\\s*42\\b"}                      a regular expression found in the answer
    {"prompt": "...", "anything": ...}                                a scorer of the user's own gets the whole line
"""

from __future__ import annotations

import http.client
import json
import math
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ReadError, SiteError
from ridgeline.files import read_text
from ridgeline.records import matching

_ANSWER_S = 600.0  # for one answer
_SCORER_S = 600.0  # for one run of a user's scorer
_TRIES, _AGAIN_S = 3, 0.5  # a connection may be reset; one that is refused three times tells of the server
_TEXT_CHARS = 8000  # of a text whose perplexity is asked for, in one request: about 2,000 tokens
_TEXT_PARTS = 200  # requests at most


@dataclass(frozen=True, slots=True)
class Question:
    """`asked` is what goes into the request; `line` is the whole object, as a user's scorer gets it."""

    asked: Mapping[str, Any]
    line: Mapping[str, Any]
    answer: str = ""
    choices: tuple[str, ...] = ()
    match: re.Pattern[str] | None = None

    def is_right(self, text: str) -> bool:
        if self.match is not None:
            return bool(matching.values(self.match, text, most=1))
        if self.choices:
            named = "|".join(re.escape(choice) for choice in sorted(self.choices, key=len, reverse=True))
            found = re.search(rf"(?<!\w)(?:{named})(?!\w)", text)
            return found is not None and found[0] == self.answer
        return _plain(text) == _plain(self.answer)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def read_questions(path: Path, *, scored: bool = False) -> list[Question]:
    """`scored`: a scorer of the user's own decides, so that no question needs an answer. InputError names the line."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                found.append(_question(json.loads(line), scored))
            except (ValueError, InputError) as error:
                raise InputError(f"{path.name}, line {number}: {error}") from None
    if not found:
        raise InputError(f'{path.name} holds no question; write one a line: {{"prompt": "2+2=", "answer": "4"}}')
    return found


def _question(line: object, scored: bool) -> Question:
    if not isinstance(line, dict):
        raise InputError('a question is a JSON object, such as {"prompt": "2+2=", "answer": "4"}')
    if ("prompt" in line) == ("messages" in line):
        raise InputError("give either `prompt` (text to complete) or `messages` (a chat)")
    name = "prompt" if "prompt" in line else "messages"
    if not isinstance(line[name], str if name == "prompt" else list) or not line[name]:
        raise InputError(f"`{name}` must be {'text' if name == 'prompt' else 'a list of messages'}, and not empty")
    choices, pattern = line.get("choices", []), line.get("match")
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise InputError("`choices` must be a list of texts, such as [A, B, C, D]")
    answer = str(line.get("answer", ""))
    if choices and answer not in choices:
        raise InputError(f"the answer {answer!r} is not among the choices {', '.join(choices)}")
    try:
        match = re.compile(str(pattern)) if pattern else None
    except re.error as error:
        raise InputError(f"`match` is no regular expression: {error}") from None
    question = Question({name: line[name]}, line, answer, tuple(choices), match)
    if not (scored or question.answer or question.match):
        raise InputError("it has no answer: add `answer`, or `match` (a regular expression), or name a `scorer`")
    return question


def served_model(url: str) -> str:
    """The first model that the server names."""
    try:
        return str(_post(f"{url}/v1/models", None)["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise SiteError(f"{url}/v1/models names no model") from None


def ask(url: str, model: str, questions: Sequence[Question], max_tokens: int, at_once: int) -> list[str]:
    """The answers, in order, as the server gives them at temperature 0. SiteError where it gives none."""

    def answer(question: Question) -> str:
        chat = "messages" in question.asked
        path = "chat/completions" if chat else "completions"
        body = {"model": model, **question.asked, "max_tokens": max_tokens, "temperature": 0}
        choice = _post(f"{url}/v1/{path}", body)["choices"][0]
        return str((choice["message"].get("content") or "") if chat else choice["text"])

    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(answer, questions))


def score(questions: Sequence[Question], answers: Sequence[str], scorer: Sequence[str] = ()) -> list[bool]:
    """Which answers are right. A `scorer` reads {"question": ..., "answer": ...} lines and prints 1 or 0 for each."""
    if not scorer:
        return [question.is_right(text) for question, text in zip(questions, answers, strict=True)]
    lines = [json.dumps({"question": q.line, "answer": text}) for q, text in zip(questions, answers, strict=True)]
    try:
        done = subprocess.run(
            scorer,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SCORER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"the scorer {scorer[-1]} did not run: {error}") from None
    said = done.stdout.split()
    if done.returncode or len(said) != len(lines) or not {*said} <= {"0", "1"}:
        last = (done.stderr.strip().splitlines() or ["it said nothing more"])[-1]
        raise SiteError(
            f"the scorer {scorer[-1]} must print 1 or 0 for each line it reads; of {len(lines)} lines it printed "
            f"{len(said)} answers and left with {done.returncode}: {last}"
        )
    return [word == "1" for word in said]


def perplexity(url: str, model: str, text: str, at_once: int) -> float:
    """Of a text under the server's own log probabilities; SiteError where it gives none."""
    served = _post(f"{url}/v1/models", None).get("data") or [{}]
    context = served[0].get("max_model_len") or _TEXT_CHARS
    chars = max(1, min(_TEXT_CHARS, int(context) // 2))  # a token is hardly ever half a character
    parts = [text[n : n + chars] for n in range(0, len(text), chars)][:_TEXT_PARTS]
    asked = "log probabilities of a prompt"
    instead = "take `perplexity` out of the workload, and measure accuracy by `questions` instead"

    def logs(part: str) -> list[float]:
        body = {"model": model, "prompt": part, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        try:
            answer = _post(f"{url}/v1/completions", body)
        except _RefusedError as refused:
            raise SiteError(f"perplexity: {url} refuses {asked} ({refused.said}); {instead}") from None
        given = (answer["choices"][0].get("logprobs") or {}).get("token_logprobs")
        if not isinstance(given, list) or len(given) < 3:
            raise SiteError(f"perplexity: {url} gives no {asked}; {instead}")
        return [float(value) for value in given[:-1] if value is not None]  # the last token is its own

    with ThreadPoolExecutor(at_once) as threads:
        found = [value for part in threads.map(logs, parts) for value in part]
    return math.exp(-math.fsum(found) / len(found))


class _RefusedError(SiteError):
    """An answer other than 200. `said` is its code and what the server wrote."""

    def __init__(self, url: str, code: int, body: str) -> None:
        try:  # {"error": {"message": ...}} of vLLM and OpenAI, {"message": ...} of SGLang
            said = json.loads(body)
            text = str((said.get("error") or said)["message"])
        except (ValueError, KeyError, TypeError, AttributeError):
            text = body
        super().__init__(f"{url} refuses a question with {code}: {text.strip()[:500]}")
        self.said = f"{code}: {text.strip()[:500]}"


def _post(url: str, body: object) -> dict[str, Any]:
    """What the server answers; with no body it is only read."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310  the session's own
    for tries_left in reversed(range(_TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
                found = json.load(answer)
            break
        except urllib.error.HTTPError as error:
            raise _RefusedError(url, error.code, error.read(2000).decode(errors="replace")) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not tries_left:
                raise SiteError(f"{url} does not answer a question: {error}") from None
            time.sleep(_AGAIN_S)
    if not isinstance(found, dict):
        raise ReadError(f"{url} answers a question with something that is no object")
    return found
