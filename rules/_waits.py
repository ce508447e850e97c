"""What to write in place of calls that make the host wait."""

from __future__ import annotations

import re

from advisor.report.finding import Code, Fix

VALUE_OF_THE_DEVICE = (
    Code(
        before="seen[row, index] = True  # sends True, and waits",
        after="seen.index_put_((row, index), yes)  # yes = torch.tensor(True, device=seen.device), made once",
    ),
    "Write values at indices from a tensor on the GPU, or by index_fill_, scatter_ or masked_fill_, which take numbers: x[index] = 1.0 sends the value and waits.",
)
"""What to write, and why, where an op is given a number that it has to send."""

_CODE = (
    (
        re.compile(r"^\w*Synchronize$"),
        Code(
            before="loss.backward()\ntorch.cuda.synchronize()\noptimizer.step()",
            after="loss.backward()\noptimizer.step()\n# for timing use torch.cuda.Event(enable_timing=True)",
        ),
        "Remove torch.cuda.synchronize() and event.synchronize() from the loop; time with CUDA events.",
    ),
    (
        re.compile(r"aten::(item|_local_scalar_dense)"),
        Code(before="total += loss.item()", after="total += loss.detach()  # stays on the GPU\nif step % 100 == 0:\n    print(total.item())"),
        "Keep the value on the GPU and read it every N steps: .item(), .tolist() and .cpu() wait.",
    ),
    (
        re.compile(r"aten::is_nonzero"),
        Code(before="if bad.any():\n    grad = grad * 0", after="grad = torch.where(bad.any(), 0.0, grad)"),
        "Replace `if` on a tensor by torch.where, or by a factor that is 0 or 1; where it ends a loop, ask every N passes; what only the host acts on, stack and read once a step.",
    ),
    (
        re.compile(r"aten::(nonzero|index(?!_put_ )|masked_select|unique|_unique2)"),
        Code(before="y = x[mask]  # its size must be known on the host", after="y = torch.where(mask, x, 0.0)  # same shape, no wait"),
        "Replace boolean indexing and nonzero() by torch.where or a mask of fixed shape; where the count is known, topk or argsort finds the places.",
    ),
    (re.compile(r"^aten::index_put_ "), *VALUE_OF_THE_DEVICE),
    (
        re.compile(r"aten::(to|_to_copy|copy_|cpu)"),
        Code(
            before="value = tensor.cpu()",
            after="host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)\n"
            "host.copy_(tensor, non_blocking=True)  # read it after an event, a step later",
        ),
        "Copy to pinned memory with non_blocking=True and read the value a step later; of several that a step needs itself, stack them and read once.",
    ),
)


def fix_of_jax() -> Fix:
    return Fix(
        title="Keep values on the device, and wait once",
        steps=(
            "Return the value from the jitted step and keep the jax.Array: float(), .item(), bool() and np.asarray() wait for the device.",
            "Read what was collected every N steps, with one jax.device_get.",
            "Branch on the device: jnp.where or jax.lax.cond instead of if. To time a run call jax.block_until_ready once, at its end.",
        ),
        code=Code(
            before="for batch in batches:\n    state, loss = step(state, batch)\n    total += float(loss)",
            after="losses = []\nfor batch in batches:\n    state, loss = step(state, batch)\n    losses.append(loss)  # stays on the device\n"
            "total = sum(jax.device_get(losses))",
        ),
        url="https://docs.jax.dev/en/latest/async_dispatch.html",
        risk="Values are read later than before; code that reacts to them at once must be changed with care.",
    )


_READS = re.compile(r"^(?:cuda|cu|hip)(StreamSynchronize|Memcpy\w*)$")
"""The calls by which an op of PyTorch waits for a value."""


_IN_INFERENCE = {
    "aten::(item": Code(
        before="scores.append(score.item())",
        after="scores.append(score)  # stays on the GPU\n# after the loop, one wait for all of them:\nscores = torch.stack(scores).tolist()",
    ),
    "aten::is_nonzero": Code(
        before="if ended.all():\n    break",
        after="if n % 16 == 0 and ended.all():  # a few passes too many cost less than a wait in each\n    break",
    ),
    "Synchronize": Code(
        before="out = model(x)\ntorch.cuda.synchronize()\nsend(out)",
        after="out = model(x)\nsend(out)\n# for timing use torch.cuda.Event(enable_timing=True)",
    ),
}
"""The same where nothing is trained: there is no loss, no gradient to spoil, and no optimizer to step."""


def fix_of_waits(names: list[str], ops: bool, training: bool) -> Fix:
    """Steps and code for the waits that are there, the most frequent first. ops: whether they were recorded, and so name the waits that are theirs."""
    names = names if ops else [_READS.sub("aten::item", name) for name in names]
    counts = [(sum(bool(pattern.search(n)) for n in names), code, step, pattern.pattern) for pattern, code, step in _CODE]
    chosen = sorted((c for c in counts if c[0]), key=lambda c: -c[0])
    code = chosen[0][1] if chosen else None
    if not training and chosen:
        code = next((one for call, one in _IN_INFERENCE.items() if call in chosen[0][3]), code)
    steps = tuple(step for _, _, step, _ in chosen) or ("Move the call out of the loop, or do it every N steps.",)
    return Fix(
        title="Let the host run ahead",
        steps=(*steps, 'Find the rest with torch.cuda.set_sync_debug_mode("warn").'),
        code=code,
        url="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
        risk="Values are read later than before; code that reacts to them at once must be changed with care.",
    )
