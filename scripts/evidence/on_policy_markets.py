"""Evidence about on-policy learning on markets: PPO, TRPO and SAC from scratch, seeded, and held to a reference.

Small trainings of one size for all. Validation is read, the test window never. The second measurement compares the
gradient of group-relative advantages with that of generalised advantage estimation: same policy, as many decisions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finflow.agent.on_policy.clipped_objective import surrogate_loss
from finflow.config import Config, changed_config
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.training.data.rewards import RewardUnits
from finflow.training.judging.generalisation_measure import mean_kl
from finflow.training.on_policy.market_rollouts import RolloutCollector
from finflow.training.on_policy.on_policy_state import OnPolicyState
from finflow.training.phases.training_state import seeded
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import judge_of
from scripts.evidence.results import grouped, train_and_validate
from scripts.evidence.rollouts import LOG_RETURN, OWN
from scripts.evidence.tables import markdown_table
from scripts.evidence.variants import Variant

PREFIX = "on-policy-"
SEEDS = (0, 1, 2)
ALGORITHMS = ("ppo", "trpo", "sac")
STARTS: Mapping[str, Mapping[str, object]] = {
    "scratch": {"offline.method": "none"},
    "seeded": {},
    "reference": {"online.reference": "pretrained"},
}
PLANTED = ("mean-reverting", "regime")
EMBEDDED = "embedded"
TRAINED = ("regime", "mean-reverting", EMBEDDED)
VARIANCE = "gradients-"
ROLLOUTS = 40  # whose gradients are compared
#: Advantages that are compared; the first are what PPO has by default.
ESTIMATORS: Mapping[str, Mapping[str, object]] = {
    "gae": {},
    "gae 0.8": {"online.gae_lambda": 0.8},
    "gae 0.5": {"online.gae_lambda": 0.5},
    "group 1": {"online.advantages": "group"},
    "group 0.8": {"online.advantages": "group", "online.group_lambda": 0.8},
    "group 0.5": {"online.advantages": "group", "online.group_lambda": 0.5},
    "followed 8": {"online.advantages": "group", "online.group_noise": 32},
    "followed 4": {"online.advantages": "group", "online.group_noise": 32, "online.group_size": 4},
}
#: One size for all gradients.
SMALL: dict[str, object] = {
    "bcell.hidden_dim": 32,
    "env.episode_length": 126,
    "train.offline_episodes": 24,
    "train.offline_training_epochs": 3,
    "train.online_episodes": 65,
    "train.warmup_episodes": 8,
    "train.critic_only_updates": 50,
    "train.online_batch_size": 64,
    "train.offline_batch_size": 128,
    "train.validation_updates": 100_000,
    "train.checkpoint_updates": 100_000,
    "train.checkpoint_interval": 100_000,
    "train.generalisation": False,
    "offline.evaluation_updates": 0,
    "features.filters": "none",
    "features.regimes": False,
    "online.rollout": 1024,
    "online.epochs": 5,
}
#: One size for all trainings: 32,760 decisions online, with the default rollouts and epochs. Soft actor-critic learns
#: once for 16 decisions, and without blocks of years that are held out: all are what they learned.
SIZE: dict[str, object] = {
    **SMALL,
    "train.online_episodes": 260,
    "train.updates_per_vector_step": 16,
    "out_of_fold.blocks": 1,
    "online.rollout": 2048,
    "online.epochs": 10,
}


def market_keys(market: str, seed: int) -> dict[str, object]:
    """Keys of a market; synthetic ones are another sample for each seed."""
    if market == EMBEDDED:
        return {}
    return {
        **LOG_RETURN,
        **OWN.get(market, {}),
        "market.source": "synthetic",
        "market.synthetic.kind": market,
        "market.synthetic.seed": 200 + seed,
        "market.synthetic.bars": 6000,
    }


def market_trainings_variants(seeds: Sequence[int] = SEEDS, markets: Sequence[str] = TRAINED) -> list[Variant]:
    """Each algorithm from each start on each market, seed by seed."""
    return [
        Variant(
            f"{PREFIX}{market}-{algorithm}-{start}",
            (seed,),
            {**SIZE, **market_keys(market, seed), **keys, "online.algorithm": algorithm},
            measure=learn_and_judge,
        )
        for seed in seeds
        for market in markets
        for algorithm in ALGORITHMS
        for start, keys in STARTS.items()
    ]


def group_variants(seeds: Sequence[int] = SEEDS) -> list[Variant]:
    """PPO seeded from IQL with group-relative advantages of two lambdas, on the regime market."""
    return [
        Variant(
            f"{PREFIX}regime-ppo-group_{lam:g}",
            (seed,),
            {
                **SIZE,
                **market_keys("regime", seed),
                "online.algorithm": "ppo",
                "online.advantages": "group",
                "online.group_lambda": lam,
            },
            measure=learn_and_judge,
        )
        for lam in (1.0, 0.5)
        for seed in seeds
    ]


def gradient_variants(markets: Sequence[str] = PLANTED) -> list[Variant]:
    """Gradients with and without the equal-weight reference in the reward, on each planted market."""
    return [
        Variant(
            f"{PREFIX}{VARIANCE}{market}-{reference}",
            (0,),
            {**SMALL, **market_keys(market, 0), "online.algorithm": "ppo", "train.reward_reference": reference},
            measure=compare_gradients,
        )
        for market in markets
        for reference in ("equal-weight", "none")
    ]


def learn_and_judge(config: Config) -> dict[str, Any]:
    """Train once: score or Sharpe ratio before and after, seconds, and the KL from the policy that it began with."""
    trainer, backtests, seconds, _ = train_and_validate(config)
    run = trainer._begin()
    if run.probe is None:
        raise ValueError("a training has states to measure its policy on")
    planted = config.market.source == "synthetic"
    judge = judge_of(trainer.training_data) if planted else sharpe_of
    with torch.no_grad():
        divergence = mean_kl(trainer.agent.policy, trainer.agent.prior, run.probe)
    reference = run.state.reference
    return {
        "seconds": seconds,
        "start": float(judge(backtests[0])),
        "end": float(judge(backtests[-1])),
        "kl": divergence * config.env.episode_length,
        "beta": None if reference is None else reference.beta,
        "ended_early": reference is not None and reference.stopped,
        "rollbacks": run.state.watch.manager.rollback_count,
    }


def compare_gradients(config: Config, rollouts: int = ROLLOUTS) -> dict[str, Any]:
    """Variance of the policy gradient of a rollout, by generalised and by group-relative advantages.

    The policy is IQL's, and so is the value function, after critic-only rollouts of its own. The variance is the trace
    of the covariance over rollouts of 256 decisions.
    """
    began = time.process_time()
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    run = trainer._begin()
    trainer._hand_over(run)
    bcell, state = run.state.bcell, run.state.on_policy
    if bcell is None or state is None:
        raise ValueError("the online phase has begun")
    state.begin(bcell)
    scale = trainer.collect_offline_data().reward_scale
    process = trainer.training_data.learning
    units = RewardUnits.of(process, scale, config.train.reward_reference, trainer.device)
    found: dict[str, list[Tensor]] = {name: [] for name in ESTIMATORS}
    for name, keys in ESTIMATORS.items():
        changes = {"online.rollout": 256, "online.minibatch": 64, **keys}
        own = changed_config(config, changes)
        collector = RolloutCollector(
            state.played.env, state.agent, units, own, seeded(config.train.seed, 77), lambda rewards: None
        )
        if name == "gae":
            for _ in range(10):
                state.learner.update_critic(collector.collect()[0])
        for _ in range(rollouts):
            found[name].append(gradient_of(state, collector))
    gradients = {name: torch.stack(rows) for name, rows in found.items()}
    variance = {name: float(rows.var(dim=0).sum()) for name, rows in gradients.items()}
    means = {name: rows.mean(dim=0) for name, rows in gradients.items()}
    return {
        "seconds": {"all": round(time.process_time() - began, 1)},
        "variance": variance,
        "mean": {name: float(mean.square().sum()) for name, mean in means.items()},
        "cosine": {name: float(torch.cosine_similarity(means["gae"], mean, dim=0)) for name, mean in means.items()},
    }


def gradient_of(state: OnPolicyState, collector: RolloutCollector) -> Tensor:
    """Policy gradient of one rollout, flattened; advantages are not normalised."""
    rollout, _ = collector.collect()
    log_prob = state.agent.distribution(rollout.observations).log_prob(rollout.actions)
    loss = surrogate_loss((log_prob - rollout.log_prob).exp(), rollout.advantages)
    parts = torch.autograd.grad(loss, list(state.agent.actor_parameters()), allow_unused=True)
    return torch.cat([part.flatten() for part in parts if part is not None])


def market_trainings_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of the trainings: mean and range over seeds."""
    rows: list[list[object]] = []
    for variant, own in grouped(results, "variant").items():
        market, algorithm, start = variant.removeprefix(PREFIX).rsplit("-", 2)
        betas = [one["beta"] for one in own if one["beta"] is not None]
        rows.append(
            [
                market,
                algorithm,
                start,
                len(own),
                _shown([one["start"] for one in own]),
                _shown([one["end"] for one in own]),
                f"{np.mean([one['seconds']['online'] for one in own]):.0f}",
                f"{np.mean([one['kl'] for one in own]):.2f}",
                f"{np.mean(betas):.3f}" if betas else "",
                sum(one["ended_early"] for one in own),
            ]
        )
    heads = ("market", "algorithm", "start", "seeds", "before", "after", "seconds", "KL", "beta", "ended early")
    return markdown_table(heads, rows)


def gradient_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of the gradients' variances."""
    rows: list[list[object]] = []
    for result in results:
        name, variance = result["variant"].removeprefix(PREFIX + VARIANCE), result["variance"]
        kind = next(market for market in PLANTED if name.startswith(market))
        ratios = [
            f"{variance[one] / variance['gae']:.3f} ({result['cosine'][one]:.2f})" for one in list(ESTIMATORS)[1:]
        ]
        rows.append([kind, name.removeprefix(f"{kind}-"), f"{variance['gae']:.3g}", *ratios])
    return markdown_table(("market", "taken off rewards", "variance, gae", *list(ESTIMATORS)[1:]), rows)


def _shown(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
