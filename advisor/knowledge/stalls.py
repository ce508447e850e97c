"""Why a warp issues no instruction, by the names of Nsight Compute."""

from advisor.knowledge.shares import HARDLY_ANY

STALLS = {
    "long_scoreboard": "waits for global, local or texture memory",
    "short_scoreboard": "waits for shared memory or a special function",
    "mio_throttle": "waits for room in the queue of shared memory and special functions",
    "lg_throttle": "waits for room in the queue of global and local memory",
    "tex_throttle": "waits for room in the queue of texture memory",
    "math_pipe_throttle": "waits for an arithmetic unit that is busy",
    "barrier": "waits at __syncthreads for other warps",
    "membar": "waits at a memory fence",
    "drain": "waits for its stores after its last instruction",
    "wait": "waits a fixed number of cycles for the instruction before",
    "not_selected": "is ready, and another warp is chosen",
    "selected": "issues",
    "branch_resolving": "waits for a branch",
    "imc_miss": "waits for a constant",
    "no_instruction": "waits for instructions",
    "dispatch_stall": "is held back by the dispatcher",
    "gmma": "waits for a matrix product of a warp group",
    "sleeping": "sleeps",
    "misc": "waits for something else",
}
"""Why a warp does not issue, by ncu's name, in plain words that go on after "a warp"."""
NO_STALL = ("selected", "not_selected")

WORTH_SHOWING = HARDLY_ANY
"""Share of a warp's time from which a reason is shown; the largest is in any case."""
