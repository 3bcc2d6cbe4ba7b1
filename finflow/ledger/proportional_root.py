"""The gradient of the wealth factor under proportional costs, in closed form: a step of learning takes many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ProportionalRoot(torch.autograd.Function):
    """The solved wealth factor with its gradient by the implicit function theorem.

    With ``s = sign(mu w - h)`` and a rate ``k``, the root of ``mu = 1 - k sum |mu w - h|`` has
    ``d mu = k (s dh - mu s dw) / (1 + k s w)``.
    """

    @staticmethod
    def forward(ctx: Any, held: Tensor, wanted: Tensor, factor: Tensor, rate: Tensor) -> Tensor:
        ctx.save_for_backward(held, wanted, factor, rate)
        return factor.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None]:
        held, wanted, factor, rate = ctx.saved_tensors
        mu = factor.unsqueeze(-1)
        side = (mu * wanted - held).sign_()
        share = slope * rate / (1.0 + rate * (side * wanted).sum(dim=-1))
        of_held = side.mul_(share.unsqueeze(-1))
        return of_held, -mu * of_held, None, None


def differentiable_root(held: Tensor, wanted: Tensor, factor: Tensor, rate: Tensor) -> Tensor:
    """The solved wealth factor (batch,), with its gradient.

    ``held`` and ``wanted`` are portfolios before and after the trade, (batch, assets), ``rate`` () the cost of a unit.
    """
    root: Tensor = _ProportionalRoot.apply(held, wanted, factor, rate)  # type: ignore[no-untyped-call]
    return root
