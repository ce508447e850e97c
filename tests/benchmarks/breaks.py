"""Runs the six pairs, records them and prints the price of their graph breaks beside what mending gains: python tests/benchmarks/breaks.py OUT [SECONDS]

`advisor` has to be importable (PYTHONPATH). Caches of compiled code are filled first, all programs at a time; then each is timed alone.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent / "break_programs"
OUT = Path(sys.argv[1]).resolve()
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 240.0
NAMES = os.environ.get("PAIRS", "log_line item_branch unsupported_call data_shape side_effect custom_autograd").split()
BEGUN = time.monotonic()
WORK = Path(tempfile.mkdtemp(prefix="breaks-"))
CACHES = {"TORCHINDUCTOR_CACHE_DIR": str(WORK / "inductor"), "TRITON_CACHE_DIR": str(WORK / "triton"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
PYTHON = [sys.executable]
RECORD = [*PYTHON, "-m", "advisor", "record", "--timed", "30", "--light", "8", "--deep", "1"]


def left():
    return SECONDS - (time.monotonic() - BEGUN)


def run(command, **env):
    """Its standard output; what it says of a failure is printed, and the others go on."""
    told = {**os.environ, **CACHES, **env}
    try:
        done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=max(left() + 60.0, 5.0), cwd=os.getcwd())
    except subprocess.TimeoutExpired:
        print("timed out:", *command, flush=True)
        return ""
    if done.returncode not in (0, 1):
        print("failed:", *command, done.stdout[-800:], done.stderr[-1200:], flush=True)
    return done.stdout


def median(text):
    said = [line.split()[2] for line in text.splitlines() if line.startswith("median step ")]
    return float(said[-1]) if said else float("nan")


def record(name, which):
    """Into WORK/name-which: what advisor recorded, and of a broken program the compiler's log."""
    to, log = WORK / f"{name}-{which}", WORK / f"{name}-log"
    run([*RECORD, "-o", str(to), "--", *PYTHON, str(HERE / f"{name}.py"), which, "600"], **({"TORCH_TRACE": str(log)} if which == "broken" else {}))


def analyzed(name):
    log = ["--compile-log", str(WORK / f"{name}-log")]
    text = run([*PYTHON, "-m", "advisor", "analyze", str(WORK / f"{name}-broken"), *log, "-f", "json"])
    try:
        return json.loads(text)
    except ValueError:
        return {}


def line_of(name, step_ms, report):
    costs = (report.get("compile_costs") or {}).get("rows", [])
    breaks = [row for row in costs if row["kind"] == "graph-break"]
    recorded = sum(row["us"] or 0.0 for row in breaks) / 1e3
    unprofiled = sum(row.get("unprofiled_us") or 0.0 for row in breaks) / 1e3
    unpriced = "; ".join(row["unpriced"] for row in breaks if row.get("unpriced"))
    found = [one for one in report.get("findings", []) if one["rule"] == "graph-breaks"]
    saving = found[0].get("saving") or {} if found else {}
    shown = ", ".join(f"{key} {value / 1e3:.3f}" for key, value in saving.items() if isinstance(value, (int, float)))
    broken, mended = (step_ms.get((name, which), float("nan")) for which in ("broken", "mended"))
    print(
        f"{name}: broken {broken:.3f} mended {mended:.3f} gain {broken - mended:.3f} | price unprofiled {unprofiled:.3f} as recorded {recorded:.3f}"
        f" in {sum(row['count_a_step'] for row in breaks):g} gaps | finding: {shown or 'none'}{' | unpriced: ' + unpriced if unpriced else ''}",
        flush=True,
    )
    return broken - mended, unprofiled


def kept(archive, name):
    """Traces and logs are added as they are, since both are small; of each recording all but what a page repeats."""
    for folder in (f"{name}-broken", f"{name}-mended", f"{name}-log"):
        for path in sorted((WORK / folder).rglob("*")) if (WORK / folder).is_dir() else ():
            if path.is_file() and path.stat().st_size < 8 << 20 and path.suffix != ".html":
                archive.add(path, str(path.relative_to(WORK)))


OUT.mkdir(parents=True, exist_ok=True)
programs = [(name, which) for name in NAMES for which in ("broken", "mended")]
with ThreadPoolExecutor(min(len(programs), os.cpu_count() or 1)) as pool:
    list(pool.map(lambda one: run([*PYTHON, str(HERE / f"{one[0]}.py"), one[1], "3"]), programs))
print(f"caches filled after {time.monotonic() - BEGUN:.0f} s", flush=True)
step_ms = {}
for name, which in programs:
    step_ms[name, which] = median(run([*PYTHON, str(HERE / f"{name}.py"), which]))
    print(f"{name} {which}: {step_ms[name, which]:.3f} ms, at {time.monotonic() - BEGUN:.0f} s", flush=True)
for name in NAMES:
    record(name, "broken")
print(f"broken ones recorded after {time.monotonic() - BEGUN:.0f} s", flush=True)
for name in NAMES:
    if left() > 45.0:
        record(name, "mended")
print(f"mended ones recorded after {time.monotonic() - BEGUN:.0f} s", flush=True)
with ThreadPoolExecutor(max(min(len(NAMES), (os.cpu_count() or 1) // 2), 1)) as pool:
    reports = dict(zip(NAMES, pool.map(analyzed, NAMES), strict=True))
sums = [line_of(name, step_ms, reports[name]) for name in NAMES]
print(
    f"sum of gains {sum(gain for gain, _ in sums):.3f} ms, of prices {sum(price for _, price in sums):.3f} ms, after {time.monotonic() - BEGUN:.0f} s",
    flush=True,
)
(OUT / "steps.json").write_text(json.dumps({f"{name} {which}": ms for (name, which), ms in step_ms.items()}, indent=1))
with tarfile.open(OUT / "breaks.tar.gz", "w:gz") as archive:
    for name in NAMES:
        (WORK / f"{name}-report.json").write_text(json.dumps(reports[name]))
        archive.add(WORK / f"{name}-report.json", f"{name}-report.json")
        kept(archive, name)
print(f"{OUT / 'breaks.tar.gz'}: {(OUT / 'breaks.tar.gz').stat().st_size / 1e6:.1f} MB", flush=True)
shutil.rmtree(WORK, ignore_errors=True)
