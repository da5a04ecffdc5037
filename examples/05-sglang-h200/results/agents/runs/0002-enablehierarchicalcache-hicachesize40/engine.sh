#!/bin/sh
# The engine on one node. session.json says what is done with it.
cd "$(dirname "$0")" || exit 1
[ -r ./session.env ] && . ./session.env
exec python3 -m sglang.launch_server --model-path "$RIDGELINE_MODEL" --host 127.0.0.1 --port "$RIDGELINE_PORT" --context-length 32768 --mem-fraction-static 0.22 --attention-backend triton --cuda-graph-backend-prefill disabled --cuda-graph-max-bs-decode 32 --max-running-requests 32 --load-format dummy --enable-hierarchical-cache --hicache-size 40
