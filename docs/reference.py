"""Writes reference.md: what commands, exit codes, settings and public names there are, as the code has them.

python docs/reference.py > docs/reference.md
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import typer

import advisor
from advisor.cli import app
from advisor.engine.settings import EXAMPLE, FORMS
from advisor.errors import EXIT_CODES

HEAD = """# Reference

Written by `python docs/reference.py > docs/reference.md`.
"""

TASKS = """
## Tasks

| Command | What it does |
|---|---|
| `advisor analyze TRACE` | prints a summary and writes the page `TRACE.advisor.html` into the current folder |
| `advisor analyze TRACE -f markdown -o -` | prints a single format: `text`, `html`, `markdown`, `json`, `perfetto`, `sarif`, `junit` or `gitlab` |
| `advisor analyze TRACE -o report.html -o report.json` | writes several files from one analysis; the suffix names the format |
| `advisor analyze A B C --each` | analyses several recordings, or a directory or quoted pattern of them, one page each |
| `advisor analyze TRACE --step-ms 2.8` | uses a step time that you measured without a profiler |
| `advisor analyze TRACE -f json --brief` | prints what bounds the step and three things to do, in 2 kB ([agents](agents.md)) |
| `advisor analyze TRACE --waits` | lists every call that waits for the GPU: its line, how often, and what replaces it |
| `advisor analyze TRACE --compile-log DIR` | lists graph breaks and recompilations of torch.compile by line, with their cost per step ([report](report.md)) |
| `advisor analyze TRACE --kernels x.ncu-rep` | adds Nsight Compute's counters: why a kernel is slow, and what that costs the step ([kernels](kernels.md)) |
| `advisor analyze TRACE --capture capture_traces` | names the ops, modules and shapes of what CUDA graphs replay ([serving](serving.md)) |
| `advisor analyze TRACE --serving metrics.txt` | shows what clients of the server measured, and whether the traced steps are of that state ([serving](serving.md)) |
| `advisor analyze snapshot.pickle` | reads a memory snapshot: what holds the peak, what leaks, what a fix frees ([memory](memory.md)) |
| `advisor analyze JOB_DIR` | reads the traces of many ranks as one job ([jobs](jobs.md)) |
| `advisor analyze JOB_DIR --shard 3/8 -o parts/`, `advisor merge parts/` | splits a job's traces over machines, then merges their summaries |
| `advisor analyze TRACE --fail-on medium` | exits with 1 if a finding is that severe |
| `advisor analyze TRACE --rules mine.py` | adds your own rules ([own rules](own-rules.md)) |
| `advisor check TRACE --baseline B` | holds a trace against the budgets of `pyproject.toml` ([CI](ci.md)) |
| `advisor diff BEFORE AFTER` | says what changed; several captures a side give the noise |
| `advisor diff A B --across` | compares a program on two devices or frameworks, each against its own peaks |
| `advisor history perf/ --add TRACE` | keeps a report for each commit and shows the trend |
| `advisor record -- python train.py` | times steps without a profiler, then records a few ([lab](lab.md#recording)) |
| `advisor try -- python train.py` | measures what each fix of the report gains on your own program, beside what was predicted ([try](try.md)) |
| `advisor verify --before CMD --after CMD` | measures what a change gains; `--finding report.json#launch-gap-1` compares it with the prediction |
| `advisor bench module:function …` | times functions side by side |
| `advisor attention` | measures ways to compute attention on this machine |
| `advisor convert IN OUT.trace.zst` | writes a trace as columns: a fifth of the size, opened without parsing ([recording](recording.md#smaller-files)) |
| `advisor redact IN OUT` | writes a copy to share, without paths, hosts, users, command lines and environment ([security](security.md)) |
| `advisor report saved.json -f html` | renders a saved report |
| `advisor rules`, `advisor explain RULE` | lists the rules; prints a rule's page |
| `advisor explain RULE trace.json` | says what a rule sees in a trace: the value, the threshold, the checks |
| `advisor explain --views trace.json` | lists the views and rules behind a report, and how many ms each took |
| `advisor validate DIR` | compares predicted with measured savings ([accuracy](accuracy.md)) |
| `advisor init` | writes budgets, `.mcp.json` and a GitHub workflow, each after a question |
| `advisor skill --install DIR` | copies the skill for agents into their directory of skills ([agents](agents.md)) |
| `advisor mcp --root DIR` | serves the traces of a folder to agents over the Model Context Protocol |
| `advisor schema` | prints the JSON Schema of a report |
| `advisor --install-completion` | completes commands, options and rules in bash, zsh and fish |

`advisor` overwrites only files that it wrote itself. `--force` overwrites any file.
"""


def commands() -> Iterator[str]:
    """Each command with its arguments and options, and the help of each."""
    yield "\n## Options\n"
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield f"\n### `advisor {name}`\n\n{_paragraphs(command.help or '')}\n"
        yield "\n| Argument or option | What it does |\n|---|---|\n"
        for parameter in command.params:
            if parameter.name != "help":
                called = parameter.name.upper() if parameter.param_type_name == "argument" else ", ".join(parameter.opts)
                yield f"| `{called}` | {_cell(getattr(parameter, 'help', None) or '')} |\n"


def exit_codes() -> Iterator[str]:
    yield "\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n"
    yield from (f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())


def settings() -> Iterator[str]:
    yield "\n## Settings\n\nOf `[tool.advisor]` in the nearest `pyproject.toml`, or of the file that `--config` names.\n"
    yield "\n| Setting | Holds |\n|---|---|\n"
    yield from (f"| `{name}` | {_cell(form)} |\n" for name, (_, form) in FORMS.items())
    yield f"\n```toml{EXAMPLE}```\n\n`advisor explain RULE` lists a rule's options. [CI](ci.md) has the budgets.\n\n`devices` gives the dense peak rates of a card under the name that the trace has. The rates of an unlisted card are estimated\nfrom its generation, its SM count and a usual clock.\n"


def library() -> Iterator[str]:
    """Each public function and type with the first sentence of its docstring."""
    yield "\n## Library\n\n`import advisor` costs nothing until a name is used. Functions that measure need the extra `lab`.\n"
    yield "\n| Name | What it is |\n|---|---|\n"
    for name in advisor.__all__:
        value = getattr(importlib.import_module(advisor._HOMES[name]), name)  # advisor.compare is the package once that is imported
        called = f"{name}()" if inspect.isroutine(value) else name
        yield f"| `advisor.{called}` | {_cell(_first_sentence(inspect.getdoc(value) or ''))} |\n"
    yield LIBRARY


LIBRARY = """
```python
import advisor

report = advisor.analyze("trace.json.gz")
for finding in report.findings:
    print(finding.rule, finding.saving.expected_us, finding.fix.title)

change = advisor.compare(advisor.analyze("before.json.gz"), report)   # or lists of captures; rows sum to the change
print(change.summary)

timeline = advisor.load("trace.json.gz")            # tables of numpy columns, times in µs; each has to_pandas()
timeline.gpu_ops.to_pandas().groupby("name", observed=True).dur_us.sum().nlargest(5)
```
"""


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<!al)\. ", paragraph)[0].rstrip(".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    return "".join((HEAD, TASKS, *commands(), *exit_codes(), *settings(), *library())).rstrip()


if __name__ == "__main__":
    print(page())
