"""What a request body asks of an engine: tokens in, tokens out, and which beginnings it shares with others.

There is no tokenizer here. Text is cut where current vocabularies cut English: a word of up to seven letters is a
token, a longer one is several, and so is each sign. The prompts of `ridgeline bench` come out to the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError

_PIECE = re.compile(r"\w{1,7}|[^\w\s]")
_DEFAULT_OUTPUT_TOKENS = 128  # what SGLang's own interface makes where nobody says
BLOCK_TOKENS = 64  # by which prompts are compared
MADE_TEXT = " tide"  # one token in current vocabularies, so that whoever counts text counts tokens


class UnservedFieldError(InputError):
    """A field whose meaning would be ignored: an answer without it looks as if it had been obeyed."""

    def __init__(self, param: str, what: str) -> None:
        super().__init__(f"{param}: the twin makes {what}; leave it out, or ask a real server")
        self.param = param


# what asks for more than tokens, in any of the interfaces
_UNSERVED = {
    "no probabilities": ("logprobs", "top_logprobs", "prompt_logprobs", "return_logprob"),
    "no calls of tools": ("tools", "functions"),
    "no JSON": ("response_format", "json_schema", "guided_json", "structured_outputs"),
    "nothing by a grammar": ("regex", "ebnf", "guided_regex", "guided_choice", "guided_grammar"),
    "one answer to a prompt": ("n", "best_of"),
    "every token that is asked for": ("stop", "stop_token_ids", "stop_regex"),
}


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    """`logprobs: 0` asks for the chosen token's; `type: text` and `n: 1` for nothing."""
    for what, name in ((what, name) for what, names in _UNSERVED.items() for name in names):
        asked = fields.get(name)
        text = isinstance(asked, dict) and asked.get("type") == "text"
        one = name in ("n", "best_of") and asked == 1
        if asked is not None and asked is not False and asked != [] and not text and not one:
            raise UnservedFieldError(name, what)


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """`interface` is completions, chat or generate; `room` and `bootstrap` are set behind a router of split roles."""

    interface: str
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    stream: bool
    usage: bool
    room: int | None = None
    bootstrap: tuple[str, int] | None = None
    kv_transfer: Mapping[str, Any] | None = None
    model: str | None = None


def read_body(path: str, body: bytes) -> ParsedPrompt:
    """Raises InputError with what is wrong, for an answer 400."""
    try:
        fields = json.loads(body)
    except ValueError as bad:
        raise InputError(f"the body is not JSON: {bad}") from None
    if not isinstance(fields, dict):
        raise InputError("the body is not a JSON object")
    interface = {"/v1/chat/completions": "chat", "/generate": "generate"}.get(path, "completions")
    tokens = _prompt(interface, fields)
    sampling = fields.get("sampling_params") if interface == "generate" else fields
    sampling = sampling if isinstance(sampling, dict) else {}
    _refuse_unserved({**fields, **sampling})
    named = fields.get("model")
    options = fields.get("stream_options")
    return ParsedPrompt(
        interface,
        max(1, len(tokens)),
        _output_tokens(sampling),
        _blocks(tokens),
        stream=bool(fields.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
        room=_whole(fields.get("bootstrap_room")),
        bootstrap=_bootstrap(fields),
        kv_transfer=fields["kv_transfer_params"] if isinstance(fields.get("kv_transfer_params"), dict) else None,
        model=str(named) if named and interface != "generate" else None,
    )


def _prompt(interface: str, fields: Mapping[str, Any]) -> Sequence[object]:
    if interface == "chat":
        return _PIECE.findall(" ".join(_chat_texts(fields.get("messages"))))
    key = "text" if interface == "generate" else "prompt"
    prompt = fields.get(key, fields.get("input_ids"))
    if isinstance(prompt, str):
        return _PIECE.findall(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        return _prompt(interface, {key: prompt[0]})
    raise InputError(f"{key} is neither a text nor a list of token ids; several prompts in a body are not served here")


def _chat_texts(messages: object) -> list[str]:
    if not isinstance(messages, list) or not messages:
        raise InputError("messages is not a list with at least one message")
    found: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            found += [str(part.get("text", "")) for part in content if isinstance(part, dict)]
        elif content is not None:
            found.append(str(content))
    return found


def _output_tokens(fields: Mapping[str, Any]) -> int:
    for key in ("max_completion_tokens", "max_tokens", "max_new_tokens"):
        if (value := fields.get(key)) is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{key} is {value!r}; at least one token must be asked for")
            return value
    return _DEFAULT_OUTPUT_TOKENS


def _blocks(tokens: Sequence[object]) -> tuple[int, ...]:
    """Names of the prompt's whole blocks."""
    starts = range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS)
    return tuple(hash(tuple(tokens[start : start + BLOCK_TOKENS])) for start in starts)


def _bootstrap(fields: Mapping[str, Any]) -> tuple[str, int] | None:
    host, port = fields.get("bootstrap_host"), _whole(fields.get("bootstrap_port"))
    return (host, port) if isinstance(host, str) and port is not None else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
