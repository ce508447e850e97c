"""What torch.compile leaves of the host's time: times small programs eager and compiled and prints a row for each.

    python tests/benchmarks/compiled.py OUT [--only NAME,NAME] [--modes forward,training]

All programs compile at a time, each in a process of its own that then waits; they are timed one by one, while nothing else runs. OUT gets rows.json and
the traces of the eager steps.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent / "compiled_programs"
NAMES = """
    mlp convnet encoder messages cells recommender timm_vit hf_gpt2
    hf_bert hf_albert hf_t5 timm_mobilenet timm_convnext unet wavenet fluid
    points experts hf_llama hf_wav2vec timm_resnet timm_swin
    scaled broken
"""
BEGUN = time.monotonic()
LATEST_S = 480.0  # a program that is not timed by then is left out


def line_of(row):
    us, host = ({side: times[at] for side, times in row["us"].items()} for at in (0, 1))
    left, before = row["compiled kernels"], row["eager kernels"]
    return (
        f"{row['name']:15s} {row['mode']:8s} step {us['eager']:7.0f} {us['eager again']:7.0f} compiled {us['compiled']:7.0f} us, gain {1 - us['compiled'] / us['eager']:+.2f}"
        f" | host {host['eager']:7.0f} compiled {host['compiled']:7.0f} us | kernels {before:4.0f} left {left:4.0f} (generated {row['compiled generated']:4.0f})"
        f" | a kernel {host['eager'] / before:5.1f} compiled {host['compiled'] / left:5.1f} us | gpu {row['eager gpu_us']:6.0f} {row['compiled gpu_us']:6.0f}"
        f" | parameters {row['parameters']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(NAMES.split()))
    parser.add_argument("--modes", default="forward,training")
    given = parser.parse_args()
    out, names, modes = given.out.resolve(), given.only.split(","), given.modes.split(",")
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="compiled-"))
    running = {}
    for name in names:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(work / name / "inductor"), "TRITON_CACHE_DIR": str(work / name / "triton")}
        running[name] = subprocess.Popen(
            [sys.executable, str(HERE / "timed.py"), name, str(work), *modes], env={**os.environ, **caches, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(work / f"{name}.log").open("w"), text=True,
        )  # fmt: skip
    rows, ready = [], []
    for name, process in running.items():
        for line in process.stdout:
            if line.strip() == "ready":
                ready.append(name)
                break
            print(line.strip(), flush=True)
        else:
            print(f"{name} failed: {(work / f'{name}.log').read_text()[-1500:]}", flush=True)
    print(f"compiled after {time.monotonic() - BEGUN:.0f} s", flush=True)
    for name in ready:
        if time.monotonic() - BEGUN > LATEST_S:
            print(f"{name} is left out: no time", flush=True)
            running[name].kill()
            continue
        told, _ = running[name].communicate("go\n")
        if running[name].returncode:
            print(f"{name} failed: {(work / f'{name}.log').read_text()[-1500:]}", flush=True)
        for row in (json.loads(line) for line in told.splitlines() if line.startswith("{")):
            print(json.dumps(row) if "error" in row else line_of(row), flush=True)
            rows.append(row)
        (out / "rows.json").write_text(json.dumps(rows, indent=1))
    print(f"timed after {time.monotonic() - BEGUN:.0f} s", flush=True)
    with tarfile.open(out / "traces.tar.gz", "w:gz") as archive:
        for path in sorted(work.glob("*.json")):
            archive.add(path, path.name)
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
