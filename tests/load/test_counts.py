"""Against a server whose truth is known: what is no answer is a failure of its kind, and tokens are those that came."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from ridgeline.load.bench import BenchResult, bench
from ridgeline.load.session import BenchOptions, plan_from
from ridgeline.traffic.requests import read_records
from tests.command_line import ridgeline
from tests.load.scripted import Line, Request, Scripted, event

ASKED = 20
APIS = pytest.mark.parametrize("api", ["chat", "completions"])


def piece(api: str, text: str | None, finish: str | None = None) -> bytes:
    said: dict[str, object] = (
        {"delta": {} if text is None else {"content": text}} if api == "chat" else {"text": text or ""}
    )
    return event({"id": "x", "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": finish}]})


def count(tokens: int | None, prompt: int = 50) -> bytes:
    if tokens is None:
        return b""
    return event({"id": "x", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})


DONE = event(b"[DONE]")


def words(api: str, texts: Sequence[str], finish: str | None) -> list[bytes]:
    """Each text an event of its own, and after the last the reason why it ends."""
    return [piece(api, text) for text in texts] + ([piece(api, None, finish)] if finish else [])


def streamed(*events: bytes, whole: bool = False) -> Callable[[Line, Request], None]:
    def behave(line: Line, request: Request) -> None:
        line.stream_head()
        for one in [b"".join(events)] if whole else [e for e in events if e]:
            line.chunk(one)
        line.end()

    return behave


def run(behave: Callable[[Line, Request], object], api: str = "chat", **wishes: object) -> BenchResult:
    with Scripted(behave) as server:
        wish = {"concurrency": 1, "requests": 2, "max_tokens": ASKED, "timeout_s": 5, "traffic": f"fixed:50:{ASKED}"}
        return bench(plan_from(BenchOptions(url=server.url, api=api, **{**wish, **wishes})))


def kinds(result: BenchResult) -> dict[str, int]:
    assert result.summary.ok + sum(result.summary.errors.values()) == result.summary.requests == 2
    return dict(result.summary.errors)


FULL = [f" w{k:02}" for k in range(ASKED)]  # four bytes each
FIVE, MORE = FULL[:5], [*FULL, " more"]


@APIS
@pytest.mark.parametrize("whole", [False, True], ids=["chunk by chunk", "in one chunk"])
def test_a_true_answer_counts_what_it_holds(api: str, whole: bool):
    result = run(streamed(*words(api, FULL, "length"), count(ASKED), DONE, whole=whole), api)
    assert kinds(result) == {}
    assert [r.output_tokens for r in result.records] == [ASKED] * 2
    assert [r.input_tokens for r in result.records] == [50] * 2
    assert result.summary.output_tok_s == pytest.approx(result.summary.requests_s * ASKED)


CASES = {
    "an empty 200 whose usage is 0": (lambda api: [*words(api, [], "stop"), count(0), DONE], "empty"),
    "an empty 200 without usage": (lambda api: [*words(api, [], "stop"), DONE], "empty"),
    "an empty 200 whose usage is full": (lambda api: [*words(api, [], "length"), count(ASKED), DONE], "wrong-usage"),
    "[DONE] without a finish reason": (lambda api: [*words(api, FIVE, None), count(5), DONE], "cut"),
    "[DONE] without a finish reason or usage": (lambda api: [*words(api, FIVE, None), DONE], "cut"),
    "the end of the body without [DONE]": (lambda api: words(api, FIVE, None), "cut"),
    "usage ten times too high": (lambda api: [*words(api, FULL, "length"), count(10 * ASKED), DONE], "wrong-usage"),
    "usage one too high": (lambda api: [*words(api, FULL, "length"), count(ASKED + 1), DONE], "wrong-usage"),
    "all as the usage of less": (lambda api: [*words(api, ["a"] * 5, "length"), count(ASKED), DONE], "wrong-usage"),
    "usage too low": (lambda api: [*words(api, FULL, "length"), count(2), DONE], "wrong-usage"),
    "usage one too low": (lambda api: [*words(api, FULL, "length"), count(ASKED - 1), DONE], "wrong-usage"),
    "usage 0 of a full answer": (lambda api: [*words(api, FULL, "length"), count(0), DONE], "wrong-usage"),
    "length before the asked length": (lambda api: [*words(api, FIVE, "length"), count(5), DONE], "short"),
    "length before it, without usage": (lambda api: [*words(api, FIVE, "length"), DONE], "short"),
    "more than was asked for": (lambda api: [*words(api, MORE, "length"), count(ASKED + 1), DONE], "too-long"),
    "more than was asked for, without usage": (lambda api: [*words(api, MORE, "stop"), DONE], "too-long"),
    "an answer that the server gave up": (lambda api: [*words(api, FIVE, "abort"), count(5), DONE], "aborted"),
    "text after [DONE]": (lambda api: [*words(api, FULL, "length"), DONE, piece(api, " late")], "malformed"),
    "usage after [DONE]": (lambda api: [*words(api, FULL, "length"), DONE, count(ASKED)], "malformed"),
    "an error in the stream": (
        lambda api: [*words(api, FIVE, None), event({"error": {"message": "out of memory", "code": 500}}), DONE],
        "error-event",
    ),
    "an error object in the stream": (
        lambda api: [*words(api, FIVE, None), event({"object": "error", "message": "out of memory"}), DONE],
        "error-event",
    ),
    "a page of a proxy": (lambda api: [b"<html>\n<body>busy</body>\n</html>"], "malformed"),
    "a page of one line": (lambda api: [b"<html><body>busy</body></html>"], "malformed"),
    "nothing at all": (lambda api: [DONE], "empty"),
}  # fmt: skip


@APIS
@pytest.mark.parametrize("whole", [False, True], ids=["chunk by chunk", "in one chunk"])
@pytest.mark.parametrize(("events", "kind"), CASES.values(), ids=CASES)
def test_what_is_no_answer_is_a_failure_of_its_kind(
    events: Callable[[str], list[bytes]], kind: str, api: str, whole: bool
):
    result = run(streamed(*events(api), whole=whole), api)
    assert kinds(result) == {kind: 2}
    assert (result.summary.requests_s, result.summary.output_tok_s, result.summary.input_tok_s) == (0, 0, 0)
    assert all(r.output_tokens <= ASKED + 1 for r in result.records), "a count that is not believed is kept nowhere"
    assert any(note.startswith(f"{kind} x 2: ") for note in result.notes), result.notes


@APIS
@pytest.mark.parametrize(("reason", "kind"), [("stop", "short"), ("length", "short")])
@pytest.mark.parametrize("usage", [5, None])
def test_an_early_end_although_the_end_of_text_was_to_be_ignored(api: str, reason: str, kind: str, usage: int | None):
    answer = streamed(*words(api, FIVE, reason), count(usage), DONE)
    assert kinds(run(answer, api, ignore_eos=True)) == {kind: 2}


@APIS
@pytest.mark.parametrize("usage", [5, 6, None])
def test_a_text_may_come_to_its_end(api: str, usage: int | None):
    """Also where the token that ends it is counted and has no text."""
    result = run(streamed(*words(api, FIVE, "stop"), count(usage), DONE), api)
    assert kinds(result) == {} and {r.output_tokens for r in result.records} == {usage or 5}
    assert kinds(run(streamed(*words(api, FIVE, "stop"), count(usage), DONE), api, ignore_eos=True)) == {"short": 2}
    stop = run(streamed(*words(api, FIVE, "stop"), count(usage), DONE), api, ignore_eos=True, body='{"stop": ["."]}')
    assert kinds(stop) == {}, "who names a stop text asks for an early end"


@APIS
@pytest.mark.parametrize("each", [2, 5, ASKED])
def test_several_tokens_an_event_are_the_servers_own_count(api: str, each: int):
    """Drafts that were accepted, a stream interval, or a server that fell behind."""
    texts = ["".join(FULL[k : k + each]) for k in range(0, ASKED, each)]
    result = run(streamed(*words(api, texts, "length"), count(ASKED), DONE), api, ignore_eos=True)
    assert kinds(result) == {}
    assert [(r.output_tokens, r.counted_tokens) for r in result.records] == [(ASKED, ASKED // each)] * 2
    assert any(f"{each:.2f} tokens came per event by the server's usage" in note for note in result.notes)


@APIS
def test_tokens_without_text_are_counted_where_the_server_shows_them(api: str):
    """Half a character, or a special token: an event with an empty text, or at the end of an answer none at all."""
    shown = run(streamed(*words(api, ["a", *[""] * 18, "b"], "length"), count(ASKED), DONE), api, ignore_eos=True)
    assert kinds(shown) == {} and shown.records[0].output_tokens == ASKED
    held_back = run(streamed(*words(api, FULL[:17], "length"), count(ASKED), DONE), api, ignore_eos=True)
    assert kinds(held_back) == {}
    one = run(streamed(*words(api, [], "length"), count(1), DONE), api, max_tokens=1, traffic="fixed:50:1")
    assert kinds(one) == {} and one.records[0].output_tokens == 1


@APIS
def test_several_answers_to_a_prompt_have_so_many_times_its_tokens(api: str):
    answer = streamed(*words(api, [*FULL, *FULL], "length"), count(2 * ASKED), DONE)
    assert kinds(run(answer, api, body='{"n": 2}')) == {}
    assert kinds(run(answer, api)) == {"too-long": 2}


@APIS
def test_without_usage_what_arrived_is_counted_and_the_answer_says_so(api: str):
    result = run(streamed(*words(api, FULL, "length"), DONE), api)
    assert kinds(result) == {} and {r.output_tokens for r in result.records} == {ASKED}
    assert any("2 answers came without usage" in note for note in result.notes)
    counted = run(streamed(*words(api, FULL, "length"), count(ASKED), DONE), api)
    assert not any("without usage" in note for note in counted.notes)


@pytest.mark.parametrize(("said", "kept"), [(500, 50), (0, 50), (5, 50), (24, 50), (25, 25), (50, 50), (90, 90)])
def test_a_prompt_is_counted_by_usage_where_its_words_can_be_so_many(said: int, kept: int):
    result = run(streamed(*words("chat", FULL, "length"), count(ASKED, said), DONE))
    assert kinds(result) == {} and {r.input_tokens for r in result.records} == {kept}
    assert any(f"usage says {said} tokens a prompt in 2 answers" in n for n in result.notes) is (said != kept)


def test_the_end_of_reasoning_may_part_a_token():
    def part(**said: str) -> bytes:
        return event({"choices": [{"index": 0, "delta": said, "finish_reason": None}]})

    thoughts = [part(reasoning_content=text) for text in FULL[:10]]
    rest = [part(content=text) for text in FULL[9:]]
    result = run(streamed(*thoughts, *rest, piece("chat", None, "length"), count(ASKED), DONE))
    assert kinds(result) == {} and {r.output_tokens for r in result.records} == {ASKED}


# one document instead of a stream


def document(api: str, text: str, usage: int | None, finish: str | None = "stop", **more: object) -> object:
    said = {"message": {"role": "assistant", "content": text}} if api == "chat" else {"text": text}
    counted = {} if usage is None else {"usage": {"prompt_tokens": 50, "completion_tokens": usage}}
    return {"choices": [{"index": 0, **said, "finish_reason": finish}], **counted, **more}


@APIS
@pytest.mark.parametrize(
    ("text", "usage", "finish", "kind"),
    [
        ("".join(FULL), ASKED, "length", ""),
        ("".join(FIVE), 5, "stop", ""),
        ("".join(FIVE), 5, None, ""),
        ("", 1, "stop", ""),
        ("", 0, "stop", "empty"),
        ("", None, "stop", "empty"),
        ("", ASKED, "length", "wrong-usage"),
        ("".join(FULL), 10 * ASKED, "length", "wrong-usage"),
        ("".join(FULL), 0, "length", "wrong-usage"),
        ("".join(FULL), None, "length", "no-usage"),
        ("".join(FIVE), 5, "length", "short"),
        ("".join(FIVE), 5, "abort", "aborted"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["asked for", "instead of a stream"])
def test_an_answer_in_one_piece(api: str, text: str, usage: int | None, finish: str | None, kind: str, stream: bool):
    result = run(lambda line, request: line.document(document(api, text, usage, finish)), api, stream=stream)
    assert kinds(result) == ({kind: 2} if kind else {})
    if not kind:
        assert {r.output_tokens for r in result.records} == {usage}


@APIS
def test_an_answer_in_one_piece_of_full_length(api: str):
    short = document(api, "".join(FIVE), 5, "stop")
    assert kinds(run(lambda line, _: line.document(short), api, stream=False, ignore_eos=True)) == {"short": 2}


@pytest.mark.parametrize("body", [{"error": {"message": "busy"}}, {"object": "error", "message": "busy"}])
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_one_piece_is_an_error(body: object, stream: bool):
    result = run(lambda line, request: line.document(body), stream=stream)
    assert kinds(result) == {"error-event": 2} and any("busy" in note for note in result.notes)


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_in_one_piece_is_malformed(stream: bool):
    def page(line: Line, request: Request) -> None:
        body = b"<html>\n<body>\nid: busy\n</body>\n</html>\n"
        line.head(Content_Type="text/html", Content_Length=str(len(body)))
        line.write(body)

    assert kinds(run(page, stream=stream)) == {"malformed": 2}


def test_a_document_that_is_no_answer_is_empty():
    assert kinds(run(lambda line, request: line.document({"status": "ok"}), stream=False)) == {"empty": 2}


def test_generate_is_held_to_the_same(tmp_path):
    def behave(reason: str | None, counts: Sequence[int]) -> Callable[[Line, Request], None]:
        def answer(line: Line, request: Request) -> None:
            line.stream_head()
            for place, made in enumerate(counts):
                last = {"type": reason, "length": made} if reason and place == len(counts) - 1 else None
                meta = {"prompt_tokens": 50, "completion_tokens": made, "finish_reason": last}
                line.chunk(event({"text": "".join(FULL[:made]), "meta_info": meta}))
            line.chunk(DONE)
            line.end()

        return answer

    assert kinds(run(behave("length", [1, 2, ASKED]), "generate")) == {}
    assert kinds(run(behave("stop", [1, 2, 5]), "generate")) == {}
    assert kinds(run(behave("length", [1, 2, 5]), "generate")) == {"short": 2}
    assert kinds(run(behave(None, [1, 2, 5]), "generate")) == {"cut": 2}
    assert kinds(run(behave("abort", [1, 2, 5]), "generate")) == {"aborted": 2}
    assert kinds(run(behave("length", [1, 2, 10 * ASKED]), "generate")) == {"wrong-usage": 2}


def test_the_command_counts_and_keeps_them(tmp_path):
    """A server that answers well, too much of itself, and nothing, in turn."""
    turns = (
        [*words("chat", FULL, "length"), count(ASKED), DONE],
        [*words("chat", FULL, "length"), count(10 * ASKED), DONE],
        [*words("chat", [], "stop"), count(0), DONE],
    )

    def behave(line: Line, request: Request) -> None:
        streamed(*turns[len(server.posts) % 3 - 1])(line, request)

    with Scripted(behave) as server:
        done = ridgeline(
            "bench", server.url, "--concurrency", "1", "--requests", "9", "--traffic", f"fixed:50:{ASKED}",
            "--out", str(tmp_path / "kept"), "--json",
        )  # fmt: skip
    said = json.loads(done.stdout)
    assert (said["successful_requests"], said["failed_requests"]) == (3, 6)
    assert said["errors"] == {"empty": 3, "wrong-usage": 3}
    assert said["output_tok_s"] == pytest.approx(said["requests_s"] * ASKED, rel=1e-3)
    kept = list(read_records(tmp_path / "kept" / "requests.jsonl"))
    assert sorted((r.status, r.output_tokens, r.output_by_usage) for r in kept) == [
        *[("empty", 0, 0)] * 3, *[("ok", ASKED, ASKED)] * 3, *[("wrong-usage", ASKED, 10 * ASKED)] * 3,
    ]  # fmt: skip
