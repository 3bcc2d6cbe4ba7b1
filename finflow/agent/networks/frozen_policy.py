"""A deployed policy, frozen, whose tensors alone describe it: what fine-tuning against an agent's file is held to.

An agent decides by one policy, by a blend of it with a reference, or by the weighted mean of several policies. Which of
these it is, and with which numbers, stands in tensors next to those of the networks, so that a checkpoint holds nothing
but tensors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from finflow.agent.gradient_steps import freeze
from finflow.agent.networks.decision import Blend, no_blend
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.agent.networks.policy_ensemble import PolicyEnsemble

MOST_MEMBERS = 32  # a file with more is refused; an agent has its policy, and one a block
MEMBERS = "members."


class FrozenPolicy(PolicyEnsemble):
    """Policy that an agent was deployed with, frozen: one policy or several, in the blend that was decided on.

    Its density is logistic-normal, as that of each member: located at the log ratios of the portfolio that the agent
    decides on, with the geometric mean of the members' scales, each to the power of the member's weight. So the KL of
    another policy from it has a closed form.

    Parameters
    ----------
    members : sequence of ExpertPolicy
        Of one shape; they are copied.
    blend : Blend, optional
        Each member is blended with its reference.
    weights : sequence of float, optional
        Of the members, summing to one; equal when left out.
    """

    shares: Tensor
    trade_limits: Tensor
    blend_numbers: Tensor

    def __init__(
        self, members: Sequence[ExpertPolicy], blend: Blend | None = None, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__([blended(copy.deepcopy(one), blend) for one in members], blend, weights)
        device = next(members[0].parameters()).device
        numbers = no_blend(device) if blend is None else blend.to_tensor(device)
        self.register_buffer("shares", torch.tensor(self.weights, dtype=torch.float64, device=device))
        self.register_buffer("trade_limits", torch.tensor(self.trade_range, dtype=torch.float64, device=device))
        self.register_buffer("blend_numbers", numbers)
        freeze([self])

    @classmethod
    def of(cls, deployed: ExpertPolicy, volatility: tuple[int, float]) -> FrozenPolicy:
        """Freeze a policy that an agent decides by.

        Parameters
        ----------
        deployed : ExpertPolicy
        volatility : tuple of int and float
            Column of the log volatility among the assets' features, and the deviation it is scaled by, in the market
            that the policy is used in; another training window may have scaled it by another.
        """
        blend = None if deployed.blend is None else deployed.blend._replace(volatility=volatility)
        if isinstance(deployed, PolicyEnsemble):
            return cls(deployed.policies(), blend, deployed.weights)
        return cls([deployed], blend)

    @classmethod
    def from_tensors(cls, like: ExpertPolicy, tensors: Mapping[str, Tensor]) -> FrozenPolicy:
        """Read a frozen policy back from its tensors in a file.

        Parameters
        ----------
        like : ExpertPolicy
            Of the members' shape.
        tensors : mapping of str to Tensor
            By their names in the frozen policy.

        Raises
        ------
        ValueError
            If a tensor is missing, has no place, or has another shape or type; or if the numbers describe no policy.
        """
        numbers = {name: _numbers(tensors, name) for name in ("shares", "trade_limits", "blend_numbers")}
        shares, limits = numbers["shares"], numbers["trade_limits"]
        if not 0 < len(shares) <= MOST_MEMBERS or min(shares) < 0.0 or abs(math.fsum(shares) - 1.0) > 1e-6:
            raise ValueError("the weights of its policies are invalid")
        if len(limits) != 2 or not 0.0 <= limits[0] <= limits[1] <= 1.0:
            raise ValueError("its range of trade rates is invalid")
        if len(numbers["blend_numbers"]) != 4:
            raise ValueError("its blend with a reference is invalid")
        blend = Blend.from_tensor(tensors["blend_numbers"])
        if blend is not None and blend.volatility[0] >= like.lens.shape[1] - 1:
            raise ValueError("its blend reads a feature that there is not")
        _check_members(like, tensors, len(shares))
        members = [copy.deepcopy(like) for _ in shares]
        for number, member in enumerate(members):
            member.trade_range, member.blend = (limits[0], limits[1]), None
            prefix = f"{MEMBERS}{number}."
            member.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        return cls(members, blend, shares)


def _numbers(tensors: Mapping[str, Tensor], name: str) -> list[float]:
    """Finite numbers of a small tensor; a ValueError where it is missing or is not such."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != torch.float64 or tensor.dim() != 1 or tensor.numel() > MOST_MEMBERS:
        raise ValueError(f"it has no {name}")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"its {name} are not finite")
    numbers: list[float] = tensor.tolist()
    return numbers


def _check_members(like: ExpertPolicy, tensors: Mapping[str, Tensor], count: int) -> None:
    """Check that tensors are those of so many policies like another one; a ValueError where they are not."""
    expected = {
        f"{MEMBERS}{number}.{name}": tensor for number in range(count) for name, tensor in like.state_dict().items()
    }
    present = {name for name in tensors if name.startswith(MEMBERS)}
    for name in sorted(present ^ set(expected)):
        raise ValueError(f"{name[:60]} is {'out of place' if name in present else 'missing'}")
    for name, tensor in expected.items():
        given = tensors[name]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise ValueError(f"{name[:60]} is {given.dtype} {tuple(given.shape)}, not {tuple(tensor.shape)}")
