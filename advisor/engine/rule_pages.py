"""Rules' pages as documents: a list of all rules, and each rule's page in Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from advisor.engine.page_sections import SECTIONS
from advisor.engine.rule import Rule
from advisor.knowledge.data import read
from advisor.knowledge.stacks.page import HEADINGS, rows_of

_OTHERS = "Others"
"""The group of rules that no group names, such as a team's own."""


def groups(folder: Path) -> Mapping[str, list[str]]:
    """Ids of rules by group, from `groups.toml` in their folder."""
    return read(folder / "groups.toml")


def list_as_markdown(rules: Iterable[Rule], link: str = "{module}.py") -> str:
    """All rules by group, a line each. link: the target of a rule's link, with its {id} or {module}."""
    known = {rule.id: rule for rule in rules}
    named = groups(Path(inspect.getfile(inspect.unwrap(next(iter(known.values())).function))).parent) if known else {}
    grouped = {title: [known[rule] for rule in ids if rule in known] for title, ids in named.items()}
    others = {_OTHERS: [rule for rule in known.values() if not any(rule.id in ids for ids in named.values())]}
    lines = ["# Rules", "", "`advisor explain RULE` prints a rule's page. This list is written by `advisor rules --markdown > rules/README.md`."]
    for title, members in {**grouped, **others}.items():
        if members:
            lines += ["", f"## {title}", ""]
            lines += [f"- [`{rule.id}`]({link.format(id=rule.id, module=rule.id.replace('-', '_'))}): {rule.title}" for rule in members]
    return "\n".join(lines)


def page_as_markdown(rule: Rule) -> str:
    """A rule's page, its method, tables and options as a Markdown document."""
    return "\n".join(_page_lines(rule))


def _page_lines(rule: Rule) -> Iterator[str]:
    yield from (f"# {rule.id}", "", f"**{rule.title}**")
    reference = False
    for line in rule.page.split("\n")[1:]:
        if line in SECTIONS:
            reference = line == SECTIONS[-1]
            yield from (f"## {line}", "")
        else:
            yield f"- {line}" if reference and line else line
    if rule.method:
        yield from ("", "## Method in detail", "", rule.method)
    if rule.table:
        title, (headings, *rows) = rule.table()
        yield from ("", f"**{title}**", "", *_table(headings, rows))
    if rows_of(rule.id):
        yield from ("", "## Options of frameworks", "", *_table(HEADINGS, [(name, f"`{option}`", *rest) for name, option, *rest in rows_of(rule.id)]))
    yield from ("", "Options: " + ", ".join(f"`{name}` = {value}" for name, value in rule.options.items()) + ".")


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
