"""Words of ours for which the field has a term, and abbreviations that need no entry in the glossary."""

from __future__ import annotations

BANNED = {
    r"(?<!matrix )(?<!dot )(?<!dot-)(?<!outer )(?<!inner )(?<!tensor )(?<!element-wise )(?<!scaled-)\bproducts?\b(?! of)(?! attention)": "GEMM, matrix product",
    r"(?<!streaming )\bmultiprocessors?\b": "SM",
    r"\bissu(?:es|ing)\b(?! slot| stall| and| or|s? #)|\b(?:to|host|can|must) issue\b|\bissued? (?:ops?|kernels?|launches|by|it|the next)\b": "launch",
    r"\bwritten out\b": "unfused, materialised",
    r"\bown work\b": "CPU code",
    r"\bpointwise\b(?! conv)": "elementwise",
    r"\bthe recorder\b|\bwhat recording\b|\bcost of recording\b|(?<![\w-])recording costs?\b": "profiler overhead",
    r"(?<!data )(?<!data-)\bloaders?\b": "dataloader",
    r"\bturns? of (?:a|the|its|that) loop\b|\b(?:each|every|per) turn\b": "iteration",
    r"\b(?:keeps?|kept) (?:pace|step|a pace)\b|\bpaces\b": "rate-limited, balanced",
    r"\bstep with every fix\b": "combined estimate",
    r"\bcom(?:es?|ing) out otherwise\b": "varies",
    r"\bfor want of\b": "out of, lacks",
    r"\bhangs on\b": "depends on",
    r"\bspel(?:led|ling|lings|t)\b": "idiom, written as",
    r"\bmemory side\b": "memory-bound",
    r"\bside by side with\b|\bhand(?:s|ed|ing)? back\b": "returns",
    r"\b(?:gave|give|given|gives|giving) back\b|\bwent back to the driver\b": "free, return",
    r"\bhost copies\b|\bcopies from the host to the (?:device|GPU)\b": "host-to-device copy",
    r"\bsmallest unit\b|\bthread blocks? group\b": "block, warp",
    r"\bmade of the trace\b|\bwhat the trace tells\b": "estimated from the trace",
    r"\bunits of copy\b": "copy engine",
}
"""A pattern, and the term to use instead. Names of rules, views and options are code, which is not held."""

_KNOWN = """
    GPU CPU RAM IO OS ID PID UTC OK AI API CLI CI PR MIT BSD RFC SDK SHA URL UTF ASCII LFS AWS ELF DWARF IPC SHM WSL MPI
    HTML CSS SVG PNG PDF JSON XML CSV TOML YAML SQL SARIF MCP KB MB GB TB MS
    NVIDIA AMD CUDA HIP JAX XLA TPU NPU XPU MTIA CANN SYCL RTX GTX MI EPYC AITER PCIE S3
    LLM MLP CNN RNN LSTM GRU BERT BART GPT CLIP VITS VAE DAC SGD LBFGS RMS FP TF BF IEEE HWIO STFT PV
    AND OR NOT NULL NONE IN IS WHERE SELECT FROM XOR PRAGMA FSYNC
    README CHANGELOG CONTRIBUTING TODO CACM OSDI HEAD HIGH MEDIUM LOW INFO MODEL POWER CLOCK REPORT DIR TRACE RULE BEFORE AFTER OUT NAME FILE CMD COMMAND
    PATH VERSION SCRIPT PORT PARTS TEXTS STRIP START WRITE EXIT JOB BLOCK AUTO PRO CAUSES FEWEST AREA NOTICE ENGINE SYSTEM
    TVM TTNN DHAT DRD OSU STREAM HPL GC THAPI HAR HSA
"""
ABBREVIATIONS = frozenset(_KNOWN.split())
"""Known to whoever profiles a program, or no abbreviation but a name."""
