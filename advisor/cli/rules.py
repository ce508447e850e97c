"""Commands on rules: their list, and the page of one or what it says of a trace."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.terminal import ConfigOption, FrameworkOption, RulesOption, progress_of, rule_names
from advisor.errors import no_such

if TYPE_CHECKING:
    from advisor.engine.rule import Rule
    from advisor.engine.settings import Settings
    from advisor.recordings.recording import Recording


def rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the pages of all rules as Markdown.")] = False,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """List the rules, one a line."""
    from advisor.engine import settings
    from advisor.engine.rule import catalog, pages_as_markdown

    known = sorted(catalog((*settings.load(config).rules, *(rules or ()))).values(), key=lambda r: r.id)
    print(pages_as_markdown(known) if markdown else "\n".join(f"{item.id:28} {item.title}" for item in known))


def explain(
    rule: Annotated[str, typer.Argument(help="The id of a rule, as `advisor rules` lists it.", autocompletion=rule_names)],
    trace: Annotated[str | None, typer.Argument(help="A trace: say what the rule sees there, and why it is quiet if it is.")] = None,
    views: Annotated[bool, typer.Option("--views", help="Of a trace: list the views that its report is made of, from what, and the ms each took.")] = False,
    framework: FrameworkOption = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the page of a rule, or what the rule says of one trace.

    Of a trace: the value, the threshold, and what it rests on; with --views TRACE (no rule is needed), what all of that is made of. Of a framework:
    its own switch for what the rule finds.
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
        raise no_such("rule", rule, known, listed_by="advisor rules")
    found = known[rule]
    options = {**found.options, **chosen_settings.options.get(rule, {})}
    if trace is not None:
        from advisor.engine.rule_applicability import check_fits
        from advisor.engine.run import run
        from advisor.reports.report._why import why
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
        print(why(report, rule, options, found.relies_on))
        return
    if framework is not None and chosen_settings.framework is not None:
        from advisor.knowledge.stacks import packs
        from advisor.knowledge.stacks.page import explained

        pack = packs()[chosen_settings.framework.package]
        print(f"{rule}: {found.title}\n\n{explained(pack, rule) or f'{pack.name} has no switch of its own for it: what the page says holds as it is.'}")
        return
    print(f"{rule}: {found.page}")
    if options:
        print("\nOptions")
        for name, value in options.items():
            print(f"{name} = {value}")
    if found.table:
        title, (_, *rows) = found.table()
        print(f"\n{title}")
        for name, *cells in rows:
            print(f"\n{name}: {cells[0]}")
            print("\n".join(wrap(" ".join(cells[1:]), 100, initial_indent="    ", subsequent_indent="    ")))


def _print_views(trace: str | Recording, rules: list[Rule], chosen: Settings) -> None:
    """The plan of a report: of all rules of a trace that is still to be read, or of the recording and the rules that are given."""
    from advisor.engine.run import analysis
    from advisor.reports.report._plan import plan
    from advisor.sources import read

    recording = read(trace) if isinstance(trace, str) else trace
    print(plan(analysis(recording, rules, chosen.options, chosen.allow, devices=chosen.devices).plan))
