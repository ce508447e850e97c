"""What to do about images that change their layout."""

from __future__ import annotations

from advisor.report.finding import Code, Fix

EITHER = "in FP32 and TF32 either layout may be faster"


REFUSED = "group norms between the convolutions take and return NCHW"


def one_layout(partly: bool, image: str) -> Fix:
    volume = image.count("×") == 4
    layout = "torch.channels_last_3d" if volume else "torch.channels_last"
    steps = [f"Convert the model and its input once to {layout}; convolutions, norms and elementwise ops keep the layout; torch.stack and LayerNorm do not."]
    if partly:
        steps = [
            "Part of the step runs in channels_last already. Find what leaves it: inputs that were not converted, view, flatten or "
            "permute with .contiguous(), and ops of your own that return NCHW."
        ]
    steps.append("Drop permute(...).contiguous() around channel-wise layers: in channels_last the permute is already in order.")
    steps.append("If it is not on yet, run under autocast in 16 bits: the NHWC kernels are those of the Tensor Cores.")
    tensor = f"  # tensors of up to {image}" if image else ""
    return Fix(
        title=f"Keep images in {layout.removeprefix('torch.')}",
        steps=tuple(steps),
        code=Code(
            before=f"model = model.cuda()\nout = model(images){tensor}",
            after=f"model = model.cuda().to(memory_format={layout})\nimages = images.to(memory_format={layout})\nout = model(images)",
        ),
        url="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
        holds_for=("torch",),
        risk=".view() that merges channels with height and width fails on the new strides: use .reshape() or .flatten(). "
        "Checkpoints stay compatible; another algorithm may round differently.",
        intervention=None if volume else "channels-last",
    )
