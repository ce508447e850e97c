"""What secrets look like: keys and tokens of known vendors, values that their own name calls secret, credentials in addresses.

Every expression is linear: what repeats is bounded, or is followed by nothing that it could also match.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain

from advisor.knowledge.expressions import expression

MASK = "[secret]"
SHOW = "ADVISOR_SHOW_SECRETS"
"""Environment variable: set to 1, recorded text is shown unchanged. On the command line: advisor --show-secrets …"""

_VENDORS = {
    "a Hugging Face token": r"hf_[A-Za-z0-9]{20,}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}",
    "an AWS access key": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a Slack token": r"xox[abeprs]-[\w-]{10,}|https://hooks\.slack\.com/services/[\w/]{10,}",
    "an API key": r"sk-[\w-]{20,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{20,}|ya29\.[\w-]{20,}|key-[0-9a-f]{32}",
    "a GitLab token": r"gl(?:pat|dt|rt|ptt)-[\w-]{20,}",
    "a package registry's token": r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dckr_pat_[\w-]{20,}",
    "a cloud's token": r"dop_v1_[0-9a-f]{40,}|SG\.[\w-]{16,}\.[\w-]{16,}|dapi[0-9a-f]{32}|sq0[a-z]{3}-[\w-]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s\\:,-]*?-----END [A-Z ]{0,40}PRIVATE KEY-----|[A-Za-z0-9+/=\s\\:,-]*)",
    "a JSON web token": r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
}
_HOLDS = {
    "a Hugging Face token": ("hf_",),
    "a GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "an AWS access key": ("AKIA", "ASIA"),
    "a Slack token": ("xox", "hooks.slack.com"),
    "an API key": ("sk-", "AIza", "nvapi-", "r8_", "ya29.", "key-"),
    "a GitLab token": ("glpat-", "gldt-", "glrt-", "glptt-"),
    "a package registry's token": ("npm_", "pypi-", "dckr_pat_"),
    "a cloud's token": ("dop_v1_", "SG.", "dapi", "sq0", "k_live_", "k_test_"),
    "a private key": ("-----BEGIN ",),
    "a JSON web token": ("eyJ",),
}
"""A substring of every text that matches. Looking for it takes a fiftieth of the expression's time."""
_ANY_VENDOR = expression(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_VENDORS.values())})")
_STARTS = tuple(chain.from_iterable(_HOLDS.values()))

_WORDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "api_key", "api-key", "apikey", "access_key", "access-key", "accesskey", "private_key",
    "private-key", "account_key", "accountkey", "account-key", "credential", "authorization", "auth_key", "signature", "sharedaccess", "sessionid", "session_id",
)  # fmt: skip
_NAMED = "|".join(_WORDS)
_CORES: dict[str, list[str]] = {}
"""The words by what several of them share, which is looked for first."""
for _word in _WORDS:
    _CORES.setdefault(next((core for core in ("pass", "key", "session") if core in _word), _word), []).append(_word)
_LONGEST_BEFORE = 2 + 4 * 21
"""Of an option's name, before the word: two dashes and four parts."""
# A number of tokens, or a flag, is no secret. Nor is a package's version, as pip pins it.
_PLAIN = r"(?:-?\d{1,9}(?:\.\d{1,9})?|true|false|none|null)(?![^\s,;)\]}>\"'])"
_ASSIGNED = expression(
    rf"(?P<name>(?:{_NAMED})(?!s\b)[\w-]{{0,40}})(?!==\d{{1,9}}\.)(?P<is>\\?[\"']?\s{{0,3}}[=:](?!:)\s{{0,3}}\\?[\"']?)(?!{_PLAIN})(?!{re.escape(MASK)})(?P<value>[^\s\"'\\,;&|)\]}}>]{{2,}})",
    re.IGNORECASE,
)
_OPTION = expression(
    rf"(?P<name>(?<![\w-])--?(?:[a-z]{{1,20}}[-_]){{0,4}}(?:{_NAMED})(?:[-_][a-z]{{1,20}}){{0,2}})(?P<is>[\s=]\s{{0,3}})(?P<value>[^\s\"',;]{{2,}})",
    re.IGNORECASE,
)
_BEARER = expression(r"(?P<name>\b(?:Bearer|Basic))(?P<is>\s{1,3})(?P<value>(?=[A-Za-z]{0,40}[0-9+/=._~-])[A-Za-z0-9+/=._~-]{8,})")
_IN_URL = expression(r"(?P<name>://)(?P<is>)(?P<value>[^\s/@:\"']{0,80}:[^\s/@\"']{1,200}@)")
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


def masked_each(texts: list[str]) -> list[str]:
    """Each text as `masked` gives it, or the same list if nothing changes. All texts are searched together first."""
    together = "\n".join(texts)
    if not suspicious(together):
        return texts
    lower = together.lower()
    exact, folded = [mark for mark in ("://", *_STARTS) if mark in together], [mark for mark in ("bearer", "basic", *_WORDS) if mark in lower]

    def may_hold(text: str) -> bool:
        low = text.lower()
        return any(mark in text for mark in exact) or any(mark in low for mark in folded)

    return [masked(text) if may_hold(text) else text for text in texts]


def kinds_in(text: str) -> set[str]:
    """What looks like a secret: kinds of values and the names before them, never a value."""
    may_hold = _triples_of(text)
    found = {kind for kind, holds in _HOLDS.items() if any(may_hold(part) and part in text for part in holds) and _of_kind(kind).search(text)}
    named = _named(text, may_hold) if any(map(may_hold, _CORES)) else []
    found |= {_whole_name(text, match.start("name"), match.end("name")) for match in _matches(_ASSIGNED, text, iter(named))}
    return found | {match["name"] for match in _matches(_OPTION, text, _dashes_before(text, named))}


_LONG = 1 << 16  # characters: of a shorter text, looking for each part takes less
_OWN = "abcdefghijklmnopqrstuvwxyz_-./0"
_KINDS = bytes(1 + _OWN.find("0" if chr(byte).isdecimal() else chr(byte).lower()) for byte in range(256))
"""A number of five bits for each byte, the same for all digits, and for all that are in no part."""


def _triples_of(text: str) -> Callable[[str], bool]:
    """Whether a long text may hold a part in any case, by its triples of characters. Most parts have one that no trace has, and need not be looked for."""
    if len(text) < _LONG:
        return bool
    import numpy as np

    kinds, seen = np.frombuffer(_plain(text).encode("utf-8", "surrogatepass").translate(_KINDS), np.uint8), np.zeros(1 << 15, bool)
    for at in range(0, len(kinds), _LONG):
        piece = kinds[at : at + _LONG + 2].astype(np.uint16)
        seen[piece[:-2] << 10 | piece[1:-1] << 5 | piece[2:]] = True

    def may_hold(part: str) -> bool:
        each = part.encode().translate(_KINDS)
        return all(seen[one << 10 | two << 5 | three] for one, two, three in zip(each, each[1:], each[2:], strict=False))

    return may_hold


def _plain(text: str) -> str:
    """The text with the letters beyond ASCII that `re.IGNORECASE` takes for those of a word replaced by these."""
    if not text.isascii():
        for odd, plain in (("\u017f", "s"), ("\u0131", "i"), ("\u0130", "i"), ("\u212a", "k")):
            text = text.replace(odd, plain)
    return text


@cache
def _of_kind(kind: str) -> re.Pattern[str]:
    return expression(rf"(?<![A-Za-z0-9_])(?:{_VENDORS[kind]})")


def _named(text: str, may_hold: Callable[[str], bool]) -> list[int]:
    """Positions of words that mark the following text as secret, in ascending order, in any case (as `re.IGNORECASE`)."""
    lower, found = _plain(text).lower(), set()
    for core, words in _CORES.items():
        if may_hold(core) and core in lower:
            for word in filter(may_hold, words):
                at = lower.find(word)
                while at >= 0:
                    found.add(at)
                    at = lower.find(word, at + 1)
    return sorted(found)


def _dashes_before(text: str, named: list[int]) -> Iterator[int]:
    """Positions at which an option with such a word in its name may start, in ascending order."""
    done = 0
    for at in named:
        done = max(done, at - _LONGEST_BEFORE)
        while (dash := text.find("-", done, at)) >= 0:
            yield dash
            done = dash + 1


def _matches(pattern: re.Pattern[str], text: str, starts: Iterator[int]) -> Iterator[re.Match[str]]:
    """What `finditer` gives of an expression that can match at these places alone; those between them cost nothing."""
    end = 0
    for start in starts:
        if start >= end and (match := pattern.match(text, start)):
            end = match.end()
            yield match


def _whole_name(text: str, start: int, end: int) -> str:
    """The variable's name around a word of ours: AWS_SECRET_ACCESS_KEY of SECRET_ACCESS_KEY."""
    first = start
    while first > 0 and start - first < 60 and (text[first - 1].isalnum() or text[first - 1] in "_-"):
        first -= 1
    return text[first:end]
