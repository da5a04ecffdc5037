#!/bin/sh
# The engine on one node. session.json says what is done with it.
cd "$(dirname "$0")" || exit 1
[ -r ./session.env ] && . ./session.env
exec python3 -m sglang.launch_server --model-path "$RIDGELINE_MODEL" --host 127.0.0.1 --port "$RIDGELINE_PORT" --context-length 8192 --mem-fraction-static 0.8 --attention-backend triton --cuda-graph-backend-prefill disabled --cuda-graph-max-bs-decode 64 --max-running-requests 64 --speculative-draft-model-path /scratch/ridgeline/examples/05-sglang-h200/qwen3-30b-eagle3 --load-format dummy
