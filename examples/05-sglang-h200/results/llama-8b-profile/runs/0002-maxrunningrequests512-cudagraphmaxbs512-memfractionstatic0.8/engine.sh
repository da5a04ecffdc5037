#!/bin/sh
# The engine on one node. session.json says what is done with it.
cd "$(dirname "$0")" || exit 1
[ -r ./session.env ] && . ./session.env
exec python3 -m sglang.benchmark.offline_throughput --model-path "$RIDGELINE_MODEL" --dataset-name sharegpt --dataset-path dataset.json --port "$RIDGELINE_PORT" --num-prompts 400 --seed 2025 --result-filename offline.jsonl --context-length 16384 --attention-backend triton --chunked-prefill-size 8192 --load-format dummy --max-running-requests 512 --cuda-graph-max-bs-decode 512 --mem-fraction-static 0.88
