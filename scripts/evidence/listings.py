"""Evidence about learning where assets list late and end early, compared with the same market without listings.

Pairs of trainings on the same prices: one sees all of them, the other a panel whose prices are cut at drawn dates. Both
agents are judged on the whole market, over the validation window; the test window is not read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from finflow.config import Config
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.evaluation.statistics.metrics import sharpe_of
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import TrainingData, prepare, prepare_from, process_on
from finflow.training.judging.agent_strategy import AgentStrategy
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import judge_of
from scripts.evidence.planted_signals import GROWTH
from scripts.evidence.results import grouped, train_both
from scripts.evidence.tables import half_width, markdown_table, mean_interval
from scripts.evidence.variants import Variant

PREFIX = "listings-"
FIRST_SAMPLE = 200  # no other page has drawn these
PLANTED = "constant-drift"  # learned fastest: other markets need trainings too long for as many pairs
EMBEDDED = "embedded"
SHORT, LONG = 2_500, 8_000  # bars of the planted market: with a short training window, and with a long one
PAIRS = {SHORT: 23, LONG: 6}
DEFAULT, AS_LEARNED = "default", "as-learned"
#: Agent on the embedded prices -> its keys: as it is delivered, and without the blend that held-out years decide on.
AGENTS: dict[str, dict[str, object]] = {DEFAULT: {}, AS_LEARNED: {"out_of_fold.blocks": 1}}
SEEDS = {DEFAULT: 2, AS_LEARNED: 1}
BOUND = 0.05
SHARE = 1.0 / 3.0  # of the embedded names that are cut
LATEST = (0.2, 0.6)  # shares of the training window between which assets list
EARLIEST = (0.5, 0.9)  # and between which assets end
#: A twentieth of the default's decisions, networks of an eighth of its width, a short offline phase.
REDUCED: dict[str, object] = {
    "features.filters": "none",
    "features.regimes": False,
    "offline.evaluation_updates": 0,
    "train.generalisation": False,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.online_episodes": 50,
    "train.warmup_episodes": 4,
    "train.n_envs": 16,
    "out_of_fold.blocks": 3,
    "out_of_fold.looks": 1,
    "bcell.expansion": 8,
    "bcell.actor_lr": 1e-2,
    "bcell.hidden_dim": 32,
}
#: Four assets whose optimum is known for log return alone.
SYNTHETIC: dict[str, object] = {
    "market.source": "synthetic",
    "market.synthetic.assets": 4,
    "market.train_end": "2018-12-31",
    "market.validation_end": "2020-12-31",
    **GROWTH,
}


def listings_variants(
    pairs: Mapping[int, int] = PAIRS, seeds: Mapping[str, int] = SEEDS, more: Mapping[str, object] | None = None
) -> list[Variant]:
    """Pairs of trainings: a sample each on the planted market, and a seed each on the embedded prices.

    Parameters
    ----------
    pairs : mapping of int to int
        Samples of the planted market, by its bars; no sample is drawn twice.
    seeds : mapping of str to int
        On the embedded prices, by the name of the agent in `AGENTS`; each draws other names and dates.
    more : mapping, optional
        Further keys, for small versions.
    """
    planted = [
        Variant(
            f"{PREFIX}{PLANTED}-{bars}",
            (seed,),
            {
                **REDUCED,
                **SYNTHETIC,
                "market.synthetic.kind": PLANTED,
                "market.synthetic.bars": bars,
                "market.synthetic.seed": seed,
                **(more or {}),
            },
            measure=measure_pair,
        )
        for place, (bars, count) in enumerate(pairs.items())
        for seed in range(FIRST_SAMPLE + 100 * place, FIRST_SAMPLE + 100 * place + count)
    ]
    embedded = [
        Variant(
            f"{PREFIX}{EMBEDDED}-{agent}",
            (seed,),
            {**REDUCED, **AGENTS[agent], **(more or {})},
            measure=measure_pair,
        )
        for agent, count in seeds.items()
        for seed in range(count)
    ]
    return planted + embedded


def cut_listings(panel: MarketPanel, train_end: int, count: int, rng: np.random.Generator) -> MarketPanel:
    """Cut some assets of a panel at drawn bars of its training window, half of them late and half early.

    Parameters
    ----------
    panel : MarketPanel
        Without volumes or other fields than closes.
    train_end : int
        Bars of the training window.
    count : int
        Assets that are cut. The first half of them, rounded up, lists late; the others end and never come back.
    rng : numpy.random.Generator
    """
    chosen = rng.permutation(panel.n_assets)[:count]
    late = -(-count // 2)
    close = panel.close.copy()
    for number, asset in enumerate(chosen):
        low, high = LATEST if number < late else EARLIEST
        bar = int(rng.uniform(low, high) * train_end)
        if number < late:
            close[:bar, asset] = np.nan
        else:
            close[bar:, asset] = np.nan
    return replace(panel, close=close)


def measure_pair(config: Config) -> dict[str, Any]:
    """Train with and without listings on the same prices: performance of both agents on the whole market."""
    began = time.process_time()
    whole = prepare(config)
    synthetic = config.market.source == "synthetic"
    count = 2 if synthetic else round(SHARE * whole.panel.n_assets)
    rng = np.random.default_rng(np.random.SeedSequence([config.train.seed, config.market.synthetic.seed, 90]))
    ragged = prepare_from(cut_listings(whole.panel, whole.split.train_end, count, rng), config)
    judge = judge_of(whole) if synthetic else sharpe_of
    performance = {}
    for name, training_data in (("complete", whole), ("listings", ragged)):
        run, unlisted = play_trained(training_data, whole)
        performance[name] = judge(run)
        performance[f"{name}_unlisted"] = unlisted
    listed = ragged.panel.listed[: ragged.split.train_end]
    found = {
        "kind": config.market.synthetic.kind if synthetic else EMBEDDED,
        "agent": DEFAULT if config.out_of_fold.blocks > 1 else AS_LEARNED,
        "bars": whole.split.train_end,
        **performance,
        "listed_share": float(listed.mean()),
        "seconds": {"both": round(time.process_time() - began, 1)},
    }
    if not synthetic:
        (equal,) = run_backtests(
            whole.process, whole.split.validation, [named_strategy("equal-weight", config.evaluation)]
        )
        found["equal_weight"] = sharpe_of(equal)
    return found


def play_trained(training_data: TrainingData, judged: TrainingData) -> tuple[Backtest, float]:
    """Train an agent, and play it on the whole market over the validation window.

    Returns
    -------
    Backtest
    float
        Largest weight that the agent asks for in an asset that is not known to be listed, over its own market.
    """
    trainer = train_both(training_data.config, training_data=training_data)
    window = judged.split.validation
    panel = judged.process.panel
    process = judged.process if training_data is judged else process_on(training_data, panel)
    policy, device = trainer.agent.deployed, trainer.agent.device
    (run,) = run_backtests(process, window, [AgentStrategy(policy, device)])
    return run, largest_unlisted(training_data, trainer)


def largest_unlisted(training_data: TrainingData, trainer: FinFlowTrainer) -> float:
    """Largest weight that an agent asks for in an asset that is not listed, from equal weight at every tenth bar."""
    process = training_data.process
    decisions = process.decision_bars(range(process.panel.n_bars))
    bars = np.arange(decisions.start, decisions.stop, 10)
    weights = np.full((len(bars), process.n_weights), 1.0 / process.n_weights)
    targets = trainer.agent.act(process.observe(process.start(bars, weights)))
    barred = ~process.known_listed(bars)
    return float(targets[:, :-1][barred].max()) if barred.any() else 0.0


def upper_bound(losses: Sequence[float]) -> float:
    """Upper end of the 95 % interval of a mean; the value itself where there is but one."""
    values = np.asarray(losses, dtype=np.float64)
    return float(values.mean()) + (half_width(values) if len(values) > 1 else 0.0)


def share_words(shares: tuple[float, float]) -> str:
    """Two shares of a window, in words."""
    low, high = shares
    return f"{low:.0%} and {high:.0%}"


def listings_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table: pairs by market and agent, and what listings cost, with the upper bound of it."""
    rows = []
    for (kind, agent, bars), pairs in grouped(results, "kind", "agent", "bars").items():
        losses = [one["complete"] - one["listings"] for one in pairs]
        rows.append(
            [
                *(kind, agent.replace("-", " "), f"{bars:,}"),
                *("Sharpe ratio" if kind == EMBEDDED else "score", len(pairs)),
                f"{np.mean([one['listed_share'] for one in pairs]):.0%}",
                *(mean_interval([one[name] for one in pairs], 3) for name in ("complete", "listings")),
                mean_interval(losses, 3),
                f"{upper_bound(losses):.3f}",
                f"{max(one['listings_unlisted'] for one in pairs):g}",
            ]
        )
    heads = (
        *("market", "agent", "training bars", "worth", "pairs", "listed in training"),
        *("without listings", "with listings", "loss", "upper bound", "largest weight not listed"),
    )
    return markdown_table(heads, rows)
