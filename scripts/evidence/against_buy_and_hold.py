"""Gain of a training's blend over buy and hold in blocks of the training years that its learners did not see."""

from __future__ import annotations

import numpy as np

from finflow.agent.networks.decision import Blend
from finflow.agent.networks.policy_ensemble import deployed_policy, load_like
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.bootstrap import choose
from finflow.evaluation.statistics.metrics import summarise
from finflow.strategies.classical import named_strategy
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer


def against_buy_and_hold(trainer: FinFlowTrainer) -> dict[str, float]:
    """Growth of the blocks' agents, in the chosen blend, over buy and hold in the blocks; their turnover a year.

    None where no blend was decided on. The t statistic is that of the mean gain of a bar, by the stationary bootstrap.
    """
    agent, evidence = trainer.agent, trainer._begin().state.out_of_fold
    blend = Blend.from_tensor(agent.blend)
    if blend is None or agent.members is None or evidence is None:
        return {}
    gains, turnover, number = [], [], []
    for place, (block, member) in enumerate(zip(evidence.blocks, agent.members, strict=True)):
        learned = load_like(agent.policy, dict(member.state_dict()))
        policy = deployed_policy(learned, (), blend)
        strategies = [AgentStrategy(policy, trainer.device), named_strategy("buy-and-hold", trainer.config.evaluation)]
        own, held = run_backtests(trainer.training_data.process, block.held_out, strategies)
        gains.append(np.log1p(own.returns) - np.log1p(held.returns))
        turnover.append(float(summarise(own, 0.05)["annual_turnover"]))
        number.append(np.full(len(own.returns), place))
    found = choose(np.concatenate(gains)[None], np.concatenate(number), trainer.config.train.seed)
    return {"buy_and_hold_t": found.t_statistic, "out_of_fold_turnover": float(np.mean(turnover))}
