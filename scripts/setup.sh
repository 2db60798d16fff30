#!/usr/bin/env bash
# Install asrl from this clone into a virtual environment, which is created if there is none.
#
#   bash scripts/setup.sh          what training needs
#   bash scripts/setup.sh dev      and what the checks need; any extra of pyproject.toml
#
# VENV names the environment (.venv), PYTHON the interpreter that makes it (python3).
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" && exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${VENV:-.venv}"
installed="$venv/.installed-asrl-${1:-}"
if [ pyproject.toml -nt "$installed" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    echo "installing into $venv: about 6 GB, some minutes"
    "$venv/bin/python" -m pip install --quiet --editable ".${1:+[$1]}"
    touch "$installed"
fi
