"""The behaviour's transitions as the online phase replays them."""

from __future__ import annotations

from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import Transitions
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.learners import Learner
from finflow.training.out_of_fold.evidence import OutOfFold
from finflow.training.out_of_fold.pretraining import transitions_outside
from finflow.training.phases.pretrain import behaviour_returns, behaviour_values
from finflow.training.phases.training_run import TrainingRun


def offline_store(
    run: TrainingRun,
    dataset: OfflineDataset,
    learner: Learner,
    market: RolloutMarket,
    beginning: RewardUnits,
    number: int,
    evidence: OutOfFold,
) -> Transitions:
    """The behaviour's transitions that a learner may see, with its lower bounds of values (Cal-QL)."""
    own = dataset if number == 0 else transitions_outside(dataset, evidence.blocks[number - 1])
    if not learner.portfolios.may_start[own.bar].any():
        raise TrainingError(
            "the behaviour data has no decision from which every learner could look bcell.expansion decisions ahead; "
            "raise train.offline_episodes, or set out_of_fold.blocks=1"
        )
    store = Transitions.of(own, run.device)
    keys, value = run.config.bcell, learner.agent.behaviour_value
    if keys.calibration == "returns":
        bounds = behaviour_returns(store, value, market.tensors, beginning, own, run.config, td_lambda=1.0)
    else:
        bounds = behaviour_values(store, value, market.tensors)
    store.columns["calibration"].copy_(bounds)
    return store
