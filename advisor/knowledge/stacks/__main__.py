"""`python -m advisor.knowledge.stacks --check`: the packs against the newest packages. `--pin` writes the names of given versions anew, `--page` docs/frameworks.md."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.knowledge.stacks import PINNED, Pack, as_stored, packs, pinned
from advisor.knowledge.stacks.check import differences, pinned_from, read_version, refused
from advisor.knowledge.stacks.page import as_markdown


def main() -> int:
    """0 if every option that a report prints exists in the newest packages, else 1."""
    parser = argparse.ArgumentParser(prog="python -m advisor.knowledge.stacks", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print names that are gone, renamed or new in the newest packages")
    parser.add_argument("--pin", action="store_true", help="write the names of these versions into names.json")
    parser.add_argument("--page", action="store_true", help="print docs/frameworks.md")
    parser.add_argument(
        "--archives",
        type=Path,
        help="keep packages in this folder and look for them there; PACKAGE-VERSION may be a checkout of a package that PyPI does not serve",
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE[=VERSION,…]", help="all that are served, by default")
    given = parser.parse_args()
    if given.check + given.pin + given.page != 1:
        parser.error("say --check, --pin or --page")
    if given.page:
        print(as_markdown(), end="")
        return 0
    wanted = {name: versions.split(",") if versions else [] for name, _, versions in (text.partition("=") for text in given.packages)}
    if unknown := wanted.keys() - packs().keys():
        parser.error(f"there is no pack of {', '.join(sorted(unknown))}; there are: {', '.join(packs())}")
    chosen = [pack for name, pack in packs().items() if name in wanted or (not wanted and pack.archive != "checkout")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.archives or Path(temporary)
        return _check(chosen, wanted, folder) if given.check else _pin(chosen, wanted, folder)


def _check(chosen: Iterable[Pack], wanted: dict[str, list[str]], folder: Path) -> int:
    wrong = 0
    for pack in chosen:
        try:
            version, names = read_version(pack, (wanted.get(pack.package) or [""])[-1], folder)
        except AdvisorError as error:
            print(f"{pack.name}: {error.message}")
            wrong += 1
            continue
        before = pinned()[pack.package]
        changed, missing = [*differences(pack, before, names)], refused(pack, version, names)
        print(f"{pack.name} {version}: {len(pack.options)} options, {len(missing)} refused; since {before.versions[-1]} {len(changed)} names changed")
        for difference in (*missing, *changed):
            print(f"  {difference}")
        wrong += len(missing)
    return 1 if wrong else 0


def _pin(chosen: Iterable[Pack], wanted: dict[str, list[str]], folder: Path) -> int:
    held = dict(pinned()) if PINNED.exists() else {}
    for pack in chosen:
        versions = wanted.get(pack.package) or list(held[pack.package].versions if pack.package in held else ())
        held[pack.package] = made = pinned_from([read_version(pack, version, folder) for version in versions or [""]])
        print(f"{pack.name}: {', '.join(made.versions)}: {sum(map(len, made.names.values()))} names")
    PINNED.write_bytes(as_stored(held))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
