"""A report of Nsight Systems (`.nsys-rep`), exported by the nsys that is on the PATH: only NVIDIA's tool reads such a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from advisor.errors import TraceError
from advisor.sources.sniff import NSYS_REPORTS

_LONGEST_S = 3600
"""Seconds that an export may take: reports of gigabytes take minutes."""


def exported(path: str) -> str:
    """The path of the export of the report at `path`, made if there is none yet. "" if it is no report, or nsys is not on the PATH.

    Exports are kept in the user's cache. Their names depend on the report's path, size and time: a changed report is exported again.
    Raises TraceError if nsys cannot export it."""
    nsys = shutil.which("nsys")
    if nsys is None or not path.endswith(NSYS_REPORTS) or not os.path.isfile(path):
        return ""
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite=true", "-o"]
    found = os.stat(path)
    return kept(f"{os.path.realpath(path)}\0{found.st_size}\0{found.st_mtime_ns}", lambda made: _run([*command, str(made), os.path.abspath(path)], path, made))


def kept(made_of: str, make: Callable[[Path], None]) -> str:
    """The path of a database in the cache, made if there is none yet; made_of: says when it must be made again."""
    folder = cache()
    target = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.sqlite"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / "export.sqlite"
            make(made)
            made.replace(target)
    return str(target)


def cache() -> Path:
    """Directory of kept exports."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "trace-advisor" / "nsys"


def _run(command: list[str], path: str, made: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LONGEST_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TraceError(f"nsys could not export {path}: {error}", "Export it yourself: nsys export --type sqlite REPORT, and give the .sqlite.") from None
    if done.returncode or not made.is_file():
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        hint = "A newer nsys may have recorded it: export it with that version (nsys export --type sqlite REPORT), and give the .sqlite."
        raise TraceError(f"nsys could not export {path}: {said[0][:200]}", hint)
