"""What to do about the program's own work on the host."""

from __future__ import annotations

from advisor.knowledge.op_tokens import names_of
from advisor.report.finding import Advice, Code, Conditional, Fix
from advisor.views.trace.host_code import OwnWork

_COPIES = names_of("copy_before_blank")

_A_STEP_LATER = Code(
    before="for x in batches:\n    work_on(model(x).tolist())  # the GPU idles meanwhile",
    after="""last = None
for x in batches:
    out, copied = model(x).to("cpu", non_blocking=True), torch.cuda.Event()
    copied.record()
    if last:  # while this step runs; the last step's is left after the loop
        last[1].synchronize()
        work_on(last[0].tolist())
    last = out, copied""",
)
"""The copy is queued behind its own step: asked for a step later, it would wait for the next one."""


def host_work(work: OwnWork, reads: bool, loader: bool) -> Fix:
    """reads: whether it follows a host read of a GPU result; loader: whether the program has a dataloader, or trains and so may have one."""
    url = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    if work.kind == "gc":
        return Fix(
            title="Keep garbage collection out of the step",
            steps=(
                "Call gc.freeze() after start-up, so that the model's objects are not looked at again.",
                "Disable automatic collection and collect between epochs, or every few hundred steps.",
            ),
            code=Code(
                before="for batch in loader:\n    step(batch)\n    gc.collect()",
                after="gc.collect(); gc.freeze(); gc.disable()\nfor i, batch in enumerate(loader):\n    step(batch)\n    if i % 1000 == 999:\n        gc.collect()",
            ),
            url="https://docs.python.org/3/library/gc.html#gc.freeze",
            risk="Reference cycles that hold GPU tensors live until the next collection.",
            intervention="no-collection",
        )
    if work.kind == "sleep":
        return Fix(
            title="Do not sleep in the thread that launches",
            steps=(f"Remove the sleep in {work.label}; poll or throttle in another thread.",),
            url=url,
        )
    if work.kind == "generated":
        return Fix(
            title="Make launching that kernel cheap",
            steps=(
                f"Look at {work.label}: a custom launcher that looks up a configuration, makes descriptors of tensors or checks arguments each time.",
                "Do that once, for each shape, and keep the compiled kernel: kernel.warmup(...) returns it, and compiled[grid](*args) launches it.",
                "Or capture the step in a CUDA graph: the replay skips the host's work between launches.",
            ),
            url="https://triton-lang.org/main/python-api/generated/triton.jit.html",
        )
    if work.kind == "cpu-op" and _COPIES.match(work.label):
        return Fix(
            title="Convert on the GPU, or when the batch is made",
            steps=(
                f"{work.label}: a tensor is copied, converted or put in order on the host. Send it unchanged and do that on the GPU, or when the batch is made.",
            ),
            code=Code(before='x = batch.float().contiguous().to("cuda")', after='x = batch.to("cuda").float().contiguous()'),
            url=url,
        )
    if work.kind == "cpu-op":
        op = work.label.partition(" ")[0]
        return Fix(
            title="Do this op on the GPU, or in another process",
            steps=(
                f"{work.label}: move its inputs to the GPU once, or make the result with the batch.",
                "If the result steers Python, compute it a step ahead.",
            ),
            code=Code(before=f'y = compute(x.cpu()).to("cuda")  # {op}', after=f"y = compute(x)  # {op}; x stays on the GPU"),
            url=url,
            risk="Results of GPU and CPU kernels may differ in the last bits.",
        )
    if work.kind == "prepared":
        return Fix(
            title="Prepare the input on the GPU",
            steps=(
                f"{work.label}. Copy the raw input to the GPU from pinned memory, and run these ops there: resizing, normalising and spectrograms have GPU kernels.",
                "If the CPU must do it, prepare the next request in another thread or process while the GPU computes.",
            ),
            code=Code(
                before='x = normalise(resize(raw.float())).to("cuda")',
                after='x = normalise(resize(raw.pin_memory().to("cuda", non_blocking=True).float()))',
            ),
            url=url,
            risk="Results of GPU and CPU kernels may differ in the last bits.",
        )
    if reads:
        return Fix(
            title="Work on the last step's result while the next step runs",
            steps=(
                f"{_place_of_work(work)}. It follows a result that the host has read: launch the next step first, and work on the last result while that runs.",
                Advice(
                    "If the next step needs the outcome, do the work as tensor ops on the GPU.",
                    Conditional("loader", "Work that needs no result, such as making a batch, belongs in DataLoader workers."),
                ),
            ),
            code=_A_STEP_LATER,
            url=url,
            risk="The work's outcome is available a step later than before.",
        )
    elsewhere = f"{_place_of_work(work)}. Do it as tensor ops on the GPU for the whole batch, in another process, or every N steps."
    return Fix(
        title="Take the work off the thread that launches",
        steps=(
            Advice(elsewhere, Conditional("loader", "DataLoader workers are such processes.")) if loader else elsewhere,
            "A thread of the same process can read and write files, but not run Python in parallel (GIL).",
            "If it must stay, launch the next step's kernels first and do the host's work while they run.",
        ),
        code=_IN_WORKERS if loader else _IN_A_POOL,
        url=url,
        risk="Work that moves elsewhere must not change the step's inputs.",
    )


_IN_WORKERS = Code(
    before="for batch in loader:\n    targets = build_targets(batch)  # Python on the main thread\n    step(batch, targets)",
    after="loader = DataLoader(dataset, collate_fn=build_batch_and_targets, num_workers=8)\nfor batch, targets in loader:\n    step(batch, targets)",
)
_IN_A_POOL = Code(
    before="for request in requests:\n    features = prepare(request)  # Python on the main thread\n    step(features)",
    after="with ProcessPoolExecutor(max_workers=8) as pool:\n    for features in pool.map(prepare, requests):  # made ahead, in other processes\n        step(features)",
)


def _place_of_work(work: OwnWork) -> str:
    """The work as something to look at."""
    if work.kind == "unknown" and not work.label.startswith("blocked in"):
        return f"Find the work or wait in {work.label}. A recording with with_stack=True, or a sampling profiler, names it"
    return f"Look at {'why the host is ' * work.label.startswith('blocked in')}{work.label}"
