"""A market in which the five families of rules lead in turn, and rules that know or follow which one does.

A hidden state names the family that leads. Expected returns rise with what that family's rule holds beyond what the
five hold in common: by their own weights calm, growing and rising assets are much the same ones, and would lead always.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from finflow.arrays import FloatArray, IntArray
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.panel import MarketPanel
from finflow.strategies.behaviour import FAMILIES, family_tables
from scripts.evidence.offline_methods import FamilyRule

# Fixed before the first training, by backtests of rules alone on samples 1 to 3, over equal weight: that of the known
# state earned .37 to .5 a year, the best single family .14 to .23, and the follower of what leads lately .12 to .35.
EDGE = 0.0012  # a bar, for a score of one deviation: a month's gain of the known state is .7 deviations of its noise
ASSETS = "ABCDEFGHIJKL"
BARS, FIRST_DATE = 8316, "1990-01-01"  # as many as the embedded prices
LASTS = (63, 190)  # bars of a state: half a year on average, longer than it takes to see; a test window has 14
MARKET, OWN = 0.009, 0.012  # deviations of the common factor and of an asset's own returns, as of stocks
DRIFT = 0.0003  # of every asset: none is the best but by the state
DRIFTING, SPREAD = 0.5 ** (1.0 / 126.0), 0.5  # betas and volatilities: half forgotten in half a year, so no asset leads
MONTH = 21  # bars from one score to the next, so that what leads can be held at a turnover of three or four a year
MEMORY = 38 * MONTH  # bars that scores are computed from: the longest horizon of a family is 756
CONCENTRATION = 2.0  # of the rules on scores: the best asset gets a half to nearly all, and with less they earned less
FOLLOWED = 0.5 ** (1.0 / 30.0)  # the follower's memory of what families earned; 15 and 60 bars earned about as much
ORACLE, FOLLOWER = "state known", "follower"


def states_of(seed: int, bars: int = BARS) -> IntArray:
    """Number of the family that leads over the bar after each one, (bars,): each once in a round, in any order."""
    rng, states = np.random.default_rng((seed, 1)), list[int]()
    while len(states) < bars:
        for family in rng.permutation(len(FAMILIES)):
            states += [int(family)] * int(rng.integers(*LASTS))
    return np.array(states[:bars])


def family_scores(panel: MarketPanel) -> FloatArray:
    """Mean weights of each family's variants, standardised over assets, (families, bars, assets): b from bars <= b."""
    return _standardised(np.stack([family_tables(panel, family).mean(axis=0)[:, :-1] for family in FAMILIES]))


def family_panel(seed: int, bars: int = BARS) -> MarketPanel:
    """Prices of a sample; fewer bars are the first ones of more."""
    states, dates = states_of(seed, bars), pd.bdate_range(FIRST_DATE, periods=bars).to_numpy()
    noise, beta, spread = np.random.default_rng((seed, 0)).standard_normal((bars, 3, len(ASSETS))).swapaxes(0, 1)
    common = np.random.default_rng((seed, 2)).standard_normal((bars, 1))
    beta, own = _wandering(beta), OWN * _wandering(spread)
    returns = DRIFT + MARKET * beta * common + own * noise - ((MARKET * beta) ** 2 + own**2) / 2.0
    path, lead = np.zeros(returns.shape), np.zeros((len(FAMILIES), len(ASSETS)))
    for bar in range(bars - 1):
        if bar % MONTH == 0 and bar >= BARS_PER_YEAR:
            known = slice(max(bar - MEMORY, 0), bar + 1)
            scores = family_scores(MarketPanel(dates[known], tuple(ASSETS), np.exp(path[known]), bars_per_year=252))
            lead = _standardised(scores[:, -1] - scores[:, -1].mean(axis=0))
        path[bar + 1] = path[bar] + returns[bar + 1] + EDGE * lead[states[bar]]
    return MarketPanel(dates, tuple(ASSETS), 100.0 * np.exp(path))


def _standardised(values: FloatArray) -> FloatArray:
    centred = values - values.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.maximum(centred.std(axis=-1, keepdims=True), 1e-9))


def _wandering(draws: FloatArray) -> FloatArray:
    """Factors about 1 whose logs are autoregressions from normal draws, (bars, assets)."""
    draws[1:] *= np.sqrt(1.0 - DRIFTING**2)
    return np.asarray(np.exp(SPREAD * lfilter([1.0], [1.0, -DRIFTING], draws, axis=0)))


def rules_of(panel: MarketPanel, states: IntArray) -> list[FamilyRule]:
    """Rules that hold what families score high: of the known state, of the lately best family, and of each alone."""
    bars = np.arange(panel.n_bars)
    raised = np.exp(CONCENTRATION * family_scores(panel)[:, bars // MONTH * MONTH])
    held = np.concatenate([raised / raised.sum(-1, keepdims=True), np.zeros((*raised.shape[:2], 1))], axis=-1)
    paid = np.zeros(held.shape[:2])
    paid[:, 1:] = (held[:, :-1, :-1] * np.diff(np.log(panel.close), axis=0)).sum(-1)
    latest = lfilter([1.0 - FOLLOWED], [1.0, -FOLLOWED], paid, axis=1).argmax(axis=0)
    switching = [FamilyRule(ORACLE, held[states, bars]), FamilyRule(FOLLOWER, held[latest, bars])]
    return [*switching, *(FamilyRule(family, own) for family, own in zip(FAMILIES, held, strict=True))]
