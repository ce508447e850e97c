"""Definitions whose name says nothing: `_of`, `beside`, `and_again`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.wording.areas import trees

FUNCTION_WORDS = frozenset(
    ["a", "about", "above", "across", "after", "again", "against", "all", "alone", "along", "already", "also", "among", "an", "and", "any", "apart", "are", "around", "as", "at", "away", "back", "be", "been", "before", "behind", "below", "beside", "besides", "between", "beyond", "both", "but", "by", "can", "could", "did", "do", "does", "down", "during", "each", "else", "even", "ever", "every", "except", "few", "fewer", "for", "from", "had", "has", "have", "here", "how", "i", "if", "in", "inside", "into", "is", "it", "its", "least", "less", "many", "may", "might", "more", "most", "much", "must", "near", "never", "no", "none", "nor", "not", "nothing", "now", "of", "off", "on", "once", "one", "ones", "only", "onto", "or", "other", "others", "out", "outside", "over", "per", "same", "shall", "should", "since", "so", "some", "still", "such", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too", "twice", "under", "until", "up", "upon", "us", "via", "was", "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "within", "without", "would", "yet", "you"]
)  # fmt: skip


def nameless() -> Iterator[tuple[str, str]]:
    """Each definition of which the name is function words alone, and where it is."""
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and not node.name.startswith("__") and is_empty(node.name):
                yield f"{name}:{node.lineno}", node.name


def is_empty(name: str) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]
    return bool(words) and all(word in FUNCTION_WORDS for word in words)
