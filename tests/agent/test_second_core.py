"""An update that takes gradients on a second core learns the bits of one that has a single core."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from finflow import cores
from finflow.agent.batch import Batch
from finflow.agent.learners.behaviour_cloning import BehaviourCloning
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import OfflineLearner, portfolio_networks
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.precision import autocast_update
from finflow.config import BCellConfig
from tests.agent.helpers import CPU, SMALL, coverage, generator, make_agent, parameters, with_choices

MakeBatch = Callable[..., Batch]
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"dropout": 0.3, "gradient_checkpointing": True},
    {"mixed_precision": True},
    {"cql_mode": "lagrange"},
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of an operation, as in training; and nothing done on a second core yet."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(cores, "_second", None)
    yield
    torch.set_num_threads(before)


Update = Callable[[int], dict[str, torch.Tensor]]  # what an update says of itself, by its number


def assert_same_bits(make: Callable[[], tuple[Update, list[torch.nn.Module]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What four updates leave and say of themselves is the same with one core and with two."""
    found = []
    for count in (1, 2):
        monkeypatch.setattr(cores, "available_cores", lambda count=count: count)
        update, modules = make()
        said = [torch.stack([value.double() for value in update(number).values()]) for number in range(4)]
        found.append(torch.cat([parameters(*modules).double(), *said]))
    assert cores._second is not None, "the second core was not used"
    assert torch.equal(*found)


@pytest.mark.parametrize("several", [False, True], ids=["transitions", "several actions"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
def test_online_updates_are_the_same_bits(
    options: dict[str, object],
    several: bool,
    shape: NetworkShape,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> tuple[Update, list[torch.nn.Module]]:
        agent, noise = make_agent(shape, **options), generator(3)

        def update(number: int) -> dict[str, torch.Tensor]:
            batch = make_batch(seed=number)
            batch = with_choices(batch, seed=number) if several else batch
            return agent.update_sac(batch, coverage(seed=number), noise, number, actor=number > 0, total=4)

        return update, [agent.policy, agent.critic, agent.target_critic]

    assert_same_bits(make, monkeypatch)


@pytest.mark.parametrize("method", [IQL, BehaviourCloning])
@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"iql_extraction": "gradient"}], ids=str)
def test_offline_updates_are_the_same_bits(
    method: type[OfflineLearner],
    options: dict[str, object],
    shape: NetworkShape,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> tuple[Update, list[torch.nn.Module]]:
        config = BCellConfig(**{**SMALL, **options})
        learner, noise = method(portfolio_networks(shape, config, generator()), config, CPU), generator(3)
        parts = [learner.policy, learner.critic, learner.value, learner.target_critic]
        return lambda number: learner.update(make_batch(seed=number), 0.25 * (number + 1), noise), parts

    assert_same_bits(make, monkeypatch)


def test_there_are_no_denormal_numbers_in_an_update_and_elsewhere_there_are(make_batch: MakeBatch) -> None:
    """Also after an update that failed: the ledger's numbers are nobody else's business."""

    class Learner:
        config = BCellConfig()

        @autocast_update
        def update(self, batch: Batch, fails: bool) -> torch.Tensor:
            if fails:
                raise ArithmeticError
            return torch.tensor(1e-40) * 1.0

    learner = Learner()
    assert learner.update(make_batch(), False) == 0.0
    assert torch.tensor(1e-40) * 1.0 != 0.0
    with pytest.raises(ArithmeticError):
        learner.update(make_batch(), True)
    assert torch.tensor(1e-40) * 1.0 != 0.0
