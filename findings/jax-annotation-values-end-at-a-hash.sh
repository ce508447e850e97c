#!/usr/bin/env bash
# jax 0.10.2: a value given to TraceAnnotation ends at its first '#'.
# Guessed: what is given as a keyword comes back whole from the profile, as other characters do.
# Seen: note="x#y" is "x" in the XPlane and in the trace JSON, without a word: name and values travel as one text, 'load#note=x#y#', and
# '#' is what parts them. File names, colours and tags with one come back cut.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q jax==0.10.2
cd "$work" && "$work/venv/bin/python" - <<'PYTHON'
import glob, gzip, json, jax, jax.numpy as jnp

with jax.profiler.trace("log"):
    with jax.profiler.TraceAnnotation("load", plain="x/y", note="x#y"):
        jnp.ones(3).block_until_ready()
data = jax.profiler.ProfileData.from_file(glob.glob("log/plugins/profile/*/*.xplane.pb")[0])
planes = [dict(event.stats) for plane in data.planes for line in plane.lines for event in line.events if event.name == "load"]
trace = json.load(gzip.open(glob.glob("log/plugins/profile/*/*.trace.json.gz")[0]))
objects = [event["args"] for event in trace["traceEvents"] if event.get("name") == "load"]
print(f"jax {jax.__version__}: XPlane {planes}, JSON {objects}")
assert planes and objects and all(row["plain"] == "x/y" and row["note"] == "x" for row in planes + objects), "the behaviour has changed"
PYTHON
