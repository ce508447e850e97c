"""The least that a kernel takes, whatever it does: a fix that replaces kernels still pays it for each one that it leaves."""

from advisor.knowledge.measured_costs import cost

SHORTEST_US = cost("shortest-kernel")

SHORTEST_POINTWISE_US = cost("shortest-pointwise")

LATENCY_BOUND_US = cost("latency-bound-kernel")
