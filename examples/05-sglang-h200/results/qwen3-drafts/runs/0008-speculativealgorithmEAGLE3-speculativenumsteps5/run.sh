#!/bin/sh
# qwen3-drafts-h200-0008-speculativealgorithmEAGLE3-speculativenumsteps5: `sh run.sh` repeats this run by hand
up_first=''; [ ! -r /proc/uptime ] || read -r up_first up_rest < /proc/uptime
cd "$(dirname "$0")" || exit 74
if [ -n "${RIDGELINE_RUN:-}" ]; then
  read -r stat < /proc/$$/stat
  set -- ${stat##*) }
  read -r boot < /proc/sys/kernel/random/boot_id
  read -r host < /proc/sys/kernel/hostname
  read -r up_load up_rest < /proc/loadavg
  set -C  # never over an existing file: of two starts of one run, only the first counts
  printf 'pid=%s\nstart_ticks=%s\nboot=%s\nhost=%s\nload=%s\nlimit_s=600\nsilence_limit_s=240\n' $$ "${20}" "$boot" "$host" "$up_load" \
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
export LC_ALL=C.UTF-8
export HF_HUB_OFFLINE=1
export SGLANG_ENABLE_JIT_DEEPGEMM=0
export SGLANG_SIMULATE_UNIFORM_EXPERTS=1
export SGLANG_SIMULATE_ACC_LEN=3.46
export SGLANG_SIMULATE_ACC_METHOD=match-expected

ask_usage='use Config;
my $call = $Config{archname} =~ /^x86_64/ ? 98 : $Config{archname} =~ /^(?:aarch64|riscv64)/ ? 165 :
  $Config{archname} =~ /^p(?:ower)?pc64/ ? 77 : 0;
my $used = "\0" x 144;
if ($call && !syscall($call, -1, $used)) {
  my ($us, $uu, $ss, $su, $kib) = unpack "q5", $used;
  printf "command_cpu_s=%.6f\nmax_rss_kib=%d\n", $us + $ss + ($uu + $su) / 1e6, $kib;
}
wait;
exit $ARGV[0]'
if [ -n "${RIDGELINE_RUN:-}" ]; then exec 7> exit.used; else exec 7> /dev/null; fi
# The command may be told to stop; this script stays, to write down how it ended.
told=''; trap 'told=TERM' TERM; trap : HUP INT
(
trap : TERM HUP INT
(
# the engine (engine.sh): python3 -m sglang.launch_server --model-path "$RIDGELINE_MODEL" --host 127.0.0.1 --port "$RIDGELINE_PORT" --context-length 8192 --mem-fraction-static 0.8 --attention-backend triton --cuda-graph-backend-prefill disabled --cuda-graph-max-bs-decode 64 --max-running-requests 64 --speculative-draft-model-path /scratch/ridgeline/examples/05-sglang-h200/qwen3-30b-eagle3 --load-format dummy --speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 1
exec /opt/torch/.venv/bin/python3 -m ridgeline.serving.workloads.engine.session session.json
) 7>&-
code=$?
up_ended=; [ ! -r /proc/uptime ] || read -r up_ended up_rest < /proc/uptime
{ echo "$code"; echo "up_ended_s=$up_ended"; times; } >&7
date +ended_s=%s.%N >&7 &
unset LD_PRELOAD LD_LIBRARY_PATH PERL5LIB PERL5OPT
! command -v perl > /dev/null 2>&1 || exec perl -e "$ask_usage" "$code" >&7 2> /dev/null
wait
exit "$code"
)
code=$?

exec 7>&-
# a Perl that cannot start leaves with a code of its own; `timeout` means 124 and 137 for what it ended
if [ -n "${RIDGELINE_RUN:-}" ] && [ -s exit.used ]; then
  case $code in 124|137) ;; *) read -r code < exit.used ;; esac
fi
if [ -n "${RIDGELINE_RUN:-}" ]; then
  ended=$(date +%s.%N)
  up_ended=''; [ ! -r /proc/uptime ] || read -r up_ended up_rest < /proc/uptime
  {
    printf 'exit_code=%s\nstarted_s=%s\nended_s=%s\nhost=%s\n' "$code" "$started" "$ended" "${host:-$(uname -n)}"
    printf 'up_first_s=%s\nup_began_s=%s\n' "$up_first" "$up_began"
    printf 'up_ended_s=%s\nup_left_s=%s\ntold=%s\n' "$up_ended" "$up_ended" "$told"
    # the command's own end comes last and counts
    while read -r line; do printf '%s\n' "$line"; done < exit.used
  } > exit.partial && mv -f exit.partial exit || exit 74
fi
exit "$code"
