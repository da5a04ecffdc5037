#!/bin/sh
# 0004-x3-modeother: `sh run.sh` repeats this run by hand
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nlimit_s=60\nsilence_limit_s=0\n' $$ "${20}" "$boot" "$host" \
    > process || exit 74
  set +C
fi
started=$(date +%s.%N)

# The command may be told to stop; this script stays, to write down how it ended.
trap : HUP INT TERM
(
echo run >> ../../started-3-other; sleep 0.2; echo "rate $(( 100 + 3 * 7 % 23 ))"
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
