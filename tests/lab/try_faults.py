"""Faults of numerics, each as something that could pass for an intervention: what `advisor try` has to catch. Loaded inside the program."""


def _around(change):
    """Wrap the outermost modules' calls."""
    from _advisor_in_program.lab.interventions.outermost import wrap_outermost

    wrap_outermost(change)


def wrong_dtype(applied):
    """The model computes in bfloat16, and gives float32 back."""
    import torch

    def wrap(module, call):
        applied.note_module(module)

        def called(x):
            with torch.autocast(x.device.type, torch.bfloat16):
                return call(x).float()

        return called

    _around(wrap)


def dropped_step(applied):
    """Every third update is left out."""
    import torch

    step, count = torch.optim.AdamW.step, [0]

    def stepped(self, *args):
        count[0] += 1
        applied.note_line("step")
        return step(self, *args) if count[0] % 3 else None

    torch.optim.AdamW.step = stepped


def stale_buffer(applied):
    """The model sees the batch before."""

    def wrap(module, call):
        applied.note_module(module)
        held = []

        def called(x):
            held.append(x.clone())
            return call(held[-2] if len(held) > 1 else x)

        return called

    _around(wrap)


def gradients_kept(applied):
    """Gradients add up over steps."""
    import torch

    def nothing(self, set_to_none=True):
        applied.note_line("zero_grad")

    torch.optim.Optimizer.zero_grad = nothing


def no_dropout(applied):
    """Dropout is off."""

    def wrap(module, call):
        applied.note_module(module)

        def called(x):
            module.eval()
            return call(x)

        return called

    _around(wrap)


def slower_learning(applied):
    """Each update is a tenth shorter."""
    import torch

    init = torch.optim.AdamW.__init__

    def made(self, params, lr=1e-3, **options):
        applied.note_line("AdamW")
        init(self, params, lr=0.9 * lr, **options)

    torch.optim.AdamW.__init__ = made


def late_fault(applied):
    """One update is left out, long after the first steps."""
    import torch

    step, count = torch.optim.AdamW.step, [0]

    def stepped(self, *args):
        count[0] += 1
        applied.note_line("step")
        return step(self, *args) if count[0] != 12 else None

    torch.optim.AdamW.step = stepped


def nothing(applied):
    """No fault, and no change."""
    applied.note_line("nothing")
