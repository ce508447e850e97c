"""Convolutions in groups that have no Tensor Core kernel in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

LONGEST = 4096
"""Channels of a group times taps of its filter up to which cuDNN computes it on Tensor Cores in 16 bits. Measured with cuDNN 9 on an H200, 16 groups over
16 × 299 places: 16, 24 and 32 channels × 128 taps and all of up to 31 taps ran on Tensor Cores, in a quarter to nine tenths of TF32's time;
40, 48, 80, 96 and 128 × 128 on CUDA cores (`implicit_convolve_sgemm`), if they took 3.6 to 8.7 times as long as in TF32, and 2.2 to 3.8 times with the
backward pass. In WavLM, which tells places by 16 groups of 48 channels × 128 taps as wav2vec 2.0 and HuBERT do, 22 ms of kernels came of 4.4."""

ON_TENSOR_CORES = 64
"""Channels of a group for which there is such a kernel at any length: 64 × 128 took half of TF32's time, in HuBERT large 0.6."""


def falls_back(image: Sequence[int], weight: Sequence[int]) -> bool:
    """Whether a convolution of an image (N, C, *places) by a weight (out, C / groups, *taps) leaves the Tensor Cores in 16 bits."""
    if len(image) < 3 or len(weight) != len(image) or weight[1] <= 0:
        return False
    in_groups = image[1] // weight[1] > 1
    return in_groups and weight[1] > 1 and weight[1] != ON_TENSOR_CORES and prod(weight[1:]) > LONGEST
