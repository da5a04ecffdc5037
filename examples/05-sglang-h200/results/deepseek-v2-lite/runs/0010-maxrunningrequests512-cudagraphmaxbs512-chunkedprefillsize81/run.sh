#!/bin/sh
# 0010-maxrunningrequests512-cudagraphmaxbs512-chunkedprefillsize81: `sh run.sh` repeats this run by hand
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nlimit_s=900\nsilence_limit_s=360\n' $$ "${20}" "$boot" "$host" \
    > process || exit 74
  set +C
fi
started=$(date +%s.%N)
export HF_HUB_OFFLINE=1
export SGLANG_ENABLE_JIT_DEEPGEMM=0

# The command may be told to stop; this script stays, to write down how it ended.
trap : HUP INT TERM
(
exec /opt/python/bin/python3 -m ridgeline.workloads.session session.json
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
