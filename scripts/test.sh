#!/usr/bin/env bash
# Set up, then run every check: style, types, imports between modules, tests. Needs no GPU and no account.
#
#   bash scripts/test.sh                       all
#   bash scripts/test.sh tests/unit -x         words for pytest
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" && exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh dev
bin="${VENV:-.venv}/bin"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
"$bin/ruff" check
"$bin/ruff" format --check
"$bin/mypy"
"$bin/lint-imports"
exec "$bin/python" -m pytest "$@"
