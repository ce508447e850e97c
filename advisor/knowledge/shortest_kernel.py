"""The least that a kernel takes, whatever it does: a fix that replaces kernels still pays it for each one that it leaves."""

SHORTEST_US = 2.0
"""Of a kernel that a fix puts in place of others, or makes faster. On an H200 the samples' pointwise kernels on tiny tensors take
0.7 to 1.2 µs and their smallest products 3; one that does the work of several lies between."""

SHORTEST_POINTWISE_US = 1.2
"""Of one pointwise op on a tiny tensor, by itself."""

LATENCY_BOUND_US = 20.0
"""A shorter one is bound by filling the GPU, not by what it computes or moves: aligned products take 17 to 26 µs where their limit is 5 to
16 (512 × 1024 × 4096, 256 × 4096 × 4096 and 64 × 8192 × 4096 in BF16 on an H200)."""
