#!/usr/bin/env bash
# Fails where a budget is crossed, and says so in the step summary.
set -uo pipefail

config=(${ADVISOR_CONFIG:+--config "$ADVISOR_CONFIG"})
baseline=(${ADVISOR_BASELINE:+--baseline "$ADVISOR_BASELINE"})
mkdir -p advisor-report
advisor check "$ADVISOR_TRACE" "${config[@]}" "${baseline[@]}" >advisor-report/budgets.txt
code=$?
cat advisor-report/budgets.txt
{
    printf '\n### Budgets\n\n```text\n'
    cat advisor-report/budgets.txt
    printf '```\n'
} >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit $code
