"""A rule's page, as blocks that a format can lay out."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from typing import Literal, NamedTuple

from advisor.errors import AdvisorError
from advisor.knowledge.expressions import expression
from advisor.reports._clean import visible

_HEADING = expression(r"(#{1,6})\s+(?P<text>.+?)\s*#*$")
_LINK = expression(r"https?://\S+")
_RULER = expression(r"[|: -]+")
_ITEM = expression(r"\s*(?:[-*•]|\d+[.)])\s+")


class Block(NamedTuple):
    """A piece of a page. A list and links have a text per item, a table has a text per row; the others have a single text."""

    kind: Literal["heading", "paragraph", "list", "links", "code", "table"]
    texts: tuple[str, ...]


def page(rule: str) -> str | None:
    """The page of a rule, or None if it is not installed here (a saved report may name a team's rule)."""
    from advisor.engine import rule as catalog  # finds the rules, which import what they compute with

    try:
        return catalog.page(rule)
    except AdvisorError:  # some plug-in is malformed: no reason to show no report
        return None


def page_blocks(rule: str, most: int) -> list[Block]:
    """The first characters of a rule's page in blocks, without its first line, its title; none if there is no page."""
    from advisor.engine.page_sections import SECTIONS

    _, _, text = (page(rule) or "").partition("\n")
    return blocks(text[:most], SECTIONS)


def blocks(text: str, sections: Collection[str]) -> list[Block]:
    """The page in blocks: the titles of `sections` and `#` headings, fenced or indented code, lists, paragraphs."""
    made: list[Block] = []
    lines = textwrap.dedent(visible(text, lines=True).expandtabs(4)).strip("\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif line.lstrip().startswith("```"):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].lstrip().startswith("```")), len(lines))
            made.append(Block("code", (textwrap.dedent("\n".join(lines[at + 1 : end])),)))
            at = end + 1
        elif line.startswith("    "):
            end = next((n for n in range(at, len(lines)) if lines[n].strip() and not lines[n].startswith("    ")), len(lines))
            made.append(Block("code", (textwrap.dedent("\n".join(lines[at:end])).strip("\n"),)))
            at = end
        elif match := _HEADING.match(line):
            made.append(Block("heading", (match["text"],)))
            at += 1
        elif line.strip() in sections:
            made.append(Block("heading", (line.strip(),)))
            at += 1
        else:
            end = next((n for n in range(at + 1, len(lines)) if _breaks(lines, n, sections)), len(lines))
            made.append(_prose(lines[at:end]))
            at = end
    return made


def cells(row: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in row.strip("|").split("|")]


def section(page: list[Block], title: str) -> list[Block]:
    """What is under a heading, without it."""
    start, end = _bounds(page, title)
    return page[start + 1 : end]


def without_section(page: list[Block], title: str) -> list[Block]:
    """The page without one section."""
    start, end = _bounds(page, title)
    return page[:start] + page[end:]


def _bounds(page: list[Block], title: str) -> tuple[int, int]:
    heading = Block("heading", (title,))
    start = page.index(heading) if heading in page else len(page)
    return start, next((at for at in range(start + 1, len(page)) if page[at].kind == "heading"), len(page))


def _breaks(lines: list[str], at: int, sections: Collection[str]) -> bool:
    """Whether a paragraph or list ends before this line."""
    starts_list = bool(_ITEM.match(lines[at])) and not _ITEM.match(lines[at - 1]) and not lines[at - 1].startswith("  ")
    return not lines[at].strip() or lines[at].strip() in sections or lines[at].lstrip().startswith("```") or bool(_HEADING.match(lines[at])) or starts_list


def _prose(lines: list[str]) -> Block:
    """Links if a line is a link, a table or a list if the first line is a row or an item; else a paragraph."""
    if any(_LINK.fullmatch(line.strip()) for line in lines):
        return Block("links", tuple(line.strip() for line in lines))
    if lines[0].lstrip().startswith("|"):
        return Block("table", tuple(line.strip() for line in lines if not _RULER.fullmatch(line.strip())))
    if not _ITEM.match(lines[0]):
        return Block("paragraph", (" ".join(line.strip() for line in lines),))
    items: list[str] = []
    for line in lines:
        if match := _ITEM.match(line):
            items.append(line[match.end() :].strip())
        else:
            items[-1] += " " + line.strip()
    return Block("list", tuple(items))
