"""Evidence about preferences: what a reward model learns of a judge, and the utility of agents that learn from it.

Every seed has pairs, a reward model and two trainings of its own: one on the model, and the same on what it stands for.
The judge sees the training window; agents are judged on the validation window, the test window is not read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from finflow.agent.learners.bcell import BCell
from finflow.config import Config, changed_config
from finflow.env.rewards.reward_context import RewardContext
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.preferences.judges import make_judge, mean_variance
from finflow.preferences.model_files import save_model
from finflow.preferences.model_report import LearnedModel, ModelFigures, judge_model, learn_model
from finflow.preferences.pair_making import judge_pairs
from finflow.preferences.pair_tensors import pair_tensors
from finflow.preferences.pairs import PairFile
from finflow.preferences.segment_paths import PortfolioPath, SegmentMarket
from finflow.training.data.training_data import TrainingData, choose_device, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.phases.training_state import seeded
from scripts.evidence.results import train_and_validate
from scripts.evidence.rollouts import REDUCED, SHORT_OFFLINE
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import Variant

PREFIX = "preferences-"
SEEDS = 3
PAIRS, FRESH = 2_000, 20_000
RISK_AVERSION = 5.0
GOALS = {"share": 0.85, "ece": 0.03, "utility": 0.9}
#: Without blocks of years that are held out, the agent is what it learned, however little of it would be believed.
SHORTER: dict[str, object] = {
    **SHORT_OFFLINE,
    **REDUCED,
    "out_of_fold.blocks": 1,
    "bcell.hidden_dim": 32,
    "guard.hacking.enabled": False,
    "preferences.model.learning_curve": 1,
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
    "preferences.judge.risk_aversion": RISK_AVERSION,
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


def preference_variants(seeds: int = SEEDS) -> list[Variant]:
    """The log-normal markets, one a seed, and the embedded prices."""
    known = [
        Variant(
            f"{PREFIX}lognormal",
            (seed,),
            {**SHORTER, **LOGNORMAL, "market.synthetic.seed": seed},
            measure=learn_known_utility,
        )
        for seed in range(seeds)
    ]
    return [*known, Variant(f"{PREFIX}calmar", tuple(range(seeds)), SHORTER, measure=learn_calmar)]


def learn_known_utility(config: Config) -> dict[str, Any]:
    """Learn a reward model of the mean-variance judge, then agents on the model and on the true reward."""
    data, began = prepare(config), time.process_time()
    learned, fresh = learn_of_judge(data, "mean-variance", FRESH)
    seconds = {"reward model": round(time.process_time() - began, 1)}
    agents = {"untrained": untrained(data)}
    agents |= train_on(config, data, learned, {"true": TRUE_REWARD}, seconds)
    return {
        "seconds": seconds,
        **_figures(fresh),
        "utility": {name: utility_of(run) for name, run in agents.items()},
        "turnover": {name: float(summarise(run, 0.05)["annual_turnover"]) for name, run in agents.items()},
    }


def learn_calmar(config: Config) -> dict[str, Any]:
    """Learn a reward model of the judge "calmar", then agents on the model and on the default reward."""
    data, began = prepare(config), time.process_time()
    learned, _ = learn_of_judge(data, "calmar", 0)
    seconds = {"reward model": round(time.process_time() - began, 1)}
    agents = train_on(config, data, learned, {"default": "builtin"}, seconds)
    measured = {name: summarise(run, 0.05) for name, run in agents.items()}
    names = ("calmar", "sharpe", "annual_turnover")
    found = {name: {agent: float(figures[name]) for agent, figures in measured.items()} for name in names}
    return {"seconds": seconds, **_figures(learned.held_out), **found}


def learn_of_judge(data: TrainingData, name: str, fresh: int) -> tuple[LearnedModel, ModelFigures]:
    """A reward model of 2,000 pairs of the training window, and its figures on further pairs of the same judge."""
    config = data.config
    market = SegmentMarket(data.process, data.split.train, config.evaluation)
    settings = config.preferences.judge
    judge = make_judge(name, settings, data.panel.bars_per_year)
    count = PAIRS + fresh
    made = judge_pairs(market, judge, count, settings, config.train.seed)
    given = PairFile(made.pairs[:PAIRS], ("judge",) * PAIRS)
    learned = learn_model(pair_tensors(market, given), data.shape, config.preferences.model, config.train.seed)
    if not fresh:
        return learned, learned.held_out
    others = pair_tensors(market, PairFile(made.pairs[PAIRS:], ("judge",) * fresh))
    return learned, judge_model(others, learned.model, np.arange(fresh))


def train_on(
    config: Config, data: TrainingData, learned: LearnedModel, others: Mapping[str, str], seconds: dict[str, float]
) -> dict[str, Backtest]:
    """Validation backtests of the same training on the reward model and on other rewards."""
    found: dict[str, Backtest] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        names = (*data.features.asset_names, *data.features.market_names)
        save_model(path, learned, config.preferences.model, names)
        chosen = {"model": {"objectives.reward": "preference", "objectives.preference.model": str(path)}}
        chosen |= {name: {"objectives.reward": reward} for name, reward in others.items()}
        for name, keys in chosen.items():
            began = time.process_time()
            found[name] = trained(config, keys)
            seconds[name] = round(time.process_time() - began, 1)
    return found


def trained(config: Config, keys: Mapping[str, object]) -> Backtest:
    """Train with other keys; the last backtest of validation."""
    return train_and_validate(changed_config(config, keys)).backtests[-1]


def untrained(data: TrainingData) -> Backtest:
    """Validation backtest of an agent with the parameters that learning begins with."""
    device = choose_device(data.config.train.device)
    agent = BCell(data.shape, data.config.bcell, seeded(data.config.train.seed, 4), device)
    (run,) = run_backtests(data.process, data.split.validation, [AgentStrategy(agent.deployed, device)])
    return run


def utility_of(run: Backtest) -> float:
    """Utility of the mean-variance judge of a whole backtest, per bar."""
    return mean_variance(PortfolioPath.of(run), RISK_AVERSION)


def _figures(found: ModelFigures) -> dict[str, Any]:
    """Figures of a reward model for the page."""
    return {"accuracy": found.accuracy, "attainable": found.attainable, "share": found.share, "ece": found.ece}


def preference_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables: the known utility seed by seed, and Calmar ratios on the embedded prices."""
    known = [one for one in results if "utility" in one]
    calmar = [one for one in results if "calmar" in one]
    return "\n".join(table for table in (_known_table(known), _calmar_table(calmar)) if table)


def _known_table(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return ""
    shares, errors = ([one[name] for one in results] for name in ("share", "ece"))
    relative = [one["utility"]["model"] / one["utility"]["true"] for one in results]
    rows = [
        [
            one["seed"],
            f"{one['accuracy']:.3f}",
            f"{one['share']:.2f}",
            f"{one['ece']:.3f}",
            *(f"{1e4 * one['utility'][name]:.2f}" for name in ("untrained", "true", "model")),
            f"{ratio:.2f}",
        ]
        for one, ratio in zip(results, relative, strict=True)
    ]
    means = [np.mean([one["utility"][name] for one in results]) for name in ("untrained", "true", "model")]
    accuracy = mean_interval([one["accuracy"] for one in results], 3)
    rows.append(
        [
            "mean",
            accuracy,
            mean_interval(shares),
            mean_interval(errors, 3),
            *(f"{1e4 * mean:.2f}" for mean in means),
            mean_interval(relative),
        ]
    )
    rows.append(["wanted", "", f"{GOALS['share']:g}", f"{GOALS['ece']:g} at most", "", "", "", f"{GOALS['utility']:g}"])
    heads = ("seed", "accuracy", "share", "ECE", "untrained", "true reward", "reward model", "model over true")
    return markdown_table(heads, rows)


def _calmar_table(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return ""
    rows: list[list[object]] = []
    for agent, name in (("default", "default reward"), ("model", "reward model")):
        cells = [[one[figure][agent] for one in results] for figure in ("calmar", "sharpe", "annual_turnover")]
        each = ", ".join(f"{value:.2f}" for value in cells[0])
        rows.append([name, *(mean_interval(values) for values in cells), each])
    ahead = [one["calmar"]["model"] - one["calmar"]["default"] for one in results]
    rows.append(["model less default", mean_interval(ahead), "", "", ", ".join(f"{value:.2f}" for value in ahead)])
    accuracy = mean_interval([one["accuracy"] for one in results], 3)
    told = f"\nAccuracy of the reward model on its held-out pairs: {accuracy}; {len(results)} seed(s).\n"
    return markdown_table(("embedded, judge calmar", "Calmar", "Sharpe", "turnover", "Calmar of each"), rows) + told


def seeds_line(results: Sequence[Mapping[str, Any]]) -> str:
    """Seeds that were measured, in a sentence."""
    counts = [sum(name in one for one in results) for name in ("utility", "calmar")]
    short = "" if min(counts) >= SEEDS else f", of {SEEDS} wanted each: processor time ran short"
    return f"**Seeds**: {counts[0]} of the mean-variance judge, {counts[1]} of the judge calmar{short}."
