"""For mkdocs: the start page from README.md, a page for each rule from its docstring; links that leave the site become text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from advisor.engine.rule import catalog
from advisor.engine.rule_pages import list_as_markdown, page_as_markdown

_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds index.md, changelog.md and rules/*.md to the site."""
    top = Path(config["config_file_path"]).parent
    for name, source in (("index.md", "README.md"), ("changelog.md", "CHANGELOG.md")):
        text = top.joinpath(source).read_text(encoding="utf-8").replace("](docs/", "](").replace("](rules/README.md", "](rules/index.md")
        files.append(File.generated(config, name, content=text))
    known = sorted(catalog().values(), key=lambda rule: rule.id)
    for rule in known:
        files.append(File.generated(config, f"rules/{rule.id}.md", content=page_as_markdown(rule)))
    files.append(File.generated(config, "rules/index.md", content=list_as_markdown(known, "{id}.md")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """What a link leads to that is not part of the site is named, not linked: a checkout holds it."""
    here = Path(page.file.src_uri).parent
    known = {file.src_uri for file in files}

    def kept(match: re.Match[str]) -> str:
        text, target = match[1], match[2].partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        parts: list[str] = []
        for part in (here / target).parts:
            parts = parts[:-1] if part == ".." and parts else [*parts, part]
        return match[0] if "/".join(parts) in known else text

    return _LINK.sub(kept, markdown)
