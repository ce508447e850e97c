#!/usr/bin/env bash
# Comments on the pull request of the event, or updates the comment that an earlier run left.
set -euo pipefail

number=$(python3 -c 'import json, os; print(json.load(open(os.environ["GITHUB_EVENT_PATH"])).get("pull_request", {}).get("number", ""))')
if [ -z "$number" ]; then
    echo "advisor: this event is of no pull request, so there is nothing to comment on"
    exit 0
fi

comments="repos/$GITHUB_REPOSITORY/issues/$number/comments"
marker='<!-- trace-advisor: comment -->'
mine=$(gh api --paginate "$comments" --jq ".[] | select(.user.type == \"Bot\") | select(.body | contains(\"$marker\")) | .id" | head -n 1)
if [ -n "$mine" ]; then
    gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$mine" --field body=@advisor-report/comment.md >/dev/null
    echo "advisor: updated comment $mine of pull request $number"
else
    gh api --method POST "$comments" --field body=@advisor-report/comment.md >/dev/null
    echo "advisor: commented on pull request $number"
fi
