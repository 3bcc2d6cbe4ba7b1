"""Collection of behaviour data: five families of rules and a mixture that covers the simplex, through the ledger.

Every episode draws a source, one of its variants, its decision interval, its trade rate and its noise. All episodes
step together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.coverage import draw_coverage, smooth
from finflow.env.decision_process import DecisionProcess
from finflow.env.episode_worlds import Draws, EpisodeWorlds, gather_assets, restrict_to_assets, scatter_assets
from finflow.env.portfolio_state import PortfolioState, WorldState
from finflow.env.rewards.reward_queue import queued_rewards
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError, MarketError
from finflow.offline.data_card import data_card
from finflow.offline.dataset import OfflineDataset, bundle_size, made_by
from finflow.offline.imported_decisions import ImportedDecisions, price_decisions, read_decisions
from finflow.offline.recorder import COLUMNS, COVERAGE, DECISIONS, SOURCES, Recorder, Rows, join_rows
from finflow.strategies.behaviour import FAMILIES, family_tables

COVERAGE_SHARE = 0.15
INTERVALS = (1, 1, 1, 5, 21)  # decisions between two that trade
TRADE_RATES = (0.03, 0.5)  # share of the way to the aim; drawn log-uniformly
# A rule that has reached its aim hardly trades, and a policy fitted to it would never trade. So now and then a draw of
# the coverage mixture replaces a decision, and the rule has to return from there.
JUMP_RATE = 1 / 21
AIM_SMOOTHING = 0.1  # every rule holds some of each asset: hundredfold changes of tiny weights mean little in money
NOISE_SCALES = (0.0, 0.1, 0.3)  # deviation of log weights


@dataclass(frozen=True)
class BehaviourSettings:
    """Settings of the behaviour in each of N episodes.

    Attributes
    ----------
    source, variant, interval, phase : int (N,)
    trade_rate, noise_scale : float (N,)
    """

    source: NDArray[np.int64]
    variant: NDArray[np.int64]
    interval: NDArray[np.int64]
    phase: NDArray[np.int64]
    trade_rate: NDArray[np.float64]
    noise_scale: NDArray[np.float64]


def draw_settings(rng: np.random.Generator, size: int, n_variants: int) -> BehaviourSettings:
    """Draw the settings of N episodes; the sources come in fixed shares, in random order."""
    n_coverage = round(COVERAGE_SHARE * size)
    sources = np.concatenate([np.full(n_coverage, COVERAGE), np.arange(size - n_coverage) % len(FAMILIES)])
    interval = rng.choice(INTERVALS, size=size)
    low, high = np.log(TRADE_RATES)
    return BehaviourSettings(
        source=rng.permutation(sources),
        variant=rng.integers(n_variants, size=size),
        interval=interval,
        phase=rng.integers(interval),
        trade_rate=np.exp(rng.uniform(low, high, size=size)),
        noise_scale=rng.choice(NOISE_SCALES, size=size),
    )


class Behaviour:
    """Behaviour of N episodes at once.

    Parameters
    ----------
    process : DecisionProcess
    size : int
        N.
    rng : numpy.random.Generator
    """

    def __init__(self, process: DecisionProcess, size: int, rng: np.random.Generator) -> None:
        self.process = process
        self.rng = rng
        self.members = process.members
        tables = [process.of_panels(partial(family_tables, family=family), axis=1) for family in FAMILIES]
        self.tables: NDArray[np.float64] = np.stack(tables)
        self.settings = draw_settings(rng, size, n_variants=self.tables.shape[1])
        self.complete = bool((process.asset_features[:, :, -1] > 0.0).all())

    def decide(self, state: PortfolioState, step: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Move part of the way to an aim where a decision is due, and hold the portfolio elsewhere.

        Returns
        -------
        targets : array, (N, K)
        source : int array, (N,)
            Source of the decision: that of the episode, or the coverage mixture.
        """
        settings = self.settings
        inside = self._inside(state)
        weights = self.process.observed_portfolio(state)[:, : self.process.n_weights]
        if inside is not None:
            weights = gather_assets(weights, inside)
        listed = self._listed(state, inside)
        aim = smooth(self._aims(state, inside, listed), AIM_SMOOTHING, listed)
        wanted = weights + settings.trade_rate[:, None] * (aim - weights)
        noise = settings.noise_scale[:, None] * self.rng.standard_normal(wanted.shape)
        wanted = wanted * np.exp(noise)
        wanted /= wanted.sum(axis=1, keepdims=True)
        due = (step + settings.phase) % settings.interval == 0
        targets = np.where(due[:, None], wanted, weights)
        jumps = self.rng.random(len(weights)) < JUMP_RATE
        elsewhere, _ = draw_coverage(self.rng, len(weights), weights.shape[1], listed)
        chosen = np.where(jumps[:, None], elsewhere, targets)
        if inside is not None:
            chosen = scatter_assets(chosen, inside, self.process.n_weights)
        return chosen, np.where(jumps, COVERAGE, settings.source)

    def _aims(
        self, state: PortfolioState, inside: NDArray[np.int64] | None, listed: NDArray[np.bool_] | None
    ) -> NDArray[np.float64]:
        """Portfolios that the sources of the episodes aim at, (N, K), or of their sub-universes, (N, n + 1)."""
        source = self.settings.source
        covering = source == COVERAGE
        count = self.process.n_weights if inside is None else inside.shape[1] + 1
        aims, _ = draw_coverage(self.rng, len(source), count, listed)
        family = np.minimum(source, COVERAGE - 1)
        named: NDArray[np.float64] = self.tables[family, self.settings.variant, state.bar - self.process.lag]
        named = named if inside is None else restrict_to_assets(named, inside, listed)
        return np.where(covering[:, None], aims, named)

    def _listed(self, state: PortfolioState, inside: NDArray[np.int64] | None) -> NDArray[np.bool_] | None:
        """Assets that the decisions know to be listed, (N, assets), or of the sub-universes; None where all are."""
        if self.complete:
            return None
        known = self.process.known_listed(state.bar)
        return known if inside is None else np.take_along_axis(known, inside, axis=1)

    def _inside(self, state: PortfolioState) -> NDArray[np.int64] | None:
        """Assets of the episodes' sub-universes, (N, n), where there are any."""
        if self.members is None or not isinstance(state, WorldState):
            return None
        inside: NDArray[np.int64] = self.members[state.universe]
        return inside


def collect(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> OfflineDataset:
    """Collect ``train.offline_episodes`` episodes in the training window, and price the user's own decisions there.

    Parameters
    ----------
    config : Config
    process : DecisionProcess
    window : range, or several
        Bars that episodes stay within; of several ranges, each episode within one.

    Returns
    -------
    OfflineDataset
        Ruin ends an episode like any other end; the rows after it belong to a new one.

    Raises
    ------
    FinflowError
        If prices do not move, or a file of decisions cannot be used.
    """
    parts, accounts = [simulate_behaviour(config, process, window)], []
    real = real_window(process, window)
    if real is not None:
        for path in config.offline.decisions:
            decisions = read_decisions(path, process.panel, real.stop)
            parts.append(price_decisions(process, real, decisions, config.env.episode_length, DECISIONS))
            accounts.append(summarise_decisions(decisions, parts[-1]))
    elif config.offline.decisions:
        raise ConfigError(
            "offline.decisions cannot be learned from where parts of the market are held out: decisions of a held-out "
            "day know its prices; leave offline.decisions out"
        )
    rows = join_rows(parts)
    columns: dict[str, Any] = {name: rows[name].astype(kind) for name, kind in COLUMNS.items()}
    reward_scale = float(rows["reward"].std())
    if not reward_scale > 0.0:
        raise MarketError("the prices of the training window do not move: there is nothing to learn from them")
    meta = {
        "reward_scale": reward_scale,
        "made_by": made_by(config, process, window),
        "sources": list(SOURCES),
        "card": data_card(rows, process.panel, accounts, process.of_panels(lambda panel: panel.dates)),
    }
    return OfflineDataset(**columns, meta=meta)


def simulate_behaviour(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> Rows:
    """Simulate the families and the coverage mixture, and record their decisions and outcomes.

    Rewards that workers compute (``objectives.workers``) are filled in at the end.
    """
    size, length = config.train.offline_episodes, config.env.episode_length
    seeds = np.random.SeedSequence([config.train.seed, 0]).spawn(2)
    rng = np.random.default_rng(seeds[0])
    worlds = EpisodeWorlds.of(
        config.worlds, process.n_weights - 1, config.train.seed, costs=config.worlds.phases != "online"
    )
    with queued_rewards(process, config.objectives.workers, config.train.threads) as (rewarded, queue):
        env = PortfolioVectorEnv(rewarded, window, size, length, random_portfolios=True, worlds=worlds)
        env.reset(seed=int(seeds[1].generate_state(1)[0]))
        bundles = bundle_size(config, process)
        if bundles is not None:
            bundle(env, bundles)
        recorder = Recorder(process)
        _record(env, Behaviour(process, size, rng), recorder, length)
        if queue is not None:
            recorder.replace("reward", queue.collect())
    return recorder.rows()


def _record(env: PortfolioVectorEnv, behaviour: Behaviour, recorder: Recorder, length: int) -> None:
    """Record ``length`` steps of a behaviour."""
    size = env.num_envs
    life = np.zeros(size, dtype=np.int64)
    action, source = behaviour.decide(env.state, 0)
    for step in range(length):
        before = env.state
        _, reward, terminated, truncated, info = env.step(action)
        after = info.get("final_state", env.state)
        following, next_source = behaviour.decide(after, step + 1)
        recorder.add(
            before=before,
            action=action,
            reward=reward,
            after=after,
            next_action=following,
            terminated=terminated,
            truncated=truncated | (~terminated & (step + 1 == length)),  # begun after a ruin, it is cut off here
            episode=np.arange(size) + size * life,
            family=source,
            cost=info["cost"],
            turnover=info["turnover"],
        )
        life = life + terminated
        restarted = terminated & ~truncated
        action, source = following, next_source
        if restarted.any():  # the others do what was recorded as their next decision
            fresh, fresh_source = behaviour.decide(env.state, step + 1)
            action = np.where(restarted[:, None], fresh, following)
            source = np.where(restarted, fresh_source, next_source)


def bundle(env: PortfolioVectorEnv, size: int) -> None:
    """Start the episodes anew in bundles that see the same market: from one bar, with one sub-universe.

    The real history is short, so that many episodes visit each of its bars anyway. In many histories, with a part of
    the assets each, they would not, and the encoding of markets is the main cost of learning.
    """
    first = np.arange(env.num_envs) // size * size
    options: dict[str, Any] = {"bars": env.state.bar[first]}
    if isinstance(env.state, WorldState):
        options["worlds"] = Draws(env.state.universe[first], env.state.cost_scale)
    env.reset(options=options)


def real_window(process: DecisionProcess, window: range | Sequence[range]) -> range | None:
    """The training window among the windows; None where parts of it are held out."""
    if isinstance(window, range):
        return window
    real = [one for one in window if one.stop <= process.panel.n_bars]
    return real[0] if len(process.panels) > 1 and len(real) == 1 else None


def summarise_decisions(decisions: ImportedDecisions, rows: Rows) -> dict[str, Any]:
    """Counts of a user's decisions that were used or left out, for the data card."""
    return {
        "file": decisions.file,
        "rows_used": len(decisions.bar),
        "rows_after_the_training_window": decisions.later,
        "rows_before_the_first_bar": decisions.earlier,
        "transitions": len(rows["bar"]),
    }
