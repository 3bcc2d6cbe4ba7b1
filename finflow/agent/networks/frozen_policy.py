"""A deployed policy, frozen, whose tensors alone describe it: what fine-tuning against an agent's file is held to.

An agent decides by one policy, by a blend of it with a reference, or by the mean of several policies. Which of
these it is, and with which numbers, stands in tensors next to those of the networks, so that a checkpoint holds nothing
but tensors.
"""

from __future__ import annotations

import copy
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
    decides on, with the geometric mean of the members' scales. So the KL of another policy from it has a closed form.

    Parameters
    ----------
    members : sequence of ExpertPolicy
        Of one shape; they are copied.
    blend : Blend, optional
        Each member is blended with its reference.
    """

    blend_numbers: Tensor

    def __init__(self, members: Sequence[ExpertPolicy], blend: Blend | None = None) -> None:
        super().__init__([blended(copy.deepcopy(one), blend) for one in members], blend)
        device = next(members[0].parameters()).device
        numbers = no_blend(device) if blend is None else blend.to_tensor(device)
        self.register_buffer("blend_numbers", numbers)
        freeze([self])

    @classmethod
    def of(cls, deployed: ExpertPolicy, volatility: tuple[int, float]) -> FrozenPolicy:
        """Freeze a policy that an agent decides by.

        Parameters
        ----------
        volatility : tuple of int and float
            Column of the log volatility among the assets' features, and the deviation it is scaled by, in the market
            that the policy is used in; another training window may have scaled it by another.
        """
        blend = None if deployed.blend is None else deployed.blend._replace(volatility=volatility)
        return cls(deployed.policies() if isinstance(deployed, PolicyEnsemble) else [deployed], blend)

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
        numbers = _numbers(tensors, "blend_numbers")
        count = len({name.split(".")[1] for name in tensors if name.startswith(MEMBERS)})
        if not 0 < count <= MOST_MEMBERS:
            raise ValueError(f"it has {count} policies")
        if len(numbers) != 4:
            raise ValueError("its blend with a reference is invalid")
        blend = Blend.from_tensor(tensors["blend_numbers"])
        if blend is not None and blend.volatility[0] >= like.lens.shape[1] - 1:
            raise ValueError("its blend reads a feature that there is not")
        _check_members(like, tensors, count)
        members = [copy.deepcopy(like) for _ in range(count)]
        for number, member in enumerate(members):
            member.blend = None
            prefix = f"{MEMBERS}{number}."
            member.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        return cls(members, blend)


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
