#!/bin/sh
# Run the campaigns on a host with one GPU, or go on with them where they stopped.
#
#   sh examples/05-sglang-h200/run-on-gpu-host.sh [llama-8b] [deepseek-v2-lite] [qwen2.5-7b] ...     the first two unless named
#
# SGLANG_PATH  what to put on PYTHONPATH for SGLang; empty where python3 finds it already
# WHEELS       a folder of wheels from which packages that the host lacks are taken; nothing is downloaded
# STUDIES      where the study folders go            [examples/05-sglang-h200/studies]
# LIMIT_S      stop like Ctrl-C after so many seconds in all; run the script again to go on
# PACK         a folder for NAME.tar.gz, the study folder as far as it is
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
studies=${STUDIES:-$here/studies}
began=$(date +%s)
mkdir -p "$studies"

PYTHONPATH="$root/src${SGLANG_PATH:+:$SGLANG_PATH}${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${WHEELS:-}" ]; then
  # only what is missing: a second numpy or pydantic in front of the host's own would break the engine
  for wheel in "$WHEELS"/*.whl; do
    name=$(basename "$wheel" | cut -d- -f1)
    if ! PYTHONPATH="$PYTHONPATH:$studies/.packages" \
      python3 -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$name" >/dev/null 2>&1; then
      python3 -m zipfile -e "$wheel" "$studies/.packages"
    fi
  done
  PYTHONPATH="$PYTHONPATH:$studies/.packages"
fi
export PYTHONPATH

worst=0
for name in ${*:-llama-8b deepseek-v2-lite}; do
  folder=$studies/$name
  if [ -f "$folder/journal.jsonl" ]; then
    set -- resume "$folder"
  else
    set -- tune "$here/study-$name.yaml" --out "$folder"
  fi
  if [ -n "${LIMIT_S:-}" ]; then
    left=$((LIMIT_S - ($(date +%s) - began)))
    [ "$left" -gt 30 ] || { echo "no time left for $name; run this script again"; worst=130; continue; }
    timeout --foreground -s INT -k 60 "$left" python3 -m ridgeline "$@"
  else
    python3 -m ridgeline "$@"
  fi
  code=$?
  [ "$code" -gt "$worst" ] && worst=$code
  if [ -n "${PACK:-}" ] && [ -d "$folder" ]; then
    tar -C "$studies" --exclude=lock -czf "$PACK/$name.tar.gz" "$name"
  fi
done
exit "$worst"
