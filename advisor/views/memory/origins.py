"""Origin of each allocation, by its stack: op, line of the program, module and phase of a step."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from pathlib import PurePosixPath

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.knowledge.expressions import expression
from advisor.knowledge.library_files import IN_LIBRARY
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.snapshot import Frame, MemorySnapshot, Stack


class Phase(IntEnum):
    """What the program was doing."""

    FORWARD = 0
    """Or anything else that is neither of the others: setting up, evaluating."""
    BACKWARD = 1
    OPTIMIZER = 2


class Origin(msgspec.Struct, frozen=True):
    """Contents of a stack; "" and 0 if missing."""

    op: str = ""
    """As torch names it: `addmm`, `_softmax`; a Python function where C++ frames were not recorded."""
    file: str = ""
    line: int = 0
    """Innermost line that is neither PyTorch's nor an installed package's."""
    function: str = ""
    caller: str = ""
    """Where the program called that function: `file:function` of the next of its own frames, "" if there is none."""
    module: str = ""
    """Calls of `forward`, outermost first, as `model.py:attend > linear`."""
    phase: Phase = Phase.FORWARD
    own_update: bool = False
    """Made in the step of an optimizer that is the program's own, and no library's."""
    node: str = ""
    """The autograd node, as `AddmmBackward0`."""
    sets_up: bool = False
    """Made while a model was built, loaded or moved."""
    recomputes: bool = False
    """Made while a checkpointed part was run again."""
    checkpointed: bool = False
    workspace: bool = False
    """Scratch memory of cuBLAS, cuDNN and their like, kept for the next call."""
    known: bool = True
    """Whether there was a stack at all."""

    @property
    def source(self) -> str:
        """`file.py:12`, "" if no line of the program is known."""
        return f"{PurePosixPath(self.file).name}:{self.line}" if self.file else ""


# Ops that only make room for the op that called them.
_MAKES_ROOM = names_of("frame_makes_room")
_OP = names_of("frame_op")
_NODE = names_of("frame_node")
_WORKSPACE = names_of("frame_workspace")
_LIBRARY = expression(
    IN_LIBRARY + r"|(^|/)(torch|torchvision|torch_geometric|transformers|accelerate|lightning|timm|einops|triton|jax|jaxlib|flax|optax|numpy)/"
    r"|(^|/)(contextlib|functools|runpy|threading)\.py$"
)
_INSTALLED = expression(r"(.*/(?:site|dist)-packages/([^/]+)/)")
_OPTIMIZER = expression(r"(^|/)(torch/optim/|optim\w*/|\w*optimi[sz]er\w*\.py|adam(w|ax|_?mini|w?_?8bit)?\.py|sgd\.py|adafactor\.py)")
_SETS_UP = {"__init__", "_apply", "convert", "load_state_dict", "reset_parameters", "from_pretrained", "_load_state_dict_into_model"}


class Origins(msgspec.Struct, frozen=True):
    """The origin of each stack of a snapshot; the last one represents allocations without a stack (index -1)."""

    of: tuple[Origin, ...]
    native: bool
    """Whether C++ frames were recorded: only then does an op of the backward pass show if it is."""

    @classmethod
    def build(cls, snapshot: MemorySnapshot) -> Origins:
        native = any("::" in frame.name for stack in snapshot.stacks[:64] for frame in stack)
        # Without C++ frames the thread that runs the backward pass has no frames at all.
        missing = Origin(known=False, phase=Phase.BACKWARD if snapshot.stacks and not native else Phase.FORWARD)
        return cls((*(_origin(stack) for stack in snapshot.stacks), missing), native)

    def column(self, name: str, stack: npt.NDArray[np.int32]) -> npt.NDArray[np.generic]:
        """An attribute of the origin of each stack index."""
        return np.array([getattr(origin, name) for origin in self.of])[stack]


def _origin(stack: Stack) -> Origin:
    python = [frame for frame in stack if frame.python]
    native = [frame for frame in stack if not frame.python]
    own = _started(python)
    mine = [frame for frame in python if (own and frame.file.startswith(own)) or not _LIBRARY.search(frame.file)][:2]
    user = mine[0] if mine else None
    node = next((m[1] for m in (_NODE.search(frame.name) for frame in native) if m), "")
    recomputes = any(_in_checkpoint(frame) and frame.name in ("recompute_fn", "unpack_hook", "recompute") for frame in python)
    stepping = any(_OPTIMIZER.search(frame.file) and frame.name not in ("zero_grad",) for frame in python)
    return Origin(
        op=_op(native) or _python_op(python),
        file=user.file if user else "",
        line=user.line if user else 0,
        function=user.name if user else "",
        caller=f"{mine[1].file}:{mine[1].name}" if len(mine) > 1 else "",
        module=_module(python),
        phase=_phase(python, native, recomputes, stepping),
        own_update=stepping and not any(_of_library_optimizer(frame, own) for frame in python),
        node=node,
        sets_up=any(frame.name in _SETS_UP for frame in python) and not stepping,
        recomputes=recomputes,
        checkpointed=any(_in_checkpoint(frame) for frame in python),
        workspace=any(_WORKSPACE.search(frame.name) for frame in native[:14]),
    )


def _of_library_optimizer(frame: Frame, own: str) -> bool:
    """Whether it is of an optimizer that came with a library; torch's class of all optimizers is around those of a program's own as well."""
    mine = (own and frame.file.startswith(own)) or not _LIBRARY.search(frame.file)
    return not mine and bool(_OPTIMIZER.search(frame.file)) and not frame.file.endswith("torch/optim/optimizer.py")


def _started(python: list[Frame]) -> str:
    """How the paths of the program's own files begin, "" if it is unknown: the file that was started, which may lie in a folder that is called
    like a library; of an installed package that was run as a module, all of the package."""
    file = next((frame.file for frame in reversed(python) if frame.name == "<module>"), "")
    package = _INSTALLED.match(file)
    if package is None:
        return file
    return "" if _LIBRARY.search(f"/{package[2]}/x") else package[1]


def _phase(python: list[Frame], native: list[Frame], recomputes: bool, stepping: bool) -> Phase:
    backward = recomputes or any("torch::autograd::Engine::" in frame.name for frame in native)
    backward = backward or any(frame.name in ("_engine_run_backward",) for frame in python)
    if backward:
        return Phase.BACKWARD
    return Phase.OPTIMIZER if stepping else Phase.FORWARD


def _in_checkpoint(frame: Frame) -> bool:
    return frame.file.endswith("utils/checkpoint.py")


def _op(native: Iterable[Frame]) -> str:
    found = ""
    for frame in native:
        match = _OP.match(frame.name)
        if match:
            found = match[1]
            if not _MAKES_ROOM.match(found):
                return found
    return found


def _python_op(python: list[Frame]) -> str:
    """The function of PyTorch that the program called, if nothing says more."""
    if not python:
        return ""
    inner = python[0]
    if inner.name == "forward" and inner.file:
        return PurePosixPath(inner.file).stem
    return inner.name


def _module(python: list[Frame]) -> str:
    """The calls of `forward`, outermost first. Which instance a module is, a stack does not say."""
    calls = [frame for frame in python if frame.name == "forward" and PurePosixPath(frame.file).name != "container.py"]
    names = [PurePosixPath(frame.file).stem + (f":{frame.line}" if not _LIBRARY.search(frame.file) else "") for frame in reversed(calls)]
    return " > ".join(names)
