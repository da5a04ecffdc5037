#!/usr/bin/env bash
# From the task sheet to the deck, with no hand edit: both tasks, or the named ones. Stopped or killed, run it again: it goes on.
#
#   examples/09-challenge/run.sh [sglang] [nwchem]
#
# OUT      where the study folders go   [studies/challenge]
# FORMATS  what to write of each        [html slides]
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${OUT:-$root/studies/challenge}
formats=${FORMATS:-html slides}
ridgeline=${RIDGELINE:-$root/scripts/ridgeline}
[ $# -gt 0 ] || set -- sglang nwchem

# 1: there is no better setting, which is an answer too
answered() {
  local code=0
  "$@" || code=$?
  [ $code -le 1 ] || exit $code
}

for task in "$@"; do
  study=$here/study-$task.yaml folder=$out/$task
  [ -f "$study" ] || { echo "$0: there is no task $task; use sglang or nwchem" >&2; exit 2; }
  if [ "$task" = nwchem ] && ! command -v nwchem.openmpi >/dev/null; then
    echo "NWChem is not installed here, so its task is left out; see examples/02-nwchem-water/README.md" >&2
    continue
  fi
  echo "== $task: the rules and the space"
  "$ridgeline" check "$study"
  echo "== $task: the campaign"
  if [ -s "$folder/journal.jsonl" ]; then
    answered "$ridgeline" resume "$folder"
  else
    answered "$ridgeline" tune "$study" --out "$folder"
  fi
  echo "== $task: every number again, from the files"
  "$ridgeline" study verify "$folder"
  for format in $formats; do
    "$ridgeline" report "$folder" --format "$format"
  done
done
