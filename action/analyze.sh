#!/usr/bin/env bash
# Writes into advisor-report/ of the runner's own directory (HTML, JSON, SARIF, the comment) and the step summary of a trace.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Interpreters that may have advisor: the one beside the command, as in an environment, the one that its first line names, and python3.
pythons() {
    local command first
    command=$(readlink -f -- "$(command -v advisor)") || command=
    if [ -f "$command" ]; then
        printf '%s\n' "${command%/*}/python3"
        IFS= read -r first <"$command" || true
        case "$first" in '#!'*python*) printf '%s\n' "${first#'#!'}" ;; esac
    fi
    command -v python3
}

# One of them that has advisor: isolated, as everywhere, but for what is installed for this user alone.
installed='import site, sys; sys.path.append(site.getusersitepackages())'
own_python() {
    local python
    while IFS= read -r python; do
        if [ -x "$python" ] && "$python" -I -c "$installed; import advisor.sources" 2>/dev/null; then
            printf '%s' "$python"
            return
        fi
    done < <(pythons)
    return 1
}

# Of several captures the first is reported on; the comparison and the check take them all. A recording, the ranks of a job and a run of
# JAX are one capture each: advisor tells, where a Python of its own is found, else only that of its own recordings is known.
trace="$(path "$ADVISOR_TRACE")"
unknown=
if [ -d "$trace" ] && [ ! -f "$trace/recording.json" ]; then
    directory=$trace
    if python=$(own_python); then
        trace=$("$python" -I -c "$installed"'
import re
from pathlib import Path
from advisor.report.saved import captures
from advisor.sources import is_one_capture
named = (path for path in captures(Path(sys.argv[1]), is_one_capture) if not re.search(r"[\x00-\x1f\x7f-\x9f]", path.name) and not path.is_symlink())
print(next(map(str, named), ""))' "$directory") || { echo "advisor: the directory cannot be read" >&2; exit 3; }
    else
        trace=$(find "$directory" -maxdepth 1 -type f \( -name '*.json' -o -name '*.json.gz' -o -name '*.json.zst' -o -name '*.trace.zst' -o -name '*.sqlite' \) ! -name '*[[:cntrl:]]*' | LC_ALL=C sort | head -n 1)
        unknown="No Python that has advisor was found, so what the directory is as a whole is not known: only its first file is reported on. Give one trace, or let the action install advisor."
    fi
    [ -n "$trace" ] || { echo "advisor: the directory holds no captures" >&2; exit 3; }
    [ -z "$unknown" ] || echo "advisor: $unknown" >&2
    trace=$(path "$trace") # pathlib takes the ./ away
fi

advisor analyze "$trace" "${config[@]}" -o "$out/report.html" -o "$out/report.json" -o "$out/report.sarif" -o "$out/report.md" --force

begun() { : >"$out/comment.md"; [ -z "$unknown" ] || printf '%s\n\n' "$unknown" >>"$out/comment.md"; }
begun
rm -f -- "$out/diff.md" # of an earlier use in this job
if [ -n "${ADVISOR_BASELINE:-}" ]; then
    if advisor diff "$(path "$ADVISOR_BASELINE")" "$(path "$ADVISOR_TRACE")" "${config[@]}" --format markdown --output "$out/diff.md" --force 2>"$out/diff.log"; then
        # What changed comes first: that is what the pull request is about.
        cat "$out/diff.md" >>"$out/comment.md"
        printf '\n' >>"$out/comment.md"
    else
        # Another device, another schema: the report itself stands all the same.
        cat "$out/diff.log" >&2
        printf 'The baseline was not compared:\n\n' >>"$out/comment.md"
        fenced "$out/diff.log" >>"$out/comment.md"
    fi
    rm -f "$out/diff.log"
fi
cat "$out/report.md" >>"$out/comment.md"

# GitHub takes 1 MiB of summary a step and 65,536 characters of comment: two reports may pass the latter, one never does.
cat "$out/comment.md" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
if [ "$(wc -m <"$out/comment.md")" -gt 65000 ] && [ -s "$out/diff.md" ]; then
    begun
    cat "$out/diff.md" >>"$out/comment.md"
    printf '\nThe findings are in the step summary: with them the comment would be too long.\n' >>"$out/comment.md"
fi
# The marker by which the next run finds the comment to update.
printf '\n<!-- trace-advisor: comment -->\n' >>"$out/comment.md"

{
    echo "directory=$out"
    echo "report=$out/report.html"
    echo "sarif=$out/report.sarif"
    echo "json=$out/report.json"
} >>"${GITHUB_OUTPUT:-/dev/null}"
