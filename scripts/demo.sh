#!/usr/bin/env bash
# Set up, then train the embedded demo on the CPU and compare the model before and after.
#
#   bash scripts/demo.sh                                       GSPO, about ten minutes on two cores
#   bash scripts/demo.sh importance_sampling_level=token       any setting of train.py
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" && exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # or accelerate chooses, and says so
exec "${VENV:-.venv}/bin/accelerate" launch --config_file configs/accelerate/cpu.yaml \
    train.py importance_sampling_level=sequence "$@"
