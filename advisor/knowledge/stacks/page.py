"""The packs to be read: options of a rule by framework, and the page of all frameworks."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.knowledge.stacks import Option, Pack, packs, pinned

HEADINGS = ("Framework", "Option", "Versions", "What to do")


def rows_of(rule: str) -> list[tuple[str, ...]]:
    """What each framework has for a rule, a row an option."""
    return [(pack.name, option.option, versions(option), option.does) for pack in packs().values() for option in pack.options if option.rule == rule]


def versions(option: Option) -> str:
    """Which versions have it, as people say it."""
    ends = f"before {option.until}, then {option.replaced_by}" if option.until else ""
    return "; ".join(filter(None, (f"since {option.since}" if option.since else "", ends))) or "all that were read"


def explained(pack: Pack, rule: str) -> str:
    """All that a pack says for a rule, as text; "" if it has nothing."""
    return "\n\n".join("\n".join(_lines(option)) for option in pack.options if option.rule == rule)


def _lines(option: Option) -> Iterator[str]:
    yield f"{option.option} ({versions(option)})"
    yield from (f"  {step}" for step in (option.does, *option.then))
    for name, text in (
        ("In place of", ", ".join(text.rstrip("(") for text in option.stands_for)),
        ("For", option.when),
        ("Loop", option.loop),
        ("Default", option.default),
        ("Leave alone", option.leave),
        ("Side effects", option.effects),
    ):
        if text:
            yield f"  {name}: {text}"
    yield from (f"  - {line}" for line in option.before.splitlines())
    yield from (f"  + {line}" for line in option.after.splitlines())
    yield f"  {option.url}"


def as_markdown() -> str:
    """docs/frameworks.md."""
    lines = [_INTRODUCTION, "", "| Framework | Called | Names read in | Options |", "|---|---|---|---|"]
    lines += [
        f"| [{pack.name}](#{pack.package}) | {', '.join(f'`{name}`' for name in (pack.package, *pack.aliases))} | {', '.join(pinned()[pack.package].versions)} | {len(pack.options)} |"
        for pack in packs().values()
    ]
    for pack in packs().values():
        lines += [
            "",
            f'<a id="{pack.package}"></a>',
            "",
            f"## {pack.name}",
            "",
            "| Rule | Option | Versions | What to do | Default | Side effects |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            "| "
            + " | ".join(
                _cell(text)
                for text in (f"`{o.rule}`{f' ({o.when})' if o.when else ''}", f"`{o.option}`", versions(o), o.does, o.default, f"{o.effects} {o.leave}".strip())
            )
            + " |"
            for o in pack.options
        ]
        costing = [o for o in pack.options if o.seen]
        lines += [f"\nNamed as the cause if the trace shows it: {', '.join(f'`{o.option}`' for o in costing)}." for _ in costing[:1]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_INTRODUCTION = """# Fixes in the words of a framework

Generated from `advisor/knowledge/stacks/*.toml` by `python -m advisor.knowledge.stacks --page > docs/frameworks.md`.

The framework changes no finding. If it is known, its own option replaces the fix's first step and the code, with the version that added it.
`advisor record` and `advisor.trace_handler` record the frameworks that the program has imported, and the loops that run. In other traces, Python
frames, names of ops and named ranges identify a framework. `--framework NAME[=VERSION]`, or `framework` in `[tool.advisor]`, overrules both. Without any
of them, fixes are for plain PyTorch, and in a program of JAX for JAX. `advisor explain RULE --framework NAME` prints all options of a framework for a rule.

In the JSON, `framework` names the framework, and `fix.stack` the option of a fix.

`names.json` holds the names of all options in the versions below. They were read from the packages' syntax trees, which imports nothing. Flags of XLA
were searched in its compiled library. A test compares each printed option with them. `python -m advisor.knowledge.stacks --check` reads the newest
packages, and prints names that are gone, renamed or new. PyPI serves a stub of TensorRT-LLM: its names were read in its repository."""
