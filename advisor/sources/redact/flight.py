"""A flight recorder's dump with the data that the reader uses: collectives, their sizes, states and lines, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from advisor.recordings.flight import FlightRecords
from advisor.sources.redact.names import Names


def redacted(records: FlightRecords, names: Names) -> Iterator[bytes]:
    """The dump as JSON. Groups keep their numbers; their descriptions get other names."""
    (rank,) = records.ranks
    entries = []
    for call in rank.calls:
        file, _, line = call.line.rpartition(":")
        entries.append({
            "collective_seq_id": call.sequence, "p2p_seq_id": call.sequence, "is_p2p": call.to_one, "process_group": [names.group(call.group), ""],
            "profiling_name": names.range(call.name), "state": call.state, "retired": call.state == "completed",
            "input_sizes": [[call.bytes]] if call.bytes else [[call.elements]], "input_dtypes": ["Byte"] if call.bytes else [],
            **({} if math.isnan(call.dur_us) else {"duration_ms": call.dur_us / 1000}),
            "frames": [{"filename": names.path(file), "line": int(line), "name": ""}] if file and line.isdecimal() else [],
        })  # fmt: skip
    config = {names.group(group): {"name": names.group(group), "desc": "", "ranks": str([*ranks])} for group, ranks in rank.groups.items()}
    yield json.dumps({"version": "2.10", "entries": entries, "pg_config": config}).encode()
