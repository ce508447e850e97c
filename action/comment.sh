#!/usr/bin/env bash
# Comments on the pull request of the event, or updates the comment that an earlier run of the same account left.
set -euo pipefail

out="${RUNNER_TEMP:-.}/advisor-report"

# Isolated: the workspace, where this runs, may hold a json.py of anyone.
number=$(python3 -I -c 'import json, os; print(int(json.load(open(os.environ["GITHUB_EVENT_PATH"])).get("pull_request", {}).get("number", 0)))')
if [ "$number" = 0 ]; then
    echo "advisor: this event is of no pull request, so there is nothing to comment on"
    exit 0
fi

# Where the page is, and under which address in it the first finding stands. The marker stays last.
if [ -n "${ADVISOR_PAGE:-}" ] && ! grep -qs 'trace-advisor: page' "$out/comment.md"; then
    finding=$(ADVISOR_OUT="$out" python3 -I -c 'import json, os; found = json.load(open(os.environ["ADVISOR_OUT"] + "/report.json"))["findings"]; print("#finding-" + found[0]["rule"] if found else "")')
    body=$(<"$out/comment.md")
    {
        printf '%s' "${body%'<!-- trace-advisor: comment -->'*}"
        printf '[The page, with the timeline and the evidence](%s): unpack it and open `report.html%s`.\n<!-- trace-advisor: page -->\n\n' \
            "$ADVISOR_PAGE" "$(printf '%s' "$finding" | tr -cd 'A-Za-z0-9#_.-')"
        printf '<!-- trace-advisor: comment -->\n'
    } >"$out/comment.md"
fi

comments="repos/$GITHUB_REPOSITORY/issues/$number/comments"
# Only a comment of the account that comments now, which ends with the marker: anybody may quote it.
# A workflow's own token may not ask who it is; gh then prints the refusal where the name should be.
ADVISOR_ACCOUNT=$(gh api user --jq .login 2>/dev/null) || ADVISOR_ACCOUNT='github-actions[bot]'
export ADVISOR_ACCOUNT ADVISOR_MARKER='<!-- trace-advisor: comment -->'
mine=$(gh api --paginate "$comments" --jq '.[] | select(.user.login == env.ADVISOR_ACCOUNT) | select(.body | rtrimstr("\n") | endswith(env.ADVISOR_MARKER)) | .id' | head -n 1)
if [[ "$mine" =~ ^[0-9]+$ ]]; then
    gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$mine" --field "body=@$out/comment.md" >/dev/null
    echo "advisor: updated comment $mine of pull request $number"
else
    gh api --method POST "$comments" --field "body=@$out/comment.md" >/dev/null
    echo "advisor: commented on pull request $number"
fi
