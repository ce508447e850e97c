#!/usr/bin/env bash
# Installs advisor into an environment of its own: nothing that lies in the workspace, which a pull request may have filled, is imported.
set -euo pipefail

venv="${RUNNER_TEMP:-/tmp}/advisor-venv"
python3 -I -m venv "$venv"
pip=("$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check)
if [ -n "${ADVISOR_INSTALL:-}" ]; then
    "${pip[@]}" -- "$ADVISOR_INSTALL"
else
    "${pip[@]}" --require-hashes --only-binary :all: -r "$GITHUB_ACTION_PATH/action/requirements.txt"
    "${pip[@]}" --no-deps --no-build-isolation "$GITHUB_ACTION_PATH"
fi
echo "bin=$venv/bin" >>"$GITHUB_OUTPUT"
