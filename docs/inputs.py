"""Writes inputs.md: what advisor reads and what it knows by name, from the table of formats.

python docs/inputs.py > docs/inputs.md
"""

from __future__ import annotations

from advisor.knowledge.formats import GROUPS, Format, known

HEAD = """# Inputs

Written by `python docs/inputs.py > docs/inputs.md` from `advisor/knowledge/formats.toml`.

Content decides what a file is, not its name. Files may be packed with gzip, zstd, zip or tar, but for SQLite databases, which are opened where
they lie.

## What is read

| Format | Files | Written by | How to record it |
|---|---|---|---|
"""

MIDDLE = """
## Proton

A trace of Proton (`data="trace"`) becomes a timeline of kernels with the scopes around them. What Triton's metadata says that a kernel computes and
moves goes into the roofline, where the writer puts it out (since early 2026). No calls that launch are in it, so rules of the host abstain.
A trace of the older writer holds one document a line, each of one stream: all of them are read. A tree (`data="tree"`) holds sums by kernel: it is
judged as kernels, and where metadata says the bytes, the share of the memory's peak is worked out from the bus that the tree names. A trace of
the inside of kernels is no timeline; the error names its scopes and where the warps' time goes.

## ROCm

A rocpd database, rocprofv3's JSON and an `.rpd` become the timeline that an export of Nsight Systems becomes, and the same rules judge it: kernels
and copies with the call that each is of, calls of HIP, ranges of rocTX (ops where `emit_nvtx` wrote them), RCCL's calls. HSA's calls lie inside of
HIP's and are left out. Record the calls too (`--hip-trace`): without them nothing says what launched a kernel. The database says no kind of host
memory, so whether a copy was pageable is not known. What recording cost is not known either: give the step time without it, `--step-ms`.
A redacted copy is rocprofv3's JSON, whatever was given.

## Hardware counters

Samples of counters in a trace are read where they stand: GPU metrics of Nsight Systems (`--gpu-metrics-devices`), and counter events (`"ph": "C"`) on a
device's process, named as CUPTI's PM sampling names them. The report shows the mean of each unit. Where memory's bandwidth or the Tensor Cores' cycles
reach 60% of their peak while kernels run, that is what bounds the step, before anything that names and shapes let one estimate.

## Flight recorder

The dumps that PyTorch writes when a collective times out (`TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1`; `nccl_trace_rank_N`, pickles that are
read without being run, or JSON) say which collective each rank was in. Give their directory. The report names the collective that ranks wait in, by
group, number and line; who did not come to it, and what that rank called last; collectives that are not the same on all ranks; ranks that left no
dump. Where `TORCH_NCCL_ENABLE_TIMING=1` timed them, the rank that came last says what a transfer takes, and so how fast the links are.
Rules do not speak of a dump.

## What is known by name

These are not read. The error names the format, says why, and what to give instead; a command there holds the path that was given.
A file of an unknown writer is named by its kind, which its columns, members or lines show. Anything else is refused with its first bytes.
"""


def page() -> str:
    """The page as text."""
    read = [one for one in known() if one.read == "yes"]
    rows = "".join(f"| {_capital(one.name)} | {one.files} | {one.maker} | {one.give} |\n" for one in read)
    return HEAD + rows + MIDDLE + "".join(map(_group, GROUPS))


def _group(group: str) -> str:
    rows = [_row(one) for one in known() if one.group == group and one.read == "no"]
    head = "| What it is | Written by | Why it is not read | What to give instead |\n|---|---|---|---|\n"
    return f"\n### {GROUPS[group]}\n\n{head}{''.join(rows)}" if rows else ""


def _row(one: Format) -> str:
    return "| " + " | ".join((_capital(one.name), one.maker, one.why, one.instead("FILE").replace("|", "\\|"))) + " |\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    print(page(), end="")
