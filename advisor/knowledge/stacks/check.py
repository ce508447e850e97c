"""Holds the packs against what the frameworks' own packages have: what is gone, renamed or new in the newest, and whether every printed option is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from advisor.errors import UsageError
from advisor.knowledge.stacks import Form, Option, Pack, Pinned, number
from advisor.knowledge.stacks.spelled import Archive, Names, names_in

_WHEEL = ("--only-binary", ":all:", "--python-version", "3.12")
"""A wheel of that Python or of any: one that is read need not run here."""
_SDIST = ("--no-binary", ":all:", "--no-build-isolation", "--no-clean")


class Difference(NamedTuple):
    """What is not as it was read before: gone, renamed (to what), new, or another default (which), of `owner.name`."""

    what: str
    name: str
    now: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.name}{f', now {self.now}' if self.now else ''}"


def download(package: str, form: Form, version: str, into: Path) -> tuple[Archive, str]:
    """The archive of a package's version, "" for the newest, and which version that is; of those in the folder if it is there. Raises UsageError if no index serves it.

    Where a source distribution says what it is by code that needs more than is here, pip leaves what it unpacked: that is read.
    """
    if version and (there := _cached_archive(package, version, into)):
        return Archive(there), version
    fresh = Path(tempfile.mkdtemp(dir=into))
    spec = f"{package}=={version}" if version else package
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    command += [*(_SDIST if form == "sdist" else _WHEEL), "-d", str(fresh), spec]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(fresh)}, capture_output=True, text=True, check=False)
    unpacked = [child for path in fresh.iterdir() if path.is_dir() for child in path.iterdir() if (child / "PKG-INFO").exists()]
    found = [path for path in fresh.iterdir() if path.name.endswith((".whl", ".tar.gz"))] or unpacked
    if not found:
        raise UsageError(f"{spec} could not be downloaded: {done.stderr.strip()[-200:]}", "See whether pip reaches the package index.")
    known = _version_of(found[0])
    kept = into / (found[0].name if found[0].is_file() else f"{package}-{known}")
    if not kept.exists():
        found[0].rename(kept)
    shutil.rmtree(fresh)
    return Archive(kept), known


def _cached_archive(package: str, version: str, folder: Path) -> Path | None:
    """The archive of a version, where an earlier call left it."""
    begins = f"{package}-{version}", f"{package.replace('-', '_')}-{version}"
    return next(
        (path for path in sorted(folder.iterdir()) for start in begins if path.name.startswith((f"{start}-", f"{start}.tar")) or path.name == start), None
    )


def _version_of(path: Path) -> str:
    if path.is_dir():  # a source distribution as pip unpacked it
        told = re.search(r"^Version: (\S+)", (path / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE)
        return told[1] if told else ""
    return path.name.removesuffix(".tar.gz").split("-")[1 if path.suffix == ".whl" else -1]


def differences(pack: Pack, before: Pinned, now: dict[str, Names]) -> Iterator[Difference]:
    """What has changed since the newest version that was read before."""
    last = before.versions[-1]
    for owner, names in before.names.items():
        was = {name for name in names if before.has_name(f"{owner}.{name}", last)}
        there = now.get(owner, {})
        new = there.keys() - was
        for name in sorted(was - there.keys()):
            told = next((option.replaced_by for option in pack.options if f"{owner}.{name}" in option.names and option.replaced_by), "")
            like = told or next(iter(get_close_matches(name, new, 1)), "")
            yield Difference("renamed" if like else "gone", f"{owner}.{name}", like)
        yield from (Difference("new", f"{owner}.{name}") for name in sorted(new))


def refused(pack: Pack, version: str, names: dict[str, Names]) -> list[Difference]:
    """Names that options print for a version and that it does not have; and defaults that are others than a pack says."""
    found = [
        Difference("printed but not there", name)
        for option in pack.options
        if option.in_version(version)
        for name in option.names
        if not _names_in(names, name)
    ]
    for option in pack.options:
        owner, _, name = option.names[0].rpartition(".")
        default = names.get(owner, {}).get(name, "").strip("'\"")
        if option.default and option.in_version(version) and default and default != option.default:
            found.append(Difference("another default", option.names[0], default))
    return found


def _names_in(names: dict[str, Names], name: str) -> bool:
    owner, _, own = name.rpartition(".")
    return own in names.get(owner, {})


def pinned_from(read: Sequence[tuple[str, dict[str, Names]]]) -> Pinned:
    """The pinned copy of versions that were read."""
    read = sorted(read, key=lambda one: number(one[0]))
    owners = dict.fromkeys(owner for _, names in read for owner in names)
    names = {owner: dict.fromkeys(sorted({name for _, own in read for name in own.get(owner, {})}), "") for owner in owners}
    for owner, own in names.items():
        for name in own:
            own[name] = "".join("1" if name in there.get(owner, {}) else "0" for _, there in read)
    return Pinned(tuple(version for version, _ in read), names)


def not_held(pack: Pack, pinned: Pinned) -> Iterator[str]:
    """What options print, for the versions that were read and have them, that is not among the pinned names."""
    for option in pack.options:
        for version in _versions(option, pinned.versions):
            yield from (f"{pack.package} {version}: {name}" for name in option.names if not pinned.has_name(name, version))


def _versions(option: Option, versions: Iterable[str]) -> Iterator[str]:
    return (version for version in versions if option.in_version(version))


def read_version(pack: Pack, version: str, into: Path) -> tuple[str, dict[str, Names]]:
    """The names of one version, "" for the newest, and which that is."""
    archive, found = download(pack.package, pack.archive, version, into)
    beside = sorted({owner.package for owner in pack.owners.values()} - {""})
    return found, names_in({pack.package: archive, **{name: _companion(name, found, into) for name in beside}}, pack)


def _companion(package: str, version: str, into: Path) -> Archive:
    """Of that version where both are released together, else its newest."""
    with suppress(UsageError):
        return download(package, "wheel", version, into)[0]
    return download(package, "wheel", "", into)[0]
