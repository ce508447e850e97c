"""Leaves dropout out of a run that compares numbers: kernels of another precision, fused or compiled draw its random numbers in another order."""

from __future__ import annotations

import functools
from typing import Any

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def without_dropout() -> None:
    """From here on dropout returns its input; recurrent layers keep theirs, which cuDNN draws."""
    import torch
    from torch.nn import functional

    def kept(input: Any, *args: Any, **kwargs: Any) -> Any:
        return input

    for place, names in ((functional, DROPOUTS), (torch, (*DROPOUTS, "dropout_", "alpha_dropout_", "feature_dropout", "feature_dropout_"))):
        for name in names:
            if hasattr(place, name):
                setattr(place, name, kept)
    attend = functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def attended(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any) -> Any:
        return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = attended
