#!/bin/sh
# The engine on one node. session.json says what is done with it.
cd "$(dirname "$0")" || exit 1
[ -r ./session.env ] && . ./session.env
exec python3 -m sglang.benchmark.offline_throughput --model-path "$RIDGELINE_MODEL" --dataset-name sharegpt --dataset-path dataset.json --num-prompts 12 --seed 0 --result-filename offline.jsonl --load-format dummy --mem-fraction-static 0.7 --max-running-requests 16
