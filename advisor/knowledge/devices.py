"""Peak rates of GPUs, from devices.toml. A device that stands not there is unknown: `find` gives None, callers abstain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import msgspec

from advisor.knowledge.data import load

_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "amd", "instinct"}


class Peaks(msgspec.Struct, frozen=True):
    """Peak rates of a GPU, dense; None if no document gives them. devices.toml names the source of each number."""

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
    estimated: bool = False
    """Worked out from the chip's generation rather than read from a datasheet: right to about a fifth, memory unknown."""
    host_link_gbps: float | None = None
    """Host to device, pinned memory, one direction, as a large copy reaches it."""
    sm_count: int = 0
    """Number of SMs, if several devices share the name and differ only in that."""

    def flops_per_s(self, precision: str) -> float | None:
        """Peak rate of a `kernels.precision`, the fastest unit that has it; None if the chip has none or it is unknown."""
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


def same_device(name: str, other: str) -> bool:
    """Whether two names are of one device."""
    return _key(name) == _key(other)


RATES = (
    "fp64_tflops", "fp64_tensor_tflops", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops", "int8_tops",
    "memory_gbps", "l2_mbytes", "host_link_gbps", "achievable_memory", "achievable_flops",
)  # fmt: skip
"""What a user may say of a device, dense: the fields of `Peaks` that are numbers."""


def own(name: str, rates: Mapping[str, float], source: str) -> Peaks:
    """A device as the user describes it. Raises ValueError if a key is no rate or a value no positive number."""
    for key, value in rates.items():
        if key not in RATES:
            raise ValueError(f"{key} is no rate of a device: {', '.join(RATES)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e7:
            raise ValueError(f"{key} = {value!r} is no rate")
    defaults = load("devices")["defaults"]
    return Peaks(**{**defaults, "name": name, "names": (name,), "source": source, **rates})


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
    """The GPU of that recorded name, None if it is unknown.

    Variants are not guessed at: laptop parts, MIG slices and shared vGPUs carry the chip's name and have other rates.
    """
    return _by_key().get(_key(name))


_CONSUMER = re.compile(r"GeForce|RTX [2-5]0[5-9]0", re.IGNORECASE)
_ESTIMATE = 0.6
"""What large products reach of an estimated peak: less than of a known one, as the clock is not known."""

_MOST_MULTIPROCESSORS = 1024
"""Several times what the largest GPU has: a count beyond it is none."""


@cache
def _generations() -> dict[tuple[int, int], tuple[int, int, float]]:
    """By compute capability: FLOP a clock and multiprocessor on CUDA cores and Tensor Cores, and GHz."""
    return {tuple(one["capability"]): (one["cores"], one["tensor"], one["ghz"]) for one in load("devices")["generation"]}


def first_capability(unit: str) -> tuple[int, int]:
    """The compute capability of NVIDIA from which a unit exists, of `[capabilities]`."""
    major, minor = load("devices")["capabilities"][unit]
    return major, minor


def of_device(name: str, compute_capability: tuple[int, int], sm_count: int) -> Peaks | None:
    """The GPU by its name; else its arithmetic rates by generation, SMs and a usual clock, None if that is not known
    either. Laptop parts and slices of a GPU carry a chip's generation and their own SMs, so that this holds for them."""
    known = find(name)
    if known and known.sm_count not in (0, sm_count):
        known = None
    generation = _generations().get(compute_capability)
    if known or generation is None or not 0 < sm_count <= _MOST_MULTIPROCESSORS or "amd" in name.lower() or "radeon" in name.lower():
        return known
    cores, tensor, ghz = generation
    fp32, fp16 = (sm_count * flop * ghz / 1000 for flop in (cores, tensor / (2 if _CONSUMER.search(name) else 1)))
    newer = compute_capability >= (8, 0)
    return Peaks(
        name=f"{name or 'a GPU'}, estimated",
        names=(name,),
        source=f"estimated: {sm_count} SMs of compute capability {compute_capability[0]}.{compute_capability[1]} at {ghz} GHz",
        achievable_memory=_ESTIMATE,
        achievable_flops=_ESTIMATE,
        estimated=True,
        fp32_tflops=fp32,
        tf32_tflops=fp16 / 2 if newer else None,
        fp16_tflops=fp16,
        bf16_tflops=fp16 if newer else None,
        fp8_tflops=fp16 * 2 if compute_capability >= (8, 9) else None,
    )
