"""What ROCm's tools record of HIP programs: rocpd databases and JSON of rocprofv3, and databases of rocmProfileData (.rpd).

What writes them: projects/rocprofiler-sdk/source/lib/output of github.com/ROCm/rocm-systems, rpd_tracer of github.com/ROCm/rocmProfileData.
"""

from __future__ import annotations

from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.sources.nsys.tables import opened as opened_database
from advisor.sources.opened import Opened
from advisor.sources.ranks import of_busiest_process, recording_of
from advisor.sources.rocprof import rocpd, rpd, sdk_json
from advisor.sources.sniff import is_sqlite


def record(opened: Opened) -> Recording:
    """The recording of a file. Raises TraceError if it is damaged or holds no GPU work."""
    timeline = read(opened)
    made = recording_of(timeline, opened.path)
    return made if made.kind == "job" else Recording("trace", opened.path, (of_busiest_process(timeline),))


def read(opened: Opened) -> Timeline:
    """What all processes of a file did. Raises TraceError if it is damaged or holds no GPU work."""
    return _database(opened) if is_sqlite(opened.head) else sdk_json.read(opened)


def _database(opened: Opened) -> Timeline:
    opened.check_seekable("a database of ROCm")
    opened.check_size()
    with opened_database(opened.path) as db:
        return (rocpd if rocpd.has_rocpd_schema(db) else rpd).read(db, opened.path)
