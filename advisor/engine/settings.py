"""A team's settings: thresholds, rules turned off, findings allowed with a reason, rules of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.engine.rule import Rule
from advisor.errors import UsageError, unknown_name
from advisor.knowledge.devices import Peaks, own
from advisor.knowledge.stacks import named, number, packs
from advisor.views.trace.stack import GivenFramework

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN_RULES = "ADVISOR_OWN_RULES"
"""Of the environment: set to no, settings that name rules are refused, since those are Python files that would be run."""

EXAMPLE = """
[tool.advisor]
disable = ["low-arithmetic-intensity"]
framework = "lightning"
rules = ["perf/our_rules.py"]
allow = { "sync-stall" = "the loss decides about early stopping" }

[tool.advisor.options.launch-gap]
min_idle_share = 0.2

[tool.advisor.budgets]
step_ms = 25.0

[tool.advisor.devices."NVIDIA GeForce RTX 4070 Laptop GPU"]
fp16_tflops = 62  # dense, FP32 accumulation
memory_gbps = 256
"""

FORMS: dict[str, tuple[type, str]] = {
    "disable": (list, "a list of rules"),
    "options": (dict, "a table of options by rule"),
    "allow": (dict, 'a table of reasons by rule: allow = { "sync-stall" = "why it may stay" }'),
    "rules": (list, "a list of files"),
    "budgets": (dict, "a table of limits"),
    "devices": (dict, "a table of rates by device"),
    "framework": (str, 'a name, or a name and a version: framework = "transformers=4.57.1"'),
}
"""Each setting, what it is in TOML, and that in words."""


class Settings(msgspec.Struct, frozen=True):
    """The table `[tool.advisor]`. options: by rule id. allow: reason by rule id. rules: files with a team's rules. budgets: limits, read by
    `advisor.compare.budgets`. devices: peak rates, which override known devices. framework: the program's framework, which overrides the recording.
    """

    disable: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    allow: Mapping[str, str] = msgspec.field(default_factory=dict)
    rules: tuple[Path, ...] = ()
    path: Path | None = None
    budgets: Mapping[str, Any] = msgspec.field(default_factory=dict)
    devices: tuple[Peaks, ...] = ()
    framework: GivenFramework | None = None

    def check(self, known: Mapping[str, Rule]) -> None:
        """Raises UsageError if a rule or an option that is named does not exist, or a value has the wrong type or is out of range."""
        for rule in (*self.disable, *self.options, *self.allow):
            if rule not in known:
                raise UsageError(f"{self.path} names a rule {rule!r} that does not exist", f"Rules are: {', '.join(sorted(known))}.")
        for rule, options in self.options.items():
            self._check(known[rule], options)

    def _check(self, rule: Rule, options: Mapping[str, Any]) -> None:
        try:
            rule.settled(options)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error.message}", error.hint) from None


def load(path: Path | None = None, start: Path | None = None) -> Settings:
    """The settings of a file, or of the nearest pyproject.toml at or above `start` (the current directory) that has any.

    A file holds `[tool.advisor]`, or the same keys at its top. Raises UsageError if it cannot be read or names a key that means nothing.
    """
    if path is not None:
        table = _read(path)
        return _settings(table.get("tool", {}).get("advisor", table) if isinstance(table.get("tool", {}), dict) else table, path)
    for candidate in _nearest_settings(start or Path.cwd()):
        table = _read(candidate).get("tool", {}).get("advisor")
        if table is not None:
            return _settings(table, candidate)
    return Settings()


def _nearest_settings(start: Path) -> Iterator[Path]:
    for directory in (start.resolve(), *start.resolve().parents):
        if (directory / "pyproject.toml").is_file():
            yield directory / "pyproject.toml"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Give the path of a TOML file.") from None
    except (ValueError, RecursionError) as error:  # damaged, not UTF-8, numbers of thousands of digits, nested without end
        raise UsageError(f"{path} is no TOML file: {error}", f"Settings look like this:{EXAMPLE}") from None


def _settings(table: Any, path: Path) -> Settings:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [tool.advisor] is no table", f"Settings look like this:{EXAMPLE}")
    for key, value in table.items():
        if key not in FORMS:
            raise unknown_name("setting", str(key), FORMS, where=f"{path}: ")
        kind, form = FORMS[key]
        if not isinstance(value, kind):
            raise UsageError(f"{path}: {key} has to be {form}", f"Settings look like this:{EXAMPLE}")
    if table.get("rules") and os.environ.get(OWN_RULES) == "no":
        raise UsageError(f"{path}: rules are code, which is not run here ({OWN_RULES}=no)", "Remove rules from the settings, or run in a trusted environment.")
    allow = table.get("allow", {})
    for rule, reason in allow.items():
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f"{path}: allow.{rule} gives no reason", "Give a reason: the report shows it.")
    if not all(isinstance(o, dict) for o in table.get("options", {}).values()):
        raise UsageError(f"{path}: options are tables by rule", f"Settings look like this:{EXAMPLE}")
    return Settings(
        tuple(map(str, table.get("disable", ()))), table.get("options", {}), allow,
        tuple(path.parent / str(p) for p in table.get("rules", ())), path, table.get("budgets", {}), _devices(table.get("devices", {}), path),
        framework_named(table["framework"], f"{path}: ") if "framework" in table else None,
    )  # fmt: skip


def framework_named(text: str, where: str = "") -> GivenFramework:
    """A framework that the user names, as `transformers` or `hf=4.57.1`. Raises UsageError if there is no pack of it, or no such version."""
    name, _, version = text.partition("=")
    pack = named(name.strip())
    if pack is None:
        raise unknown_name("framework", name, packs(), where=where)
    if version and not number(version):
        raise UsageError(f"{where}{version!r} is no version", f"Name it as {pack.package}=1.2.3, or {pack.package} alone.")
    return GivenFramework(pack.package, version)


def _devices(table: Mapping[str, Any], path: Path) -> tuple[Peaks, ...]:
    try:
        return tuple(own(name, dict(rates), f"{path.name}, [tool.advisor.devices]") for name, rates in table.items())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: devices: {error}", f"Settings look like this:{EXAMPLE}") from None
