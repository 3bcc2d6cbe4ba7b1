"""Evidence about preferences: what a reward model learns of a judge, and the utility of agents that learn from it.

Every seed has pairs, a reward model and two trainings of its own: one on the model, and the same on what it stands for.
The judge sees the training window; agents are judged on the validation window, the test window is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from finflow.agent.learners.bcell import BCell
from finflow.config import Config, changed_config
from finflow.env.reward_context import RewardContext
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.preferences.judged_pairs import RISK_AVERSION, judge_pairs, make_judge, mean_variance
from finflow.preferences.model_training import LearningReport, ModelFigures, judge_model, learn_model
from finflow.preferences.pairs import PairFile, PortfolioPath, SegmentMarket
from finflow.preferences.preference_reward import RewardModel, pair_tensors, save_model
from finflow.training.data.training_data import TrainingData, choose_device, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.phases.training_state import seeded
from scripts.evidence.results import Variant, train_and_validate
from scripts.evidence.rollouts import REDUCED, SHORT_OFFLINE
from scripts.evidence.tables import markdown_table, mean_interval

PREFIX = "preferences-"
PAIRS, FRESH = 2_000, 20_000
GOALS = {"share": 0.85, "ece": 0.03, "utility": 0.9}
#: Without blocks of years that are held out, the agent is what it learned, however little of it would be believed.
SHORTER: dict[str, object] = {
    **SHORT_OFFLINE,
    **REDUCED,
    "out_of_fold.blocks": 1,
    "bcell.hidden_dim": 32,
    "guard.enabled": False,
}
#: Three assets of which the judge would hold a part: about two thirds of the wealth in the best of them alone.
LOGNORMAL: dict[str, object] = {
    "market.source": "synthetic",
    "market.synthetic.kind": "lognormal",
    "market.synthetic.assets": 3,
    "market.synthetic.bars": 6_000,
    "market.synthetic.drift": 0.008,
    "market.synthetic.edge": 0.01,
    "market.synthetic.volatility": 0.05,
    "market.synthetic.correlation": 0.3,
    "market.train_end": "2012-12-31",
    "market.validation_end": "2018-12-31",
    "preferences.judge.mistakes": 0.1,
}


class MeanVarianceReward:
    """The true reward of the mean-variance judge, a decision at a time: ``r - (A / 2) r^2`` of the simple return."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        """Reward of each decision, (batch,)."""
        return context.simple_return - 0.5 * RISK_AVERSION * context.simple_return**2


TRUE_REWARD = f"{__name__}:{MeanVarianceReward.__name__}"


def preference_variants(seeds: int) -> list[Variant]:
    """The log-normal markets, one a seed."""
    keys = {**SHORTER, **LOGNORMAL}
    return [Variant(f"{PREFIX}lognormal", range(seeds), keys, measure=learn_known_utility, first_sample=0)]


def learn_known_utility(config: Config) -> dict[str, Any]:
    """Learn a reward model of the mean-variance judge, then agents on the model and on the true reward."""
    data = prepare(config)
    model, learned, fresh = learn_of_judge(data)
    agents = {"untrained": untrained(data)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        names = (*data.features.asset_names, *data.features.market_names)
        save_model(path, model, learned.report(), names)
        of_model = {"objectives.reward": "preference", "objectives.preference.model": str(path)}
        for name, keys in (("model", of_model), ("true", {"objectives.reward": TRUE_REWARD})):
            agents[name] = train_and_validate(changed_config(config, keys)).backtests[-1]
    return {
        **{name: getattr(fresh, name) for name in ("accuracy", "attainable", "share", "ece")},
        "utility": {name: mean_variance(PortfolioPath.of(run)) for name, run in agents.items()},
        "turnover": {name: float(summarise(run, 0.05)["annual_turnover"]) for name, run in agents.items()},
    }


def learn_of_judge(data: TrainingData) -> tuple[RewardModel, LearningReport, ModelFigures]:
    """A reward model of 2,000 pairs of the training window, its report, and its figures on further ones."""
    config = data.config
    market = SegmentMarket(data.process, data.split.train, config)
    judge = make_judge("mean-variance", config.preferences.judge, data.panel.bars_per_year)
    made = judge_pairs(market, judge, PAIRS + FRESH, config.train.seed)
    given = PairFile(made.pairs[:PAIRS], ("judge",) * PAIRS)
    model, learned = learn_model(pair_tensors(market, given), data.shape, config.train.seed)
    others = pair_tensors(market, PairFile(made.pairs[PAIRS:], ("judge",) * FRESH))
    return model, learned, judge_model(others, model, np.arange(FRESH))


def untrained(data: TrainingData) -> Backtest:
    """Validation backtest of an agent with the parameters that learning begins with."""
    device = choose_device(data.config.train.device)
    agent = BCell(data.shape, data.config.bcell, seeded(data.config.train.seed, 4), device)
    (run,) = run_backtests(data.process, data.split.validation, [AgentStrategy(agent.deployed, device)])
    return run


def preference_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: the known utility seed by seed."""
    agents = ("untrained", "true", "model")
    relative = [one["utility"]["model"] / one["utility"]["true"] for one in results]
    rows = []
    for one, ratio in zip(results, relative, strict=True):
        utilities = (f"{1e4 * one['utility'][name]:.2f}" for name in agents)
        figures = (f"{one['accuracy']:.3f}", f"{one['share']:.2f}", f"{one['ece']:.3f}")
        rows.append([one["seed"], *figures, *utilities, f"{ratio:.2f}"])
    shown = (("accuracy", 3), ("share", 2), ("ece", 3))
    means = (f"{1e4 * np.mean([one['utility'][name] for one in results]):.2f}" for name in agents)
    averages = (mean_interval([one[name] for one in results], decimals) for name, decimals in shown)
    rows.append(["mean", *averages, *means, mean_interval(relative)])
    rows.append(["wanted", "", f"{GOALS['share']:g}", f"{GOALS['ece']:g} at most", "", "", "", f"{GOALS['utility']:g}"])
    heads = ("seed", "accuracy", "share", "ECE", "untrained", "true reward", "reward model", "model over true")
    return markdown_table(heads, rows)
