#!/bin/sh
# 0006-tp4-pp4-dp1-attndp2-maxrunningrequests2048-memfractionstatic: `sh run.sh` repeats this run by hand
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nlimit_s=2700\nsilence_limit_s=900\n' $$ "${20}" "$boot" "$host" \
    > process || exit 74
  set +C
fi
started=$(date +%s.%N)
export RIDGELINE_NODES='dgx002 dgx003'
export RIDGELINE_SPEED=0.950183

# The command may be told to stop; this script stays, to write down how it ended.
trap : HUP INT TERM
(
# stands for SGLang with --tp-size 4 --pp-size 4 --attn-dp-size 2 --max-running-requests 2048 --mem-fraction-static 0.87 --attention-backend fa3 --page-size 16 --cuda-graph-max-bs-decode 2048
@PYTHON@ -IS @PACKAGE@/workloads/twin_play.py play.json "${RIDGELINE_SPEED:-1}" "${RIDGELINE_STOPS_AT:-1}" took_s
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
