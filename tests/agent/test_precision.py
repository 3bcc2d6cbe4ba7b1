"""Products in bfloat16 and recomputed hidden layers: they do what they say, and change nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import no_denormals
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, TD3BC, BehaviourCloning, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.layers import EnsembleReadout
from finflow.config import BCellConfig
from tests.agent.conftest import CPU, SMALL, coverage, generator, make_agent, parameters, with_choices

MakeBatch = Callable[..., Batch]
PRODUCTS = ("bmm", "baddbmm", "mm", "addmm")


class Products(TorchDispatchMode):
    """Counts matrix products by the type of their first input."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket.__name__ in PRODUCTS:
            self.count[args[0].dtype] = self.count.get(args[0].dtype, 0) + 1
        return func(*args, **(kwargs or {}))


def test_what_is_read_out_is_in_float32() -> None:
    """A value of 3 in eight bits is known to 1/64, and targets, advantages and slopes are differences of values."""
    readout, hidden = EnsembleReadout(2, 64, generator()), torch.rand(2, 16, 3, 64, generator=generator(1)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = readout(hidden)
    torch.testing.assert_close(found, readout(hidden.float()), rtol=0.0, atol=0.0)


def test_parameters_moments_and_decisions_stay_in_float32(shape: NetworkShape, make_batch: MakeBatch) -> None:
    agent, batch = make_agent(shape, mixed_precision=True), with_choices(make_batch())
    metrics = agent.update_sac(batch, coverage(), generator(3), 0)
    for part in (agent.policy, agent.critic):
        assert {parameter.dtype for parameter in part.parameters()} == {torch.float32}
        gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
        assert {gradient.dtype for gradient in gradients} == {torch.float32}
    for state in agent.critic_optimiser.state.values():
        assert state["exp_avg"].dtype == torch.float32
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        decision = agent.policy(batch.states)
    assert {part.dtype for part in decision[:6]} == {torch.float32}
    torch.testing.assert_close(decision.experts.sum(-1), torch.ones(16, 5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", [BCell, IQL, TD3BC, BehaviourCloning])
def test_products_of_an_update_are_in_bfloat16(method: Any, shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Most of them: experts' mixing, gate, readouts, quantiles and what their gradients need stay in float32."""
    found = {}
    for mixed in (False, True):
        config = BCellConfig(**SMALL, mixed_precision=mixed)
        with Products() as products:
            if method is BCell:
                found[mixed] = make_agent(shape, mixed_precision=mixed).update_sac(make_batch(), coverage())
            else:
                learner = method(portfolio_networks(shape, config, generator()), config, CPU)
                found[mixed] = learner.update(make_batch(), 0.0, generator())
        narrow, wide = products.count.get(torch.bfloat16, 0), products.count.get(torch.float32, 0)
        assert (narrow > wide) if mixed else (narrow == 0 and wide > 0), products.count
    name = "q_loss" if method is BCell else "v_loss"
    assert found[True][name].item() == pytest.approx(found[False][name].item(), rel=0.03)


@pytest.mark.parametrize(
    ("options", "several"),
    [({}, False), ({"dropout": 0.3}, True), ({"mixed_precision": True}, True), ({"risk_measure": "cvar"}, True)],
)
def test_computing_twice_gives_the_same_update(
    options: dict[str, object], several: bool, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """The same gradients, bit for bit, and the same random numbers afterwards."""
    batch = with_choices(make_batch()) if several else make_batch()
    results, left = [], []
    for twice in (False, True):
        agent, noise = make_agent(shape, gradient_checkpointing=twice, **options), generator(3)
        for update in range(2):
            agent.update_sac(batch, coverage(), noise, update)
        results.append(parameters(agent.policy, agent.critic))
        left.append(torch.rand(4, generator=noise))
    assert torch.equal(*results)
    assert torch.equal(*left)


def kept_bytes(agent: BCell, batch: Batch) -> int:
    """Memory of different tensors that the critic's part of an update keeps for its backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    portfolios = torch.softmax(torch.randn(16, 31, 5, generator=generator(2)), dim=-1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoding = agent.critic.encode(batch.states)
        valuation = agent.critic.value(encoding, batch.states, portfolios)
    inputs = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in (*encoding, portfolios)}
    kept |= inputs  # computing again needs these, saved or not
    assert valuation.mean.requires_grad
    return sum(kept.values())


def test_computing_twice_keeps_less(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch = make_batch()
    once, twice = (
        kept_bytes(make_agent(shape, hidden_dim=64, gradient_checkpointing=option), batch) for option in (False, True)
    )
    assert twice < 0.6 * once, (once, twice)


def test_there_are_no_denormal_numbers_in_an_update_and_elsewhere_there_are() -> None:
    """Also after an update that failed: the ledger's numbers are nobody else's business."""
    with no_denormals():
        assert torch.tensor(1e-40) * 1.0 == 0.0
    assert torch.tensor(1e-40) * 1.0 != 0.0
    with pytest.raises(ArithmeticError), no_denormals():
        raise ArithmeticError
    assert torch.tensor(1e-40) * 1.0 != 0.0
