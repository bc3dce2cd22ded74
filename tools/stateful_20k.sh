#!/bin/sh
# The rule machines with 20,000 examples each instead of 200: 20 rounds of 1,000 with a seed each,
# since a search remembers all that it has tried. Takes hours on two cores.
#   tools/stateful_20k.sh                    all machines
#   tools/stateful_20k.sh -k SlotAllocator   one of them; ROUNDS=5 for fewer examples
set -eu
cd "$(dirname "$0")/.."
export HYPOTHESIS_PROFILE=deep
round=0
while [ "$round" -lt "${ROUNDS:-20}" ]; do
  "${PYTHON:-python3}" -m pytest -q test/srt/stateful --timeout 0 --hypothesis-seed "$round" \
    --ignore test/srt/stateful/test_seeded_faults.py "$@"
  round=$((round + 1))
  echo "$((round * 1000)) examples a machine"
done
