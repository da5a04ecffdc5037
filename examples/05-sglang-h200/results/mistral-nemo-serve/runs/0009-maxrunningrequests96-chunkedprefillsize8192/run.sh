#!/bin/sh
# mistral-nemo-serve-h200-0009-maxrunningrequests96-chunkedprefillsize8192: `sh run.sh` repeats this run by hand
up_first=''; [ ! -r /proc/uptime ] || read -r up_first up_rest < /proc/uptime
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nlimit_s=600\nsilence_limit_s=240\n' $$ "${20}" "$boot" "$host" \
    > process || exit 74
  set +C
fi
if [ -n "${RIDGELINE_RUN:-}" ]; then
(
  boot='' gpus=''
  [ ! -r /proc/sys/kernel/random/boot_id ] || read -r boot < /proc/sys/kernel/random/boot_id
  for file in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$file" ] || continue
    while read -r first second value; do [ "$first $second" != 'GPU UUID:' ] || gpus="$gpus $value"; done < "$file"
  done
  [ ! -e /dev/nvidiactl ] || case $gpus in '' | *'?'*)
    gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | sed -n 's/.*UUID: *\([^ )]*\).*/\1/p' | tr '\n' ' ') ;;
  esac
  printf 'host=%s\nboot=%s\ngpus=%s\n' "${host:-$(uname -n)}" "$boot" "$gpus" > machine
) || exit 74
fi
up_began=''; [ ! -r /proc/uptime ] || read -r up_began up_rest < /proc/uptime
started=$(date +%s.%N)
export HF_HUB_OFFLINE=1
export SGLANG_ENABLE_JIT_DEEPGEMM=0

# The command may be told to stop; this script stays, to write down how it ended.
told=''; trap 'told=TERM' TERM; trap : HUP INT
(
# the engine (engine.sh): python3 -m sglang.launch_server --model-path "$RIDGELINE_MODEL" --host 127.0.0.1 --port "$RIDGELINE_PORT" --context-length 16384 --mem-fraction-static 0.85 --attention-backend triton --cuda-graph-backend-prefill disabled --load-format dummy --max-running-requests 96 --chunked-prefill-size 8192
exec /opt/venv/bin/python3 -m ridgeline.workloads.engine.session session.json
)
code=$?

if [ -n "${RIDGELINE_RUN:-}" ]; then
  ended=$(date +%s.%N)
  up_ended=''; [ ! -r /proc/uptime ] || read -r up_ended up_rest < /proc/uptime
  {
    printf 'exit_code=%s\nstarted_s=%s\nended_s=%s\nhost=%s\n' "$code" "$started" "$ended" "${host:-$(uname -n)}"
    printf 'up_first_s=%s\nup_began_s=%s\n' "$up_first" "$up_began"
    printf 'up_ended_s=%s\ntold=%s\n' "$up_ended" "$told"
    times
  } > exit.partial && mv -f exit.partial exit || exit 74
fi
exit "$code"
