# What the steps share. Sourced.

PATH="${ADVISOR_BIN:+$ADVISOR_BIN:}$PATH"
# The runner's own directory: in the workspace a pull request may have laid links under our names, to files that are not its own.
out="${RUNNER_TEMP:-.}/advisor-report"
mkdir -p -- "$out"

# A path that begins with a dash is no option, and one with a bracket or a mark no expression of find's.
path() { case "$1" in [[:alnum:]/._~]*) printf '%s' "$1" ;; *) printf './%s' "$1" ;; esac; }

# Where the checkout is this repository's own, or runs without its rights and secrets, its settings hold, and its rules, which are code. On every
# other event, also one that GitHub has yet to think of, what is checked out may be a stranger's. Without an event no runner's rights are there.
config=(${ADVISOR_CONFIG:+--config "$(path "$ADVISOR_CONFIG")"})
case "${GITHUB_EVENT_NAME:-}" in
"" | push | pull_request | merge_group | schedule | workflow_dispatch | release) ;;
*)
    export ADVISOR_OWN_RULES=no
    if [ ${#config[@]} -eq 0 ]; then
        : >"${RUNNER_TEMP:-/tmp}/advisor-no-settings.toml"
        config=(--config "${RUNNER_TEMP:-/tmp}/advisor-no-settings.toml")
        echo "advisor: settings of the checkout are ignored on this event, which may be a stranger's"
    fi
    ;;
esac

# What a trace holds may reach the log: until the end of the step no line of it is a command to the runner.
silence="$(python3 -I -c 'import secrets; print(secrets.token_hex(16))')"
echo "::stop-commands::$silence"
trap 'echo "::$silence::"' EXIT

# A file as a block of Markdown, its fence longer than any run of backticks in it.
fenced() {
    local most
    most=$( (grep -o '`*' "$1" || true) | awk '{ if (length > most) most = length } END { print most < 3 ? 3 : most + 1 }')
    local fence
    fence=$(printf '%*s' "$most" '' | tr ' ' '`')
    printf '%stext\n' "$fence"
    cat "$1"
    printf '\n%s\n' "$fence"
}
