#!/bin/sh
# Start the service on a host with one GPU, load it, hang a server while `service keep` watches, and end it.
#
#   sh examples/06-deploy/run-on-gpu-host.sh [split] [together] [two]        the first two unless named
#
# PYTHONPATH   where python3 finds SGLang, sglang-router and what Ridgeline needs, unless it finds them already
# RATES        requests a second to load it with              [10 20 30]
# SKIP_HANG    not empty: do not hang a server
# OUT          a folder for what was printed and measured     [examples/06-deploy/out]
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${OUT:-$here/out}
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
cd "$here" || exit 1

ridgeline() { python3 -m ridgeline "$@"; }

said() {  # the command as a user types it, then what it says
  echo "\$ ridgeline $*"
  ridgeline "$@" 2>&1
  code=$?
  [ "$code" = 0 ] || echo "(exit $code)"
  echo
}

load() {  # URL NAME: three rates of ShareGPT-like chats, each for about 20 s
  for rate in ${RATES-10 20 30}; do
    said bench "$1" --traffic sharegpt --rate "$rate" --requests $((rate * 20)) --warmup 32 --seed "$rate" \
      --slo ttft_p95_ms=2000 --slo itl_p95_ms=30 --out "$out/$2-rate-$rate.jsonl"
  done
}

hang_decode() {  # the server's processes are stopped in the middle of a load; /health of a hung server may well say 200
  ridgeline service keep service-split.yaml >"$out/keep.txt" 2>&1 &
  keeper=$!
  ridgeline bench http://127.0.0.1:8300 --traffic sharegpt --rate 5 --duration 150 --timeout 60 --seed 7 \
    --out "$out/hang.jsonl" >"$out/hang.txt" 2>&1 &
  loader=$!
  sleep 15
  echo "stopping decode-0 at $(date -u +%T)"
  pkill -STOP -f 'disaggregation-mode decode'
  wait "$loader"
  kill "$keeper"
  wait "$keeper"
  echo "keep said:"
  cat "$out/keep.txt"
  echo
  said service status service-split.yaml
}

stop_scheduler() {  # PORT: the process that makes the tokens, of the server there; its API process stays alive
  server=$(pgrep -o -f "sglang.launch_server.* --port $1( |$)")
  scheduler=$(pgrep -P "$server" -f 'sglang::scheduler')
  kill -STOP $scheduler
  echo "stopped scheduler $scheduler of server $server at $(date -u +%T)"
}

hang_schedulers() {  # of server-1 while it serves, and once more while it is idle
  ridgeline service keep service-two.yaml >"$out/keep-two.txt" 2>&1 &
  keeper=$!
  ridgeline bench http://127.0.0.1:8300 --traffic sharegpt --rate 5 --duration 100 --timeout 60 --seed 7 \
    --out "$out/hang-two.jsonl" >"$out/hang-two.txt" 2>&1 &
  loader=$!
  sleep 20
  stop_scheduler 30001
  wait "$loader"
  cat "$out/hang-two.txt"
  for _ in $(seq 60); do
    ridgeline service status service-two.yaml | grep -q 'server-1 *ready' && break
    sleep 1
  done
  sleep 12
  stop_scheduler 30001
  sleep 75
  kill "$keeper"
  wait "$keeper"
  echo "keep said:"
  cat "$out/keep-two.txt"
  echo
  said service status service-two.yaml
}

[ -d models/llama-8b ] || said model make llama-8b models/llama-8b
for name in ${*:-split together}; do
  file=service-$name.yaml
  {
    said service check "$file"
    said service up "$file" --timeout 300
    said service status "$file"
    if [ "$name" = split ]; then
      load http://127.0.0.1:8300 split
      said service status "$file"
      [ -n "${SKIP_HANG:-}" ] || hang_decode
    elif [ "$name" = two ]; then
      [ -n "${SKIP_HANG:-}" ] || hang_schedulers
    else
      load http://127.0.0.1:30000 together
    fi
    said service down "$file"
    echo "left on the GPU: $(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader | tr '\n' ';')"
  } 2>&1 | tee "$out/$name.txt"
  cp "service-$name.service/journal.jsonl" "$out/$name-journal.jsonl"
  for log in service-"$name".service/members/*/runs/*/*; do
    case $log in *.log|*/log|*/stdout|*/stderr) cp "$log" "$out/$(echo "$log" | sed 's#.*/members/##; s#/#-#g')" ;; esac
  done
done
