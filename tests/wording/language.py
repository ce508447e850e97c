"""What is wrong with a text: habits, long sentences, words for which the field has a term, abbreviations that the glossary lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from tests.paths import ROOT
from tests.wording.terms import ABBREVIATIONS, BANNED

HABITS = {
    "what-clause": r"\bwhat (?:is|are|was|were|has|have|had|does|do|did|can|the|it|they|this|that|these|those|an?|its|their|each|no|one|you|we)\b(?![^.]*\?)",
    "one": r"\bones?\b(?!-shot)",
    "where": r"(?<![.:])(?<!→ )\bwhere\b(?! →)",
    "stands": r"\b(?:stands?|stood|lies|lay)\b",
    "told": r"\b(?:told|tells?|said)\b",
    "whose": r"\b(?:whose|of which)\b",
    "beside": r"\bbeside\b",
}
"""Ways to speak that made reports hard to read: an accent of ours, at ten times the rate of other projects. `torch.where` and a one-shot all-reduce are names."""

MOST_WORDS = 25
"""Of a sentence."""
PER_HABIT = 1000
"""Words, of which one may be a habit: each has a right use, as in `one GPU`."""

KINDS = (*HABITS, "long", "term", "undefined")
_HABITS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in HABITS.items()}
_BANNED = {term: re.compile(pattern, re.IGNORECASE) for pattern, term in BANNED.items()}
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9`])|\n{2,}|:\s*\n")
_CODE = re.compile(r"`[^`\n]*`|https?://\S+|\S*/[\w.-]+/\S*")
_WORD = re.compile(r"[^\W_](?:[\w'’.,%/×+-]*\w)?%?")
_ABBREVIATION = re.compile(r"(?<![\w./-])[A-Z]{2,6}(?=s?\b)(?![\w./<-])")
_GLOSSARY = ROOT / "docs" / "glossary.md"
_ENTRY = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class Fault(NamedTuple):
    """What is wrong, the words that are, and the sentence around them."""

    kind: str
    found: str
    sentence: str


def faults(text: str) -> Iterator[Fault]:
    """What is wrong with a text in plain words; code in backticks counts as a word."""
    for sentence in sentences(text):
        yield from (Fault(kind, match[0], sentence) for kind, pattern in _HABITS.items() for match in pattern.finditer(sentence))
        yield from (Fault("term", f"{match[0]} -> {term}", sentence) for term, pattern in _BANNED.items() for match in pattern.finditer(sentence))
        yield from (Fault("undefined", match[0], sentence) for match in _ABBREVIATION.finditer(sentence) if match[0] not in defined())
        if (words := count_words(sentence)) > MOST_WORDS:
            yield Fault("long", f"{words} words", sentence)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, each in a line, code as `x`."""
    for part in _SENTENCE_END.split(_CODE.sub("`x`", text)):
        if sentence := " ".join(part.split()):
            yield sentence


def count_words(text: str) -> int:
    return len(_WORD.findall(_CODE.sub("x", text)))


@cache
def glossary() -> dict[str, str]:
    """What each term of docs/glossary.md means."""
    entries = _ENTRY.findall(_GLOSSARY.read_text(encoding="utf-8")) if _GLOSSARY.exists() else []
    return {term: meaning for term, meaning in entries if term != "Term" and set(term) != {"-"}}


@cache
def defined() -> frozenset[str]:
    """Abbreviations that every reader knows, and those that the glossary explains."""
    return ABBREVIATIONS | {word for term in glossary() for word in re.findall(r"\b[A-Z]{2,6}(?=s?\b)", term)}


def distinct(texts: Iterable[str]) -> Iterator[str]:
    """The sentences of texts, each once, whatever its numbers are: a report of a thousand traces says the same a thousand times."""
    seen = set()
    for text in texts:
        for sentence in sentences(text):
            if (shape := re.sub(r"\d[\d.,]*", "9", sentence)) not in seen:
                seen.add(shape)
                yield sentence
