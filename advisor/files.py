"""Files that appear whole or not at all: a crash leaves the old one or the new one, two writers at once leave one of both."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from advisor.errors import AdvisorError, OutputError, UsageError

PART = ".advisor-"
"""How the names of files begin that are not finished."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says where nothing more can be written."""


def of_system(error: OSError) -> AdvisorError:
    """An error of the system's as one to show."""
    where = f"{error.filename}: " if error.filename else ""
    told = f"{where}{error.strerror or error}"
    return OutputError(told, "Make room, or give another path.") if error.errno in NO_ROOM else UsageError(told, "Check the path and its permissions.")


def write_whole(target: Path, data: bytes) -> None:
    """Write a file in place of the one of that name; a link is replaced, not followed. Raises OutputError where it cannot be written."""
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
    """The process's, which can be asked for only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
