#!/usr/bin/env bash
# Fails where a budget is crossed, and says so in the step summary.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

baseline=(${ADVISOR_BASELINE:+--baseline "$(path "$ADVISOR_BASELINE")"})
advisor check "$(path "$ADVISOR_TRACE")" "${config[@]}" "${baseline[@]}" >"$out/budgets.txt"
code=$?
cat "$out/budgets.txt"
{
    printf '\n### Budgets\n\n'
    fenced "$out/budgets.txt"
} >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit $code
