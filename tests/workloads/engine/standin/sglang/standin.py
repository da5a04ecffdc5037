"""A stand-in for SGLang: takes its flags, prints its log lines, serves its interface. Nothing is computed.

How it behaves follows from its settings: memory fractions below 0.3 leave no room for the pool, those above 0.95 run
out of memory under load; 64 running requests are fastest; `--attention-backend` names other ways to fail.
"""

import argparse
import gzip
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REQUESTS_SEEN = set()
RECORD, PROFILE = {}, {}


def parser():
    flags = argparse.ArgumentParser()
    flags.add_argument("--model-path", required=True)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, default=30000)
    flags.add_argument("--tp-size", type=int, default=1)
    flags.add_argument("--mem-fraction-static", type=float, default=0.9)
    flags.add_argument("--max-running-requests", type=int)
    flags.add_argument("--cuda-graph-max-bs-decode", type=int)
    flags.add_argument("--chunked-prefill-size", type=int, default=8192)
    flags.add_argument("--attention-backend", default="fa3", choices=BACKENDS)
    flags.add_argument("--load-format", default="auto")
    flags.add_argument("--context-length", type=int)
    flags.add_argument("--nnodes", type=int, default=1)
    flags.add_argument("--node-rank", type=int, default=0)
    flags.add_argument("--dist-init-addr")
    flags.add_argument("--disaggregation-mode", default="null")
    flags.add_argument("--disaggregation-transfer-backend", default="mooncake")
    flags.add_argument("--deepep-config")
    flags.add_argument("--init-expert-location", default="trivial")
    flags.add_argument("--expert-distribution-recorder-mode")
    return flags


BACKENDS = (
    "fa3", "triton", "sigill", "assertion", "wave", "never-ready", "other", "child", "slow-to-stop", "warm-cache",
    "deaf-rank", "dying-rank", "endless-trace", "no-trace", "huge-trace", "empty-report", "no-logprobs",
    "dies-when-asked",
)  # fmt: skip
DYING = []
SCHEDULERS = []  # connections to those of other nodes


def join_nodes(args):
    """As SGLang's nodes do: rank 0 waits for the others, and those serve it until their schedulers die with its own.

    Then, since the benchmark goes on without an engine in them, they end with an error. They do not heed SIGTERM. A
    scheduler that waits inside NCCL does not even see that rank 0 has gone ("deaf-rank").
    """
    if args.nnodes == 1:
        return
    host, port = args.dist_init_addr.rsplit(":", 1)
    if args.node_rank == 0:
        server = socket.create_server((host, int(port)))
        SCHEDULERS.extend(server.accept()[0] for _ in range(args.nnodes - 1))
        return
    network = {n: os.environ.get(n, "") for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "SGLANG_HOST_IP")}
    Path(f"rank{args.node_rank}").write_text(json.dumps({"nodes": args.nnodes, "head": args.dist_init_addr, **network}))
    signal.signal(signal.SIGTERM, lambda *_: log(f"SIGTERM received on node_rank {args.node_rank}; waiting for rank 0"))
    if args.attention_backend == "dying-rank":
        connect(host, int(port))
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.81 GiB. GPU 3 has a total", flush=True)
        sys.exit(1)
    peer = connect(host, int(port))
    while args.attention_backend == "deaf-rank":
        time.sleep(600)
    peer.recv(1)
    log("Scheduler or DataParallelController 4711 terminated with -9")
    raise AttributeError("'NoneType' object has no attribute 'generate_request'")


def connect(host, port):
    for _ in range(600):
        try:
            return socket.create_connection((host, port))
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"rank 0 does not answer at {host}:{port}")


def log(text):
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)


def compile_kernels():
    """As Triton: compiled once for a cache folder."""
    if not (place := os.environ.get("TRITON_CACHE_DIR")):
        return
    kernel = Path(place) / "kernel.so"
    if kernel.exists():
        log(f"kernels from {place}")
        return
    log("compiling kernels")
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_bytes(b"")


def start(args):
    compile_kernels()
    applied = dict(vars(args))
    if args.attention_backend == "other":
        applied["attention_backend"] = "triton"  # an engine that silently takes another one
    echo = ", ".join(f"{name}={value!r}" for name, value in applied.items())
    log(f"server_args=ServerArgs({echo}, disable_radix_cache=False)")
    if args.attention_backend == "assertion":
        raise AssertionError("this back end does not take that page size")
    routing = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_SIMULATE_")}
    log(f"routing of experts: {routing or 'by their weights'}")
    log(f"fused-MoE configs from {os.environ.get('SGLANG_MOE_CONFIG_DIR', 'the package')}")
    log("Load weight begin. avail mem=139.13 GB")
    log("Load weight end. elapsed=0.15 s, type=LlamaForCausalLM, avail mem=124.00 GB, mem usage=15.13 GB.")
    if args.mem_fraction_static < 0.3:
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
    if args.attention_backend == "sigill":
        os.kill(os.getpid(), signal.SIGILL)
    if args.attention_backend == "child":
        log("Received sigquit from a child process. It usually means the child failed.")
        os.kill(os.getpid(), signal.SIGKILL)
    tokens = int(1_000_000 * args.mem_fraction_static)
    log(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: 50.00 GB, V size: 50.00 GB")
    biggest = args.cuda_graph_max_bs_decode or 256
    log(f"Capture target decode CUDA graph begin. backend=full, bs=[1, 2, {biggest}], avail mem=27.50 GB")
    log("Capture target decode CUDA graph end. elapsed=0.10 s, mem usage=1.00 GB, avail mem=26.50 GB.")
    running = min(args.max_running_requests or 4096, 4096)
    log(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={args.chunked_prefill_size}, max_prefill_tokens=16384, "
        f"max_running_requests={running}, context_len=16384, available_gpu_mem=26.50 GB"
    )


def out_of_memory():
    log("Scheduler hit an exception: Traceback (most recent call last):")
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.81 GiB. GPU 0 has a total", flush=True)
    log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    os.kill(os.getpid(), signal.SIGKILL)


def prefill(new, cached=0):
    log(
        f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.01, "
        "#running-req: 1, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 1000.00"
    )


def answer_of(body, args):
    """To "what is 7" it says 7; with the back end `wave` one in twenty answers is wrong."""
    inaccurate = args.attention_backend == "wave"
    if body.get("echo"):
        count = len(body["prompt"].split())
        return {"text": "", "logprobs": {"token_logprobs": [None, *[-1.2 if inaccurate else -1.0] * count]}}
    number = int(body["prompt"].split()[-1])
    return {"text": " nothing" if inaccurate and number % 20 == 0 else f" {number}"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    args = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        if DYING:
            self._whole({}, 503)
        elif self.path == "/v1/models":
            self._whole({"data": [{"id": "standin"}]})
        else:
            self._whole({})

    def do_POST(self):
        if self.path.endswith("_expert_distribution_record"):
            self._record(self.path.removeprefix("/").partition("_")[0])
            return
        if self.path == "/stop_profile":
            self._stop_profile()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/start_profile":
            self._start_profile(body)
            return
        if self.args.mem_fraction_static > 0.95 and len(REQUESTS_SEEN) > 4:
            out_of_memory()
        if self.args.disaggregation_mode == "decode":
            # without these a decode server waits for KV for ever
            assert self.args.disaggregation_transfer_backend == "fake"
            assert body["bootstrap_host"] == "2.2.2.2"
            assert "bootstrap_room" in body
        if body.get("echo") and self.args.attention_backend == "dies-when-asked":
            # as vLLM's server: it answers for its dead engine, and ends some seconds later
            DYING.append(threading.Timer(2.0, out_of_memory))
            DYING[-1].start()
            why = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            self._whole({"error": {"message": why, "type": "InternalServerError", "param": None, "code": 500}}, 500)
            return
        if body.get("echo") and self.args.attention_backend == "no-logprobs":
            # as vLLM's build for Gaudi answers (vllm-project/vllm-gaudi, pull request 1098); and its log tells of a
            # client that hung up, which is nobody's death
            print("ConnectionResetError: [Errno 104] Connection reset by peer", flush=True)
            why = "Gaudi doesn't support logprobs. Please remove 'logprobs'/'top_logprobs' from your request"
            self._whole({"error": {"message": why, "type": "BadRequestError", "param": None, "code": 400}}, 400)
            return
        if not body.get("stream"):
            self._whole({"choices": [answer_of(body, self.args)]})
            return
        words = body["prompt"].split()
        opening = " ".join(words[:8])
        cached = len(words) if opening in REQUESTS_SEEN or self.args.attention_backend == "warm-cache" else 0
        REQUESTS_SEEN.add(opening)
        prefill(len(words) - cached + 1, cached)
        count = body["max_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(count):
            self._event({"choices": [{"text": f" w{number}", "finish_reason": None}]})
            time.sleep(0.005)
        usage = {"prompt_tokens": len(words), "completion_tokens": count, "total_tokens": len(words) + count}
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _start_profile(self, body):
        """As SGLang's: it answers at once, and writes a trace after so many steps, here of 10 ms each."""
        PROFILE.update(body)
        if self.args.attention_backend == "huge-trace":
            threading.Thread(target=huge_trace, daemon=True).start()
        elif self.args.attention_backend not in ("endless-trace", "no-trace"):
            threading.Timer(0.01 * body["num_steps"], write_trace).start()
        self._whole({})

    def _stop_profile(self):
        if self.args.attention_backend == "endless-trace" and PROFILE:
            write_trace()
        self._whole({})

    def _record(self, what):
        """As SGLang's recorder: requests between start and stop, written where its variable says."""
        assert self.args.expert_distribution_recorder_mode == "stat"
        RECORD[what] = len(REQUESTS_SEEN)
        if what == "dump":
            folder = Path(os.environ["SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"])
            text = str(RECORD["stop"] - RECORD["start"])
            (folder / f"expert_distribution_recorder_{time.time()}.pt").write_text(text)
        self._whole({})

    def _whole(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _event(self, value):
        self._chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def write_trace():
    """One step: a decode that waits for its launches, then communicates."""
    if not PROFILE:
        return
    if PROFILE["activities"] == ["CUDA_PROFILER"]:
        # the end of the range, upon which nsys writes its report
        empty = Handler.args.attention_backend == "empty-report"
        Path(os.environ["NSYS_REPORT"]).write_text("" if empty else "kernels")
        PROFILE.clear()
        return
    names = ("ncclDevKernel_AllReduce_Sum_bf16", "nvjet_tst_128x64_h_bz_TNT", "flash_fwd_splitkv_kernel")
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "ts": 1000 * step + 100 * at,
            "dur": 90 - 30 * at,
            "args": {"device": 0},
        }
        for step in range(PROFILE["num_steps"])
        for at, name in enumerate(names)
    ]
    path = Path(PROFILE["output_dir"]) / f"{time.time()}-TP-0.trace.json.gz"
    with gzip.open(path, "wt") as stream:
        json.dump({"schemaVersion": 1, "traceEvents": events}, stream)
    PROFILE.clear()


def huge_trace():
    with (Path(PROFILE["output_dir"]) / "huge-TP-0.trace.json.gz").open("wb") as stream:
        while True:
            stream.write(bytes(100_000))
            stream.flush()
            time.sleep(0.01)


def serve():
    args = parser().parse_args()
    join_nodes(args)
    start(args)
    Handler.args = args
    server = ThreadingHTTPServer((args.host, args.port), Handler)
    server.daemon_threads = True
    if args.attention_backend == "slow-to-stop":
        signal.signal(signal.SIGTERM, lambda *_: None)
    if args.attention_backend == "never-ready":
        time.sleep(600)
    log("The server is fired up and ready to roll!")
    server.serve_forever()


def offline():
    flags = parser()
    for name in ("--dataset-name", "--dataset-path", "--result-filename"):
        flags.add_argument(name)
    flags.add_argument("--num-prompts", type=int)
    flags.add_argument("--seed", type=int)
    flags.add_argument("--skip-warmup", action="store_true")
    args = flags.parse_args()
    rows = json.loads(Path(args.dataset_path).read_text())
    rows = [row for row in rows if len(row["conversations"][1]["value"].split()) > 1][: args.num_prompts]
    join_nodes(args)
    if args.attention_backend == "dying-rank":
        time.sleep(600)  # inside a collective operation with the rank that is gone
    start(args)
    inputs = sum(len(row["conversations"][0]["value"].split()) for row in rows)
    outputs = sum(len(row["conversations"][1]["value"].split()) for row in rows)
    print("\nWarmup...", flush=True)
    prefill(256)
    print("\nBenchmark...", flush=True)
    if args.mem_fraction_static > 0.95:
        out_of_memory()
    for row in rows:
        words = len(row["conversations"][0]["value"].split())
        cached = words if args.attention_backend == "warm-cache" else 0
        prefill(words - cached, cached)
    seconds = 1.0 + abs((args.max_running_requests or 4096) - 64) / 100
    result = {
        "backend": "engine",
        "successful_requests": len(rows),
        "total_latency": seconds,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(rows) / seconds,
        "input_throughput": inputs / seconds,
        "output_throughput": outputs / seconds,
        "total_throughput": (inputs + outputs) / seconds,
        "last_gen_throughput": 1.0,
    }
    if args.result_filename:
        with Path(args.result_filename).open("a") as stream:
            stream.write(json.dumps(result) + "\n")
    for connection in SCHEDULERS:
        connection.close()  # the others fall while this one is still leaving
    time.sleep(1.0 if SCHEDULERS else 0.0)
    sys.exit(0)


def compile_deep_gemm():
    args = parser().parse_args()
    log(f"compiling for tp {args.tp_size}, node {args.node_rank} of {args.nnodes}")
