#!/usr/bin/env bash
# Installs advisor into an environment of its own: nothing that lies in the workspace, which a pull request may have filled, is imported.
set -euo pipefail

venv="${RUNNER_TEMP:-/tmp}/advisor-venv"
python3 -I -m venv "$venv"
pip=("$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check)
locked() { "${pip[@]}" --require-hashes --only-binary :all: -r "$GITHUB_ACTION_PATH/action/requirements.txt"; }
case "${ADVISOR_INSTALL:-}" in
    "")
        locked
        "${pip[@]}" --no-deps --no-build-isolation "$GITHUB_ACTION_PATH"
        ;;
    *.whl | *.whl#sha256=*) # pip holds a wheel against the hash in its address
        locked
        "${pip[@]}" --no-deps -- "$ADVISOR_INSTALL"
        "$venv/bin/python" -I -m pip check --disable-pip-version-check # a wheel of another commit may need other versions
        ;;
    *) "${pip[@]}" -- "$ADVISOR_INSTALL" ;;
esac
echo "bin=$venv/bin" >>"$GITHUB_OUTPUT"
