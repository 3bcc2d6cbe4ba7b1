"""An offline update that takes gradients on a second core learns the bits of one that has a single core."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from finflow import cores
from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import no_denormals
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import BehaviourCloning, OfflineLearner, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig
from tests.agent.helpers import CPU, SMALL, generator, parameters

MakeBatch = Callable[..., Batch]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of an operation, as in training; and nothing done on a second core yet."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(cores, "_second", None)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", [IQL, BehaviourCloning])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.3, "gradient_checkpointing": True},
        {"mixed_precision": True},
        {"iql_extraction": "gradient"},
    ],
    ids=str,
)
def test_offline_updates_are_the_same_bits(
    method: type[OfflineLearner],
    options: dict[str, object],
    shape: NetworkShape,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    found = []
    for ways in ([], [cores.run_both]):
        config = BCellConfig(**{**SMALL, **options})
        learner, noise = method(portfolio_networks(shape, config, generator()), config, CPU, *ways), generator(3)
        updates = [learner.update(make_batch(seed=number), 0.25 * (number + 1), noise) for number in range(4)]
        said = [torch.stack([value.double() for value in update.values()]) for update in updates]
        parts = parameters(learner.policy, learner.critic, learner.value, learner.target_critic).double()
        found.append(torch.cat([parts, *said]))
    assert cores._second is not None, "the second core was not used"
    assert torch.equal(*found)


def test_there_are_no_denormal_numbers_in_an_update_and_elsewhere_there_are() -> None:
    """Also after an update that failed: the ledger's numbers are nobody else's business."""
    with no_denormals():
        assert torch.tensor(1e-40) * 1.0 == 0.0
    assert torch.tensor(1e-40) * 1.0 != 0.0
    with pytest.raises(ArithmeticError), no_denormals():
        raise ArithmeticError
    assert torch.tensor(1e-40) * 1.0 != 0.0
