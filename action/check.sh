#!/usr/bin/env bash
# Fails where a budget is crossed, and says so in the step summary.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# A baseline is for the comment too: it is held against where a limit says how much slower is too slow.
baseline=()
if [ -n "${ADVISOR_BASELINE:-}" ] && grep -qs regression_percent -- "${ADVISOR_CONFIG:-pyproject.toml}"; then
    baseline=(--baseline "$(path "$ADVISOR_BASELINE")")
fi
advisor check "$(path "$ADVISOR_TRACE")" "${config[@]}" "${baseline[@]}" >"$out/budgets.txt"
code=$?
cat "$out/budgets.txt"
{
    printf '\n### Budgets\n\n'
    fenced "$out/budgets.txt"
} >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit $code
