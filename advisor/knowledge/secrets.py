"""What secrets look like: keys and tokens of known vendors, values that their own name calls secret, credentials in addresses.

Every expression is linear: what repeats is bounded, or is followed by nothing that it could also match.
"""

from __future__ import annotations

import os
import re

MASK = "[secret]"
SHOW = "ADVISOR_SHOW_SECRETS"
"""Of the environment: set to 1, what was recorded is shown as it stands. On the command line: advisor --show-secrets …"""

_VENDORS = {
    "a Hugging Face token": r"hf_[A-Za-z0-9]{20,}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}",
    "an AWS access key": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a Slack token": r"xox[abeprs]-[\w-]{10,}|https://hooks\.slack\.com/services/[\w/]{10,}",
    "an API key": r"sk-[\w-]{20,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{20,}|ya29\.[\w-]{20,}|key-[0-9a-f]{32}",
    "a GitLab token": r"gl(?:pat|dt|rt|ptt)-[\w-]{20,}",
    "a package registry's token": r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dckr_pat_[\w-]{20,}",
    "a cloud's token": r"dop_v1_[0-9a-f]{40,}|SG\.[\w-]{16,}\.[\w-]{16,}|dapi[0-9a-f]{32}|sq0[a-z]{3}-[\w-]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]*",
    "a JSON web token": r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
}
_KINDS = {kind: re.compile(rf"(?<![A-Za-z0-9_])(?:{pattern})") for kind, pattern in _VENDORS.items()}
_ANY_VENDOR = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_VENDORS.values())})")
_STARTS = (
    "hf_", "gh", "AKIA", "ASIA", "xox", "hooks.slack", "sk-", "AIza", "nvapi-", "r8_", "ya29.", "key-", "gl", "npm_", "pypi-", "dckr_", "dop_", "SG.", "dapi",
    "sq0", "_live_", "_test_", "-----BEGIN", "eyJ",
)  # fmt: skip

_WORDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "api_key", "api-key", "apikey", "access_key", "access-key", "accesskey", "private_key",
    "private-key", "account_key", "accountkey", "account-key", "credential", "authorization", "auth_key", "signature", "sharedaccess", "sessionid", "session_id",
)  # fmt: skip
_NAMED = "|".join(_WORDS)
# A number of tokens, or a flag, is no secret.
_PLAIN = r"(?:-?\d{1,9}(?:\.\d{1,9})?|true|false|none|null)(?![^\s,;)\]}>\"'])"
_ASSIGNED = re.compile(
    rf"(?P<name>(?:{_NAMED})(?!s\b)[\w-]{{0,40}})(?P<is>\\?[\"']?\s{{0,3}}[=:](?!:)\s{{0,3}}\\?[\"']?)(?!{_PLAIN})(?P<value>[^\s\"'\\,;&|)\]}}>]{{2,}})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"(?P<name>(?<![\w-])--?(?:[a-z]{{1,20}}[-_]){{0,4}}(?:{_NAMED})(?:[-_][a-z]{{1,20}}){{0,2}})(?P<is>[\s=]\s{{0,3}})(?P<value>[^\s\"',;]{{2,}})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\b(?:Bearer|Basic))(?P<is>\s{1,3})(?P<value>(?=[A-Za-z]{0,40}[0-9+/=._~-])[A-Za-z0-9+/=._~-]{8,})")
_IN_URL = re.compile(r"(?P<name>://)(?P<is>)(?P<value>[^\s/@:\"']{0,80}:[^\s/@\"']{1,200}@)")
_AFTER_NAME = (_BEARER, _ASSIGNED, _OPTION, _IN_URL)


def shown() -> bool:
    """Whether the user wants secrets as they were recorded."""
    return os.environ.get(SHOW) == "1"


def suspicious(text: str) -> bool:
    """Whether a text may hold a secret: a quick look that most texts pass, before the expressions."""
    lower = text.lower()
    return "://" in text or "bearer" in lower or "basic" in lower or any(start in text for start in _STARTS) or any(word in lower for word in _WORDS)


def masked(text: str, mask: str = MASK) -> str:
    """The text with every secret's value as `mask`; what names it stays."""
    if not suspicious(text):
        return text
    text = _ANY_VENDOR.sub(mask, text)
    for pattern in _AFTER_NAME:
        text = pattern.sub(lambda match: match["name"] + match["is"] + mask, text)
    return text


def kinds_in(text: str) -> set[str]:
    """What looks like a secret: kinds of values and the names before them, never a value."""
    if not suspicious(text):
        return set()
    found = {kind for kind, pattern in _KINDS.items() if pattern.search(text)}
    found |= {_whole_name(text, match.start("name"), match.end("name")) for match in _ASSIGNED.finditer(text)}
    return found | {match["name"] for match in _OPTION.finditer(text)}


def _whole_name(text: str, start: int, end: int) -> str:
    """The variable's name around a word of ours: AWS_SECRET_ACCESS_KEY of SECRET_ACCESS_KEY."""
    first = start
    while first > 0 and start - first < 60 and (text[first - 1].isalnum() or text[first - 1] in "_-"):
        first -= 1
    return text[first:end]
