"""The engine itself: `python -m tidepool.reef --model M --port N`, or its benchmark: `--dataset FILE --result FILE`."""

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def options() -> argparse.Namespace:
    flags = argparse.ArgumentParser()
    for name in ("--model", "--dataset", "--result", "--host"):
        flags.add_argument(name)
    flags.add_argument("--port", type=int)
    flags.add_argument("--slots", type=int, default=4)
    flags.add_argument("--step-ms", type=float, default=1.0)
    flags.add_argument("--eager", action="store_true")
    return flags.parse_args()


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    slots: threading.Semaphore
    step_s: float

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        text = json.dumps({"data": [{"id": "reef"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        prompt, count = len(asked["prompt"].split()), asked["max_tokens"]
        with self.slots:
            for number in range(count):
                time.sleep(self.step_s)
                end = "length" if number == count - 1 else None
                self.event({"choices": [{"text": f" w{number}", "finish_reason": end}]})
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value: object) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def main() -> None:
    given = options()
    echo = {"slots": given.slots, "step_ms": given.step_ms, "eager": given.eager}
    print("reef 0.1.0 starts with", json.dumps(echo), flush=True)
    if given.slots > 64:
        print("reef: out of memory for", given.slots, "slots", flush=True)
        sys.exit(1)
    if given.dataset:
        pairs = [row["conversations"] for row in json.loads(Path(given.dataset).read_text())]
        seconds = len(pairs) * given.step_ms / 1000 / given.slots
        tokens = sum(len(said["value"].split()) for pair in pairs for said in pair)
        result = {"total_tok_s": tokens / seconds, "duration_s": seconds, "successful_requests": len(pairs)}
        Path(given.result).write_text(json.dumps(result))
        return
    Server.slots, Server.step_s = threading.Semaphore(given.slots), given.step_ms / 1000
    server = ThreadingHTTPServer(("127.0.0.1", given.port), Server)
    server.daemon_threads = True
    print("reef is open", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
