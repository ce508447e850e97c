"""Names of XLA's profiler, translated to those of a timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping

from advisor.recordings.timeline import CopyKind, MemoryKind

STREAM = re.compile(r"Stream #(\d+)")
DEVICE = re.compile(r"/device:([A-Za-z]+):(\d+)")

_FRAME = re.compile(r"\$(?P<file>[^\s:]+):(?P<line>\d+) (?P<function>.+)")
_BUILTIN = re.compile(r"\$(?P<module>\S+) (?P<function>.+)")
_CALL = re.compile(r"(?P<call>(cu|hip)[A-Z]\w+)")
_DETAIL = re.compile(r"(\w{1,60}):([^\s]+)")
_COPY = re.compile(r"Memcpy(?P<kind>H2D|D2H|D2D|H2H|P2P)")
_KINDS = {"H2D": CopyKind.HTOD, "D2H": CopyKind.DTOH, "D2D": CopyKind.DTOD, "H2H": CopyKind.HTOH, "P2P": CopyKind.PTOP}
_MEMORY = {"pageable": MemoryKind.PAGEABLE, "pinned": MemoryKind.PINNED, "device": MemoryKind.DEVICE, "array": MemoryKind.ARRAY}

# What stops the host until the device is done: an array's value is asked for, or its being ready.
WAIT_RANGE = re.compile(r"np\.asarray\(jax\.Array\)|BlockHostUntilReady|PjRtBuffer::(Await|ToLiteralSync)|PyArray::\w*(Await|BlockUntil)\w*")
_WAIT_FRAME = re.compile(r"\$(?:array|api)\.py:\d+ (?P<what>block_until_ready|__float__|__int__|__bool__|__index__|__complex__|__array__|item|tolist)$")

# Modules of JAX that a step runs through. Frames have no directory here: these names are all that tells them from the user's.
_OF_JAX = frozenset(
    [
        "abstract_arrays",
        "ad",
        "ad_checkpoint",
        "ad_util",
        "api",
        "api_util",
        "array",
        "array_creation",
        "array_methods",
        "batching",
        "cache_key",
        "cloud_tpu_init",
        "compilation_cache",
        "compiler",
        "config",
        "core",
        "custom_derivatives",
        "deferred_batching",
        "dispatch",
        "dtypes",
        "einsum",
        "fft",
        "func",
        "flatten_util",
        "functions",
        "hashable_array",
        "ir",
        "indexing",
        "layout",
        "lax",
        "lax_numpy",
        "linear_util",
        "linalg",
        "literals",
        "mesh",
        "mlir",
        "named_sharding",
        "normalization",
        "numeric",
        "op_shardings",
        "partial_eval",
        "pe",
        "pjit",
        "pretty_printer",
        "prng",
        "profiler",
        "pxla",
        "reductions",
        "random",
        "scalar_types",
        "sharding",
        "sharding_impls",
        "sharding_specs",
        "source_info_util",
        "stages",
        "traceback_util",
        "tree_util",
        "ufuncs",
        "util",
        "vmap",
        "xla",
        "xla_bridge",
        "xla_client",
        "weakref_lru_cache",
        "ops_utils",
        "passes",
        "serialization",
        "api_boundary",
        "control_flow",
        "loops",
        "conditionals",
        "convolution",
        "slicing",
        "special",
        "effects",
        "debugging",
        "fromnumeric",
        "_ufunc_config",
        "_internal",
        "ufunc_api",
        "array_constructors",
        "basearray",
        "tensor_contractions",
        "vectorize",
        "custom_batching",
        "shard_map",
        "setops",
        "shard_alike",
        "partition_spec",
        "hijax",
        "initializers",
        "window_functions",
        "windowed_reductions",
        "frozen_dict",
        "scatter",
        "threefry2x32",
        "rbg",
        "compute_on",
        "checkify",
        "custom_partitioning",
        "sourcemap",
        "xla_metadata",
        "xla_metadata_lib",
        "remat",
        "pmap",
        "buffer_callback",
        "monitoring",
        "mesh_utils",
        "deprecations",
        "lazy_loader",
        "lru_cache",
        "pickle_util",
        "jaxpr_util",
        "tree",
    ]
)

OVERHEAD = re.compile(r"<UNKNOWN>|BUFFER_FLUSH|DRIVER_COMPILER|(ACTIVITY_)?BUFFER_\w+|INSTRUMENTATION|RESOURCE")


def python_call(name: str) -> str:
    """A frame as `file(line): function`, as in torch.profiler; "" for any other event."""
    if match := _FRAME.fullmatch(name):
        file = match["file"]
        library = file.removesuffix(".py") in _OF_JAX
        return f"{'site-packages/jax/' if library else ''}{file}({match['line']}): {match['function']}"
    if match := _BUILTIN.fullmatch(name):
        return f"<built-in function {match['function']}>"
    return ""


def wait(name: str) -> str:
    """The awaited call of a range or frame, as in the program's source; "" if it does not wait."""
    if match := _WAIT_FRAME.match(name):
        return f"jax.Array.{match['what']}"
    match = WAIT_RANGE.match(name)
    return "np.asarray(jax.Array)" if match and name.startswith("np") else "jax.Array.await" if match else ""


def api_call(name: str, details: str, launches: bool) -> str:
    """The driver's call that an event of the host represents; "" for none. A launch's event has the name of its kernel."""
    if match := _CALL.match(name):
        return match["call"]
    if not launches:
        return ""
    if match := _COPY.match(name):
        return f"cuMemcpy{_KINDS[match['kind']].value}Async" if match["kind"] != "P2P" else "cuMemcpyPeerAsync"
    if name.startswith("Memcpy") and details:
        return "cuMemcpyAsync"
    return "cuMemsetAsync" if name.lower().startswith("memset") else "cuLaunchKernel"


def device(said: Mapping[str, object]) -> str:
    """The name of a device. An AMD device has no name in a profile, only its generation as "compute capability"."""
    if name := str(said.get("gpu_device_name", "")):
        return name
    major, minor = said.get("compute_cap_major"), said.get("compute_cap_minor")
    return f"AMD gfx{major}{minor}x" if said.get("device_vendor") == "AMD" and major else ""


def details(text: str) -> dict[str, str]:
    """`regs:46 static_shared:0 grid:128,1,1` by name."""
    return dict(_DETAIL.findall(text))


def volume(text: str) -> int:
    """Blocks of a grid or threads of a block, `128,1,1`; -1 if it was not recorded."""
    total = 1
    for part in text.split(","):
        if not part.isdecimal() or len(part) > 10:
            return -1
        total *= max(int(part), 1)
    return min(total, 2**62)


def copy_kind(name: str) -> CopyKind:
    """Direction of a copy by its name."""
    match = _COPY.match(name)
    return _KINDS[match["kind"]] if match else CopyKind.UNKNOWN


def memory_kind(text: str) -> MemoryKind:
    """Kind of memory at either end of a copy."""
    return _MEMORY.get(text, MemoryKind.UNKNOWN)
