#!/bin/sh
# 0005-memfractionstatic0.8-maxrunningrequests16: `sh run.sh` repeats this run by hand
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nlimit_s=300\nsilence_limit_s=0\n' $$ "${20}" "$boot" "$host" \
    > process || exit 74
  set +C
fi
started=$(date +%s.%N)
export PYTHONPATH=../../../standin
export XDG_CACHE_HOME=../../../cache

# The command may be told to stop; this script stays, to write down how it ended.
trap : HUP INT TERM
(
# the engine (engine.sh): python3 -m sglang.benchmark.offline_throughput --model-path "$RIDGELINE_MODEL" --dataset-name sharegpt --dataset-path dataset.json --num-prompts 12 --seed 0 --result-filename offline.jsonl --load-format dummy --mem-fraction-static 0.8 --max-running-requests 16
exec @PYTHON@ -m ridgeline.workloads.session session.json
)
code=$?

if [ -n "${RIDGELINE_RUN:-}" ]; then
  ended=$(date +%s.%N)
  {
    printf 'exit_code=%s\nstarted_s=%s\nended_s=%s\nhost=%s\n' "$code" "$started" "$ended" "${host:-$(uname -n)}"
    times
  } > exit.partial && mv -f exit.partial exit || exit 74
fi
exit "$code"
