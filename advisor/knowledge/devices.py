"""Peak rates of GPUs, from devices.toml. A device that stands not there is unknown: `find` gives None, callers abstain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from advisor.knowledge.data import load

_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "amd", "instinct"}


@dataclass(frozen=True)
class Peaks:
    """What one GPU can do, dense; None where no document says. Each number's source stands in devices.toml."""

    name: str
    names: tuple[str, ...]
    """As CUDA, HIP or nsys record it."""
    source: str
    achievable_memory: float
    """Fraction of `memory_gbps` that large copies reach."""
    achievable_flops: float
    """Fraction of a peak arithmetic rate that large matrix products reach."""
    fp64_tflops: float | None = None
    fp64_tensor_tflops: float | None = None
    fp32_tflops: float | None = None
    """CUDA cores; Tensor Cores have no FP32, only TF32."""
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    memory_gbps: float | None = None
    l2_mbytes: float | None = None
    host_link_gbps: float | None = None
    """Host to device, pinned memory, one direction, as a large copy reaches it."""

    def flops_per_s(self, precision: str) -> float | None:
        """Peak rate of a `kernels.precision`, the fastest unit that has it; None where the chip has none or it is unknown."""
        tera = {
            "fp64": self.fp64_tensor_tflops or self.fp64_tflops,
            "fp32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "int8": self.int8_tops,
        }.get(precision)
        return None if tera is None else tera * 1e12

    def achievable_flops_per_s(self, precision: str) -> float | None:
        """The part of `flops_per_s` that large matrix products reach."""
        peak = self.flops_per_s(precision)
        return None if peak is None else peak * self.achievable_flops

    @property
    def bytes_per_s(self) -> float | None:
        """Peak of device memory, read and written together."""
        return None if self.memory_gbps is None else self.memory_gbps * 1e9

    @property
    def achievable_bytes_per_s(self) -> float | None:
        """The part of `bytes_per_s` that large copies reach."""
        return None if self.bytes_per_s is None else self.bytes_per_s * self.achievable_memory

    def ridge(self, precision: str) -> float | None:
        """Arithmetic intensity in FLOP/byte above which compute, below which memory is the bound.

        Williams et al. 2009, "Roofline: an insightful visual performance model", with datasheet peaks on both axes.
        """
        flops, bandwidth = self.flops_per_s(precision), self.bytes_per_s
        return None if flops is None or bandwidth is None else flops / bandwidth


def _key(name: str) -> str:
    """The name as compared: `NVIDIA A100-SXM4-80GB` and `A100 SXM4 80GB` (older drivers) are one."""
    return " ".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _VENDOR_WORDS)


@cache
def all_peaks() -> tuple[Peaks, ...]:
    """Every GPU of devices.toml, in its order."""
    data = load("devices")
    links = {name: link["gbps"] for name, link in data["host_links"].items()}
    return tuple(
        Peaks(**{
            **data["defaults"],
            **{field: value for field, value in entry.items() if field != "host_link"},
            "names": tuple(entry["names"]),
            "host_link_gbps": links[entry["host_link"]] if "host_link" in entry else None,
        })
        for entry in data["device"]
    )  # fmt: skip


@cache
def _by_key() -> dict[str, Peaks]:
    return {_key(name): peaks for peaks in all_peaks() for name in peaks.names}


def find(name: str) -> Peaks | None:
    """The GPU of that recorded name, None where it is unknown.

    Variants are not guessed at: laptop parts, MIG slices and shared vGPUs carry the chip's name and have other rates.
    """
    return _by_key().get(_key(name))
