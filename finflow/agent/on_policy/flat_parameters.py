"""Parameters of several networks as views of one vector, so that one operation steps or measures all of them.

Small networks spend their time on the number of operations, not on their size: an optimiser that walks over twelve
tensors takes several times as long as over one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """One vector that holds parameters, and one that holds their gradients.

    The parameters stay where they are in their networks, as views of the vector: what is written to the one is read
    from the other.

    Parameters
    ----------
    parameters : iterable of Parameter
        Of one type and device.

    Attributes
    ----------
    vector : Parameter, (n,)
        Its ``grad`` holds the gradients of all.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parts = list(parameters)
        self.vector = nn.Parameter(torch.cat([part.detach().reshape(-1) for part in self.parts]))
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        place = 0
        for part in self.parts:
            stop = place + part.numel()
            part.data = self.vector.detach()[place:stop].view_as(part)
            part.grad = self.gradient[place:stop].view_as(part)
            place = stop

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.gradient.zero_()


def shorten(vectors: Iterable[Tensor], longest: float) -> Tensor:
    """Shorten gradient vectors together to a norm of at most ``longest``; returns the norm before, ()."""
    gradients = list(vectors)
    norm: Tensor = torch.stack([gradient.norm() for gradient in gradients]).norm()
    share = (longest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(share)
    return norm
