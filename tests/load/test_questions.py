"""Questions with known answers: a wrong line is named; scored by their keys or by a program of the user's."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ridgeline.errors import InputError, SiteError
from ridgeline.serving.load.questions import Question, ask, perplexity, read_questions, score


def questions(folder: Path, *lines: str):
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    return read_questions(folder / "questions.jsonl")


def test_answers_are_scored_by_the_keys_of_each_question(tmp_path: Path) -> None:
    found = questions(
        tmp_path,
        '{"prompt": "2+2=", "answer": "4"}',
        '{"prompt": "Paris is in", "answer": "FRANCE, I think"}',
        '{"prompt": "A, B or C?", "choices": ["A", "B", "C"], "answer": "B"}',
        '{"prompt": "A, B or C?", "choices": ["A", "B", "C"], "answer": "B"}',
        '{"messages": [{"role": "user", "content": "6 x 7?"}], "match": "####\\\\s*42\\\\b"}',
    )
    said = [" 4\n", "France,  i think", "The answer is (B), not A.", "A. Bananas", "so #### 42."]
    assert score(found, said) == [True, True, True, False, True]
    assert score(found, ["5", "Spain", "none of them", "CAB", "#### 420"]) == [False] * 5


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: "),
        ("[]", "line 2: a question is a JSON object"),
        ('{"answer": "4"}', "line 2: give either `prompt` (text to complete) or `messages`"),
        ('{"prompt": "", "answer": "4"}', "line 2: `prompt` must be text, and not empty"),
        ('{"prompt": "x"}', "line 2: it has no answer: add `answer`"),
        ('{"prompt": "x", "choices": ["A"], "answer": "B"}', "line 2: the answer 'B' is not among the choices A"),
        ('{"prompt": "x", "match": "("}', "line 2: `match` is no regular expression"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        questions(tmp_path, '{"prompt": "x", "answer": "y"}', line)
    assert str(caught.value).startswith("questions.jsonl, ") and complaint in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no question; write one a line"):
        questions(tmp_path, "", "  ")


SCORER = """
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(int(abs(float(row["answer"]) - row["question"]["near"]) < 0.1))
"""


def test_a_scorer_of_the_users_own_decides(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"prompt": "pi?", "near": 3.14}\n{"prompt": "e?", "near": 2.72}\n')
    found = read_questions(tmp_path / "questions.jsonl", scored=True)
    (tmp_path / "score.py").write_text(SCORER)
    scorer = [sys.executable, str(tmp_path / "score.py")]
    assert score(found, ["3.1415", "3"], scorer) == [True, False]
    with pytest.raises(SiteError, match=r"must print 1 or 0 for each line.* could not convert string to float"):
        score(found, ["none", "3"], scorer)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = questions(tmp_path, '{"prompt": "x", "answer": "y"}')
    with pytest.raises(SiteError, match="does not answer a question"):
        ask("http://127.0.0.1:9", "m", found, 8, 1)


def test_a_server_that_gives_no_log_probabilities_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"data": [{}], "choices": [{"logprobs": None}]}
    monkeypatch.setattr("ridgeline.serving.load.questions._post", lambda url, body: said)
    with pytest.raises(
        SiteError, match="gives no log probabilities of a prompt; take `perplexity` out of the workload"
    ):
        perplexity("http://server", "m", "some text", 1)


# What servers wrote, word for word: vLLM's build for Gaudi (vllm-project/vllm-gaudi, pull request 1098), its build for
# Metal (vllm-project/vllm-metal, issue 680), and a proxy that does not know the path.
REFUSALS = [
    (
        400,
        "{\"error\":{\"message\":\"Gaudi doesn't support logprobs. Please remove 'logprobs'/'top_logprobs' from your "
        'request to receive a response.","type":"BadRequestError","param":null,"code":400}}',
        "400: Gaudi doesn't support logprobs",
    ),
    (500, '{"error":{"message":"2326","type":"InternalServerError","code":500}}', "500: 2326"),
    (404, "404 page not found", "404: 404 page not found"),
]


@pytest.mark.parametrize(("code", "body", "said"), REFUSALS)
def test_a_server_that_refuses_log_probabilities_is_quoted_with_what_to_do(code: int, body: str, said: str) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, '{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(code, body) if "logprobs" in asked else self._answer(200, '{"choices": [{"text": "4"}]}')

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with pytest.raises(SiteError) as caught:
            perplexity(url, "m", "some text", 1)
        assert str(caught.value).startswith(f"perplexity: {url} refuses log probabilities of a prompt ({said}")
        assert str(caught.value).endswith(
            "take `perplexity` out of the workload, and measure accuracy by `questions` instead"
        )
        assert ask(url, "m", [Question({"prompt": "2+2="}, {})], 8, 1) == ["4"], "which it does answer"
    finally:
        server.shutdown()
        server.server_close()
