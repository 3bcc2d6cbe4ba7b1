"""Collection of behaviour data: five families of rules and a mixture that covers the simplex, through the ledger.

Every episode draws a source, one of its variants, its decision interval, its trade rate and its noise. All episodes
step together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.config import Config
from finflow.env.coverage import draw_coverage, smooth
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.reward_queue import queued_rewards
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError, MarketError, refuse
from finflow.offline.dataset import (
    COLUMNS,
    COVERAGE,
    SOURCES,
    VERSION,
    OfflineDataset,
    Recorder,
    Rows,
    data_card,
    join_recordings,
)
from finflow.offline.imported_decisions import price_decisions, read_decisions
from finflow.provenance import code_hash
from finflow.strategies.behaviour import FAMILIES, family_tables

ROOMS_THAT_DECIDE = ("ledger", "market", "strategies", "env", "offline")
COVERAGE_SHARE = 0.15
INTERVALS = (1, 1, 1, 5, 21)  # decisions between two that trade
TRADE_RATES = (0.03, 0.5)  # share of the way to the aim; drawn log-uniformly
# A rule that has reached its aim hardly trades, and a policy fitted to it would never trade. So now and then a draw of
# the coverage mixture replaces a decision, and the rule has to return from there.
JUMP_RATE = 1 / 21
AIM_SMOOTHING = 0.1  # every rule holds some of each asset: hundredfold changes of tiny weights mean little in money
NOISE_SCALES = (0.0, 0.1, 0.3)  # deviation of log weights
STILL = "the prices of the training window do not move: there is nothing to learn from them"


class Behaviour:
    """Behaviour of N episodes at once, N being ``size``; their sources come in fixed shares, in random order."""

    def __init__(self, process: DecisionProcess, size: int, rng: np.random.Generator) -> None:
        self.process = process
        self.rng = rng
        self.tables: FloatArray = np.stack([family_tables(process.panel, family) for family in FAMILIES])
        n_coverage, (low, high) = round(COVERAGE_SHARE * size), np.log(TRADE_RATES)
        sources = np.concatenate([np.full(n_coverage, COVERAGE), np.arange(size - n_coverage) % len(FAMILIES)])
        self.interval = rng.choice(INTERVALS, size=size)
        self.source = rng.permutation(sources)
        self.variant = rng.integers(self.tables.shape[1], size=size)
        self.phase = rng.integers(self.interval)
        self.trade_rate = np.exp(rng.uniform(low, high, size=size))
        self.noise_scale = rng.choice(NOISE_SCALES, size=size)
        self.complete = bool((process.asset_features[:, :, -1] > 0.0).all())

    def decide(self, state: PortfolioState, step: int) -> tuple[FloatArray, IntArray]:
        """Move part of the way to an aim where a decision is due, and hold the portfolio elsewhere.

        Returns targets (N, K), and the source of each decision (N,): that of the episode, or the coverage mixture.
        """
        weights = self.process.observed_portfolio(state)[:, : self.process.n_weights]
        listed = None if self.complete else self.process.known_listed(state.bar)
        aim = smooth(self._aims(state, listed), AIM_SMOOTHING, listed)
        wanted = weights + self.trade_rate[:, None] * (aim - weights)
        wanted = wanted * np.exp(self.noise_scale[:, None] * self.rng.standard_normal(wanted.shape))
        wanted /= wanted.sum(axis=1, keepdims=True)
        due = (step + self.phase) % self.interval == 0
        targets = np.where(due[:, None], wanted, weights)
        jumps = self.rng.random(len(weights)) < JUMP_RATE
        elsewhere, _ = draw_coverage(self.rng, len(weights), weights.shape[1], listed)
        return np.where(jumps[:, None], elsewhere, targets), np.where(jumps, COVERAGE, self.source)

    def _aims(self, state: PortfolioState, listed: BoolArray | None) -> FloatArray:
        """Portfolios that the sources of the episodes aim at, (N, K)."""
        aims, _ = draw_coverage(self.rng, len(self.source), self.process.n_weights, listed)
        named = self.tables[np.minimum(self.source, COVERAGE - 1), self.variant, state.bar - self.process.lag]
        return np.where((self.source == COVERAGE)[:, None], aims, named)


def collect(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> OfflineDataset:
    """Collect ``train.offline_episodes`` episodes in the training window, and price the user's own decisions there.

    Of several ranges of bars, each episode stays within one. Ruin ends an episode like any other end; the rows after it
    belong to a new one. A FinflowError if prices do not move, or a file of decisions cannot be used.
    """
    parts, accounts = [simulate_behaviour(config, process, window)], []
    if isinstance(window, range):
        for path in config.offline.decisions:
            decisions = read_decisions(path, process.panel, window.stop)
            parts.append(price_decisions(process, window, decisions, config.env.episode_length))
            accounts.append(
                {
                    "file": decisions.file,
                    "rows_used": len(decisions.bar),
                    "rows_after_the_training_window": decisions.later,
                    "rows_before_the_first_bar": decisions.earlier,
                    "transitions": len(parts[-1]["bar"]),
                }
            )
    else:
        refuse_own_decisions(config)
    rows = join_recordings(parts)
    columns: dict[str, Any] = {name: rows[name].astype(kind, copy=False) for name, kind in COLUMNS.items()}
    reward_scale = float(rows["reward"].std())
    refuse(not reward_scale > 0.0, STILL, MarketError)
    meta = {
        "reward_scale": reward_scale,
        "made_by": made_by(config, process, window),
        "sources": list(SOURCES),
        "card": data_card(rows, process.panel, accounts),
    }
    return OfflineDataset(**columns, meta=meta)


def refuse_own_decisions(config: Config) -> None:
    """Refuse to learn from a user's own decisions; a ConfigError."""
    refuse(
        config.offline.decisions,
        "offline.decisions cannot be learned from where parts of the market are held out: decisions of a held-out "
        "day know its prices; leave offline.decisions out",
        ConfigError,
    )


def simulate_behaviour(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> Rows:
    """Simulate the families and the coverage mixture, and record their decisions and outcomes.

    Rewards that workers compute (``objectives.workers``) are filled in at the end.
    """
    size, length = config.train.offline_episodes, config.env.episode_length
    seeds = np.random.SeedSequence([config.train.seed, 0]).spawn(2)
    with queued_rewards(process, config.objectives.workers, config.train.threads) as (rewarded, queue):
        env = PortfolioVectorEnv(rewarded, window, size, length, random_portfolios=True)
        env.reset(seed=int(seeds[1].generate_state(1)[0]))
        recorder = Recorder(process)
        _record(env, Behaviour(process, size, np.random.default_rng(seeds[0])), recorder, length)
        if queue is not None:
            recorder.replace("reward", queue.collect())
    return recorder.rows()


def _record(env: PortfolioVectorEnv, behaviour: Behaviour, recorder: Recorder, length: int) -> None:
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


def made_by(config: Config, process: DecisionProcess, window: range | Sequence[range]) -> dict[str, str]:
    """Hashes of all that decides a dataset, by name, so that a mismatch can name what differs."""
    windows = [window] if isinstance(window, range) else list(window)
    stop = windows[-1].stop
    panel = process.panel.until(min(stop, process.panel.n_bars))
    # Of a reward model and of the user's files what is read of them decides, and nothing of where they lie.
    objectives = config.objectives.model_dump_json(exclude={"workers", "preference"}).encode()
    if config.objectives.preference.model is not None:
        objectives += config.objectives.preference.model.read_bytes()
    files = [read_decisions(path, panel, panel.n_bars).sha256 for path in config.offline.decisions]
    return {
        "version": str(VERSION),
        "prices": panel.sha256,
        "training window": ", ".join(f"{panel.dates[one.start]} to {panel.dates[one.stop - 1]}" for one in windows),
        "features": _hash(process.asset_features[:stop].tobytes() + process.market_features[:stop].tobytes()),
        "costs and execution": _hash(config.env.model_dump_json().encode()),
        "objectives": _hash(objectives),
        "episodes": str(config.train.offline_episodes),
        "seed": str(config.train.seed),
        "decisions": _hash("".join(files).encode()) if files else "none",
        "ledger": code_hash(("ledger",)),
        "code": code_hash(ROOMS_THAT_DECIDE),
    }


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
