"""Commands on rules: their list, and the page of a rule or its result on a trace."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.terminal import ConfigOption, FrameworkOption, RulesOption, progress_of, rule_names
from advisor.errors import unknown_name
from advisor.knowledge.structs import replace

MEASURED = "How it is measured"

if TYPE_CHECKING:
    from advisor.engine.rule import Rule
    from advisor.engine.settings import Settings
    from advisor.recordings.recording import Recording


def rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as Markdown, by group.")] = False,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """List the rules."""
    from advisor.engine import settings
    from advisor.engine.rule import catalog
    from advisor.engine.rule_pages import list_as_markdown

    known = sorted(catalog((*settings.load(config).rules, *(rules or ()))).values(), key=lambda r: r.id)
    print(list_as_markdown(known) if markdown else "\n".join(f"{item.id:28} {item.title}" for item in known))


def explain(
    rule: Annotated[str, typer.Argument(help="The id of a rule, as `advisor rules` lists it.", autocompletion=rule_names)],
    trace: Annotated[str | None, typer.Argument(help="A trace: print the rule's result for it, with the reason if nothing is found.")] = None,
    method: Annotated[bool, typer.Option("--method", help="Print how the rule measures, with all assumptions and tables.")] = False,
    views: Annotated[bool, typer.Option("--views", help="With a trace: list the views of its report, their inputs, and the ms of each.")] = False,
    framework: FrameworkOption = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the page of a rule, or its result for a trace.

    With a trace: the measured value, the threshold, and the checks behind them. With --views TRACE (no rule is needed): the views of the report.
    With --framework: the framework's own option for this problem.
    """
    from advisor.engine import settings
    from advisor.engine.rule import catalog

    chosen_settings = settings.load(config)
    if framework is not None:
        chosen_settings = replace(chosen_settings, framework=settings.framework_named(framework, "--framework: "))
    known = catalog((*chosen_settings.rules, *(rules or ())))
    if views and trace is None:
        _print_views(rule, [item for item in known.values() if item.id not in chosen_settings.disable], chosen_settings)
        return
    if rule not in known:
        raise unknown_name("rule", rule, known, listed_by="advisor rules")
    found = known[rule]
    options = {**found.options, **chosen_settings.options.get(rule, {})}
    if trace is not None:
        from advisor.engine.rule_applicability import check_fits
        from advisor.engine.run import run
        from advisor.reports.report._why import explain_outcome
        from advisor.sources import read

        with progress_of(trace) as progress:
            recording = read(trace, progress=progress)
        check_fits(recording, [found])
        if views:
            _print_views(recording, [found], chosen_settings)
            return
        # The others run too: what bounds the program, and which fix already gains this, only all of them tell.
        every = [item for item in known.values() if item is found or item.id not in chosen_settings.disable]
        report = run(recording, every, chosen_settings.options, chosen_settings.allow, devices=chosen_settings.devices, framework=chosen_settings.framework)
        print(explain_outcome(report, rule, options, found.relies_on))
        return
    if framework is not None and chosen_settings.framework is not None:
        from advisor.knowledge.stacks import packs
        from advisor.knowledge.stacks.page import explained

        pack = packs()[chosen_settings.framework.package]
        print(f"{rule}: {found.title}\n\n{explained(pack, rule) or f'{pack.name} has no switch of its own for it: what the page says holds as it is.'}")
        return
    print(shown_method(found) if method else shown_page(found, options))


def shown_page(rule: Rule, options: dict[str, object]) -> str:
    """A rule's page and its options, which fit a screen."""
    text = f"{rule.id}: {rule.page}"
    if "`low`" in rule.page:
        text += "\n\nThe range of a saving is `low` to `high`; `expected` is the most likely value."
    if options:
        text += "\n\n" + "\n".join(wrap("Options: " + ", ".join(f"{name} = {value}" for name, value in options.items()), 110))
    return f"{text}\n\nMore: advisor explain {rule.id} --method" if rule.method or rule.table else text


def shown_method(rule: Rule) -> str:
    """How a rule measures: the section of its page, the rest, and the table that it looks things up in."""
    _, _, section = rule.page.partition(f"\n{MEASURED}\n")
    parts = [f"{rule.id}: {rule.title}", f"{MEASURED}\n{section.partition(f'{chr(10)}References{chr(10)}')[0].strip()}", rule.method]
    if rule.table:
        title, (_, *rows) = rule.table()
        parts.append(title)
        parts += [f"{name}: {first}\n" + "\n".join(wrap(" ".join(rest), 100, initial_indent="    ", subsequent_indent="    ")) for name, first, *rest in rows]
    return "\n\n".join(part for part in parts if part)


def _print_views(trace: str | Recording, rules: list[Rule], chosen: Settings) -> None:
    """The plan of a report: of all rules of a trace that is still to be read, or of the recording and the rules that are given."""
    from advisor.engine.run import analysis
    from advisor.reports.report._plan import plan
    from advisor.sources import read

    recording = read(trace) if isinstance(trace, str) else trace
    print(plan(analysis(recording, rules, chosen.options, chosen.allow, devices=chosen.devices).plan))
