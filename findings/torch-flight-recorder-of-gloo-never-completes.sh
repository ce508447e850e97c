#!/usr/bin/env bash
# torch 2.13.0: in the flight recorder's dump of a job on Gloo every collective stays "scheduled", also those that every rank has left.
# Guessed: an entry's state goes from scheduled to completed, as with NCCL, so that what is not completed is where a rank hangs.
# Seen: three all_reduces that two ranks have finished are three entries in state "scheduled", without times; only "retired" is true.
# So whoever looks for a hang by the state finds one in every healthy job of Gloo.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.2.6
cat > "$work/job.py" <<'PYTHON'
import os, pickle, socket, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def rank(number, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="100")
    dist.init_process_group("gloo", rank=number, world_size=2)
    for _ in range(3):
        tensor = torch.ones(16)
        dist.all_reduce(tensor)
        assert tensor[0] == 2, "it was not reduced"
    from torch._C._distributed_c10d import _dump_fr_trace
    entries = pickle.loads(_dump_fr_trace())["entries"]
    if number == 0:
        found = [(entry["state"], entry["retired"], entry["time_discovered_completed_ns"]) for entry in entries]
        print(f"torch {torch.__version__}: state, retired and time of completion of three finished all_reduces: {found}", flush=True)
        assert found == [("scheduled", True, None)] * 3, "Gloo's collectives are completed now"

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank, args=(port,), nprocs=2)
PYTHON
cd "$work" && "$work/venv/bin/python" job.py
