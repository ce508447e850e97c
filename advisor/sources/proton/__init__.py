"""Output of Triton's Proton: a Chrome trace of kernels (`data="trace"`), or a tree of call paths with their kernels' times (`data="tree"`).
A tree is Hatchet's JSON or MessagePack.

Writers: third_party/proton/csrc/lib/Data of github.com/triton-lang/triton."""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.recordings.recording import Recording
from advisor.sources.opened import Opened
from advisor.sources.proton import trace, tree
from advisor.sources.sniff import is_proton_tree
from advisor.sources.whole import PartlyRead, read_up_to_limit, read_whole

AGAIN = "Copy the file again, or record it again."
SMALLER = (
    "Record a trace, which is read at any size: proton.start('name', data='trace', hook='triton'); a few steps; "
    "proton.finalize(output_format='chrome_trace'). Or record the tree with fewer scopes."
)


def record(opened: Opened) -> Recording:
    """The recording of a session. Raises TraceError if it is damaged or holds no kernel."""
    stream, path = opened.stream, opened.path
    if is_proton_tree(opened.head):
        data = read_whole(stream, path, SMALLER)
        if stream.truncated:
            raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", AGAIN)
        return Recording("kernels", path, (tree.read(data, path),))
    found = read_up_to_limit(stream)
    return Recording(
        "trace", path, (trace.read_in_pieces(found, path, stream) if isinstance(found, PartlyRead) else trace.read(found, path, stream.truncated),)
    )
