#!/bin/sh
# 0001-tp16-pp1-dp1-attndp1-maxrunningrequests1024-memfractionstati: `sh run.sh` repeats this run by hand
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
export RIDGELINE_NODES='dgx001 dgx003'
export RIDGELINE_SPEED=1.021097

# The command may be told to stop; this script stays, to write down how it ended.
trap : HUP INT TERM
(
# stands for SGLang with --tp-size 16 --max-running-requests 1024 --mem-fraction-static 0.8 --attention-backend fa3 --page-size 1 --cuda-graph-max-bs-decode 1024
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
