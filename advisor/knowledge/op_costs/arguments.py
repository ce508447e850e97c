"""The recorded inputs of an op, typed. Missing inputs raise, so formulas need no checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from advisor.knowledge import data

DTYPE_BYTES: dict[str, int] = {name: int(size) for size, names in data.load("dtypes")["torch"].items() for name in names}
"""Bytes of one element, by the type name that Kineto records (`caffe2::TypeMeta::name`; "long" in torch before 1.13)."""

_SCALAR_TYPES = {
    0: "unsigned char", 1: "signed char", 2: "short int", 3: "int", 4: "long int", 5: "c10::Half", 6: "float", 7: "double",
    8: "c10::complex<c10::Half>", 9: "c10::complex<float>", 10: "c10::complex<double>", 11: "bool", 15: "c10::BFloat16",
    23: "c10::Float8_e5m2", 24: "c10::Float8_e4m3fn", 25: "c10::Float8_e5m2fnuz", 26: "c10::Float8_e4m3fnuz",
}  # fmt: skip
"""`c10::ScalarType` (c10/core/ScalarType.h), the number that represents a `dtype=` argument."""

INTEGRAL = {name for name in DTYPE_BYTES if not name.startswith("c10::") and name not in ("float", "double")}


Numbers = tuple[float, float]
"""FLOPs and bytes."""


class NotRecorded(Exception):
    """A formula needs something that this record does not hold."""


class Tensor(msgspec.Struct, frozen=True):
    """One tensor argument: shape in elements, type as recorded."""

    shape: tuple[int, ...]
    dtype: str
    distinct: int = -1
    """Elements that exist in memory, less than `numel` where a dimension is expanded (stride 0)."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return dtype_bytes(self.dtype)

    @property
    def bytes(self) -> int:
        return (self.numel if self.distinct < 0 else self.distinct) * self.itemsize


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; raises NotRecorded for a name that isn't known."""
    if dtype not in DTYPE_BYTES:
        raise NotRecorded(f"element size of {dtype!r}")
    return DTYPE_BYTES[dtype]


def _distinct(shape: Sequence[int], strides: Any) -> int:
    if not isinstance(strides, list) or len(strides) != len(shape):
        return prod(shape)
    return prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0)


class Inputs(msgspec.Struct, frozen=True):
    """Positional inputs of an op in the order of its schema, then keyword-only inputs, as the dispatcher boxes them."""

    name: str
    """Without namespace: `addmm`, `add_`."""
    dims: Sequence[Any]
    types: Sequence[str]
    concrete: Sequence[str]
    strides: Sequence[Any]
    list_item_bytes: int = 0

    def __len__(self) -> int:
        return len(self.types)

    @property
    def in_place(self) -> bool:
        return self.name.endswith("_") and not self.name.endswith("__")

    def optional(self, index: int) -> Tensor | None:
        """The tensor at `index`, None if the argument was left out or is no tensor."""
        if index >= len(self.types) or self.types[index] not in DTYPE_BYTES:
            return None
        shape = self.dims[index] if index < len(self.dims) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise NotRecorded(f"shape of input {index}")
        strides = self.strides[index] if index < len(self.strides) else None
        return Tensor(tuple(shape), self.types[index], _distinct(shape, strides))

    def tensor(self, index: int) -> Tensor:
        """The tensor at `index`; raises NotRecorded if there is none."""
        found = self.optional(index)
        if found is None:
            raise NotRecorded(f"input {index} as a tensor")
        return found

    def tensors(self, start: int = 0, stop: int | None = None) -> list[Tensor]:
        """Every tensor argument of that range."""
        found = (self.optional(index) for index in range(start, len(self) if stop is None else min(stop, len(self))))
        return [tensor for tensor in found if tensor is not None]

    def tensor_list(self, index: int) -> list[int]:
        """Elements of each tensor of a list. Kineto writes an empty list for one that is too long, and never its types."""
        shapes = self.dims[index] if index < len(self.dims) else None
        if not isinstance(shapes, list) or not shapes or not all(isinstance(shape, list) for shape in shapes):
            raise NotRecorded(f"shapes of the tensor list at {index}")
        return [prod(shape) for shape in shapes]

    def is_list(self, index: int) -> bool:
        return index < len(self.types) and self.types[index] == "TensorList"

    def value(self, index: int) -> Any:
        """A scalar, flag or list of numbers; None if the argument was left out. Raises NotRecorded."""
        if index >= len(self.concrete):
            raise NotRecorded(f"value of input {index}")
        text = self.concrete[index]
        if text == "":
            return None
        try:
            return json.loads(text.replace("True", "true").replace("False", "false").rstrip("."))
        except ValueError:
            return text

    def flag(self, index: int) -> bool:
        return bool(self.required(index, bool))

    def integer(self, index: int) -> int:
        return int(self.required(index, int))

    def integers(self, index: int, count: int) -> list[int]:
        """A list of `count` numbers; a list of one represents all, as torch expands it."""
        values: list[int] = self.required(index, list)
        if len(values) not in (1, count):
            raise NotRecorded(f"{count} values of input {index}")
        return values * count if len(values) == 1 else values

    def required(self, index: int, kind: type) -> Any:
        value = self.value(index)
        if not isinstance(value, kind):
            raise NotRecorded(f"input {index} as {kind.__name__}")
        return value

    def dtype(self, index: int, default: str) -> str:
        """A `dtype=` argument; `default` if it was left out."""
        value = self.value(index) if index < len(self) else None
        if value is None:
            return default
        if isinstance(value, bool) or value not in _SCALAR_TYPES:
            raise NotRecorded(f"dtype number {value}")
        return _SCALAR_TYPES[value]


Formula = Callable[[Inputs], Numbers]


def promote(tensors: Sequence[Tensor]) -> str:
    """Type of an elementwise result, by torch's rules (`torch.result_type`).

    Tensors with dimensions decide. A 0-dimensional tensor counts only if its category is higher; it then counts as a Python number and gives the default type.
    """
    category = {"bool": 0} | dict.fromkeys(INTEGRAL - {"bool"}, 1)

    def rank(dtype: str) -> int:
        return 3 if "complex" in dtype else category.get(dtype, 2)

    shaped = [tensor.dtype for tensor in tensors if tensor.shape]
    scalars = [tensor.dtype for tensor in tensors if not tensor.shape]
    top = max((rank(dtype) for dtype in shaped), default=-1)
    higher = [dtype for dtype in scalars if rank(dtype) > top]
    if higher and shaped:
        return {1: "long int", 2: "float", 3: "c10::complex<float>"}[max(rank(dtype) for dtype in higher)]
    candidates = {dtype for dtype in shaped or scalars if rank(dtype) == max(top, *(rank(d) for d in shaped or scalars))}
    if candidates == {"c10::Half", "c10::BFloat16"}:
        return "float"
    return max(candidates, key=dtype_bytes)


def broadcast(tensors: Sequence[Tensor]) -> int:
    """Elements of the broadcast shape."""
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return prod(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))
