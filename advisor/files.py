"""Files that appear whole or not at all: a crash leaves the old one or the new one, two writers at once leave one of both.
How those of ours begin is known, so that nobody else's is written over or taken away."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from .errors import AdvisorError, OutputError, UsageError

PART = ".advisor-"
"""How the names of files begin that are not finished."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says where nothing more can be written."""

HEAD_BYTES = 4096
"""In which files that advisor writes, and every format that is told by its bytes, say what they are."""

_VERSION = rb"\d+\.\d+\.\d+[\w.+-]{0,40}"
_OURS = re.compile(
    rb"""(?x)
    advisor\ VERSION\ (?:
        \xc2\xb7\ [^\n]+(?:\n[^\n]+){0,8}\n\n[A-Z][A-Z0-9/_ -]{2,60}\ \ [^\n]                          # a report: what it is of, and its bottleneck
        | \xc2\xb7\ (?:bench|attention|verify|stability|ablation)\n
        | diff\nbefore:\ [^\n]+\nafter:\ \ [^\n]+\n
        | diff\ --across\nleft:\ \ [^\n]+\nright:\ [^\n]+\n
        | history\nStep\ time\ )
    | <!doctype\ html>\n<html\ lang="en">\n<head>\n(?:<(?:meta|link)\ [^\n]{0,400}>\n){0,8}<meta\ name="generator"\ content="trace-advisor[ ]
    | <!--\ trace-advisor(?::\ \w+)?\ -->\n
    | ---\nname:\ advisor\n(?:[a-z-]{1,20}:\ [^\n]{1,1024}\n){0,4}metadata:\n\ \ source:\ trace-advisor\n---\n               # the skill
    | \{\s*"schema":\s*\d+,\s*"advisor":\s*"VERSION",\s*(?:
        "kind":\s*"\w{1,20}",\s*"source":\s*\{\s*"path":\s*"
        | "left":\s*\{\s*")
    | \{\s*"schema":\s*\d+,\s*"kind":\s*"\w{1,20}",\s*"advisor":\s*"VERSION",\s*"before":\s*\{\s*"paths?":\s
    | \{"displayTimeUnit":\ "ns",\ "trace-advisor":\ \{"advisor":\ "VERSION",\ "trace":\ "
    | \{\s*"\$schema":\s*"[^"\n]{0,200}sarif[^"\n]{0,200}",\s*"version":\s*"2\.1\.0",\s*"runs":\s*\[\s*\{\s*"tool":\s*\{\s*"driver":\s*\{
        \s*"name":\s*"advisor",\s*"version":\s*"VERSION",\s*"rules":
    | <\?xml\ version="1\.0"\ encoding="UTF-8"\?>\n<testsuites\ name="advisor"(?:\ \w{5,8}="\d{1,9}"){4}>\n\ <testsuite\ name="[^"]*"(?:\ \w{5,8}="\d{1,9}"){4}
    | <!doctype\ html><html\ lang="en"><head><meta\ charset="utf-8"><meta\ name="generator"\ content="trace-advisor">
    | \{\s*"advisor":\s*"VERSION",\s*"measured":\s*"\w{1,20}",
    | \[\n\ \{\n\ \ "mechanism":\ "
    | \[\n\ \{\n\ \ "engine_name":\ "trace-advisor",\n\ \ "description":\ "
    | \[\n\ {13}\n\]\n\Z                                                                # no issue: GitLab takes nothing else there
    """.replace(b"VERSION", _VERSION)
)
"""How a file of ours begins, in any format: all that every one has before its content, for a word of ours may are in anybody's notes."""


def is_ours(head: bytes) -> bool:
    """Whether a file that begins so was written by advisor."""
    return _OURS.match(head) is not None


def of_system(error: OSError) -> AdvisorError:
    """An error of the system's as one to show."""
    where = f"{error.filename}: " if error.filename else ""
    told = f"{where}{error.strerror or error}"
    return OutputError(told, "Make room, or give another path.") if error.errno in NO_ROOM else UsageError(told, "Check the path and its permissions.")


def begins_as_ours(path: Path) -> bool:
    """Whether a file on this machine does."""
    with path.open("rb") as file:
        return is_ours(file.read(HEAD_BYTES))


def write_whole(target: Path, data: bytes) -> None:
    """Write a file in place of the one of that name; a link is replaced, not followed. Raises OutputError if it cannot be written."""
    import tempfile  # with shutil and its formats 5 ms, which what is only read or printed does not need

    try:
        handle, part = tempfile.mkstemp(prefix=PART, suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask())
            os.replace(part, target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}", "Give another path, or make room.") from None


def umask() -> int:
    """The process's. Linux tells it; elsewhere it can be asked for only by setting it, which files of other threads may see."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))
    except (OSError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask
