"""Transitions and the market they happened in: a batch is a gather.

Actions do not move prices, so a transition holds the bar and the portfolio, and the features of its two states are
looked up in the market's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.env.coverage import coverage_portfolios, draw_log_gammas
from finflow.env.decision_process import DecisionProcess
from finflow.guard.checkpoint_folder import check_like
from finflow.offline.dataset import SOURCES, WIDE, OfflineDataset
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.training.data.rewards import RewardUnits

ONLINE = len(SOURCES)  # the family of the agent's own transitions


class MarketTensors(NamedTuple):
    """Features of the market on the learner's device."""

    assets: Tensor  # (bars, assets, F + 1)
    market: Tensor  # (bars, M)
    lag: int
    complete: bool
    named: Tensor | None = None  # (bars, 5, K): portfolios of the families' rules, means over each one's variants

    @classmethod
    def of(cls, process: DecisionProcess, device: torch.device, with_families: bool = False) -> MarketTensors:
        """The features of a decision process, and the portfolios of the families' rules on request."""
        assets = torch.from_numpy(process.asset_features).to(device)
        market = torch.from_numpy(process.market_features.copy()).to(device)
        named = None
        if with_families:
            tables = [family_tables(process.panel, family) for family in FAMILIES]
            named = torch.from_numpy(np.stack([table.mean(axis=0) for table in tables], axis=1)).float().to(device)
        complete = bool((process.asset_features[:, :, -1] > 0.0).all())
        return cls(assets, market, process.lag, complete, named)

    @property
    def n_weights(self) -> int:
        return 1 + self.assets.shape[1]

    def states(self, bars: Tensor, portfolio: Tensor, noise: Generator | None = None, scale: float = 0.0) -> States:
        """States at decision bars, with Gaussian noise on the features if asked for.

        Parameters
        ----------
        bars : int Tensor, (groups,)
        portfolio : Tensor, (batch, K + 3)
            In groups of one size, one for each bar.
        scale : float
            Deviation of the noise; that of the features is one.
        """
        rows = bars - self.lag
        assets, market = self.assets[rows], self.market[rows]
        if scale > 0.0 and noise is not None:
            market = market + scale * torch.randn(market.shape, generator=noise, device=market.device)
            drawn = torch.randn(assets.shape, generator=noise, device=assets.device)
            drawn[..., -1] = 0.0  # the last column says whether an asset is listed
            assets = assets + scale * drawn
        return States(assets, market, portfolio, self.complete)

    def families(self, bars: Tensor) -> Tensor | None:
        """Portfolios of the families' rules for decisions at bars (groups,), (groups, 5, K); None where not wanted."""
        return None if self.named is None else self.named[bars - self.lag]


class Transitions:
    """A fixed store of transitions, a ring once it is full.

    ``slack``: older transitions kept in addition, which are not drawn: ``forget_after`` can go back so far without a
    loss.

    Attributes
    ----------
    columns : dict of Tensor
        Everything stored; rewards are raw.
    written : int
        Transitions ever written, less those forgotten.
    first : int
        The oldest that is still there, counted as ``written`` is.
    wide_rows : Tensor, optional
        Of a part of a dataset: the rows that its wide columns, which it shares with the other parts, have for it.
    """

    wide_rows: Tensor | None = None

    def __init__(
        self, capacity: int, n_weights: int, portfolio_size: int, device: torch.device, slack: int = 0
    ) -> None:
        widths = {
            "portfolio": portfolio_size,
            "next_portfolio": portfolio_size,
            "action": n_weights,
            "next_action": n_weights,
        }
        self.capacity, self.places = capacity, capacity + slack
        self.columns = {name: torch.zeros(self.places, width, device=device) for name, width in widths.items()}
        for name in ("reward", "terminated", "calibration", "behaviour_return", "bar", "family"):
            kind = torch.int64 if name in ("bar", "family") else None
            self.columns[name] = torch.zeros(self.places, dtype=kind, device=device)
        self.written = self.first = 0

    def __len__(self) -> int:
        return min(self.written - self.first, self.capacity)

    @property
    def occupied(self) -> int:
        """Places that hold something, drawn from or not."""
        return self.places if self.first > 0 else self.written

    @property
    def device(self) -> torch.device:
        return self.columns["bar"].device

    @classmethod
    def of(cls, dataset: OfflineDataset, device: torch.device) -> Transitions:
        """A dataset's transitions, not to be added to: on the CPU wide columns are the dataset's own memory."""
        store, shares = cls(0, 0, 0, device), device.type == "cpu"
        stored = {name: getattr(dataset, name) for name in WIDE} if shares else dataset.arrays()
        for name, column in store.columns.items():
            given = stored[name] if name in stored else getattr(dataset, name, np.zeros(len(dataset)))
            store.columns[name] = torch.from_numpy(np.require(given, requirements=["C", "W"])).to(device, column.dtype)
        store.capacity = store.places = store.written = len(dataset)
        if shares and dataset.wide_rows is not None:
            store.wide_rows = torch.from_numpy(dataset.wide_rows)
        return store

    def add(self, **rows: NDArray[Any]) -> None:
        """Append rows, (n, ...) each; the oldest go when the store is full. Columns left out are zero."""
        count = len(rows["bar"])
        places = (self.written + torch.arange(count)) % self.places
        for name, column in self.columns.items():
            given = torch.as_tensor(np.ascontiguousarray(rows.get(name, 0)))
            column[places] = given.to(column.device, column.dtype)
        self.written += count
        self.first = max(self.first, self.written - self.places)

    def forget_after(self, written: int) -> int:
        """Drop the newest transitions, down to so many written; returns how many were dropped."""
        count = self.written - max(written, self.first)
        self.written -= count
        return count

    def restore(self, rows: Mapping[str, Tensor], written: Any, first: Any, process: DecisionProcess) -> None:
        """Restore the contents, ``occupied`` rows of every column, and the counts.

        Raises ValueError if they do not fit the store or the process.
        """
        if type(written) is not int or type(first) is not int or not 0 <= first <= written <= 10**12:
            raise ValueError("its count of transitions is none")
        kept = self.places if first > 0 else written
        limits = {"bar": len(process.growth) - 1, "family": ONLINE + 1}
        for name, column in self.columns.items():
            check_like(rows[name], column[:kept])
            stored = rows[name]
            if name in limits and len(stored) and not 0 <= int(stored.min()) <= int(stored.max()) < limits[name]:
                raise ValueError(f"replay.{name} is out of its range")
        for name, column in self.columns.items():
            column[:kept] = rows[name].to(column.device)
        self.written, self.first = written, first

    def draw(self, count: int, generator: Generator, allowed: Tensor | None = None) -> dict[str, Tensor]:
        """Rows drawn uniformly with replacement; of those at allowed bars, bool (bars,), where that is given."""
        places = (torch.arange(len(self), device=self.device) + self.written - len(self)) % self.places
        if allowed is not None:
            places = places[allowed[self.columns["bar"][places]]]
        return self.rows(places[torch.randint(len(places), (count,), generator=generator, device=self.device)])

    def rows(self, places: Tensor) -> dict[str, Tensor]:
        return {name: self.column(name, places) for name in self.columns}

    def column(self, name: str, places: Tensor) -> Tensor:
        rows = places if self.wide_rows is None or name not in WIDE else self.wide_rows[places]
        return self.columns[name][rows]


def make_batch(
    rows: dict[str, Tensor],
    market: MarketTensors,
    units: RewardUnits,
    noise: Generator | None = None,
    noise_scale: float = 0.0,
    group_size: int = 1,
) -> Batch:
    """Look up the features of both states and put the rewards into the learners' units.

    ``group_size``: every so many rows are of one bar, and share its market.
    """
    bars = rows["bar"][::group_size]
    portfolios = torch.cat([rows["portfolio"], rows["next_portfolio"]])
    return Batch(
        both=market.states(torch.cat([bars, bars + 1]), portfolios, noise, noise_scale),
        actions=rows["action"],
        rewards=units.scaled(rows["reward"], rows["bar"]),
        terminated=rows["terminated"],
        next_actions=rows["next_action"],
        families=rows["family"],
        calibrations=rows["calibration"],
        behaviour_returns=rows["behaviour_return"],
        references=units.references(rows["bar"]),
        named=market.families(bars),
    )


def join_rows(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


COVERAGE_POOL = 65_536


class CoveragePool:
    """Portfolios that cover the simplex, drawn once, as proposals for CQL."""

    def __init__(self, seed: int, n_weights: int, device: torch.device) -> None:
        rng = np.random.default_rng(np.random.SeedSequence([seed, 6]))
        self.log_gamma = draw_log_gammas(rng, COVERAGE_POOL, n_weights)
        portfolios, log_density = coverage_portfolios(self.log_gamma)
        self.portfolios = torch.from_numpy(portfolios).float().to(device)
        self.log_density = torch.from_numpy(log_density).float().to(device)

    def draw(self, states: States, proposals: int, generator: Generator) -> CoverageProposals:
        """Proposals for a batch of states, of the assets that are listed in each."""
        batch, device = len(states.portfolio), self.portfolios.device
        places = torch.randint(COVERAGE_POOL, (batch, proposals), generator=generator, device=device)
        if states.complete:
            return CoverageProposals(self.portfolios[places], self.log_density[places])
        listed = repeat_groups(states.listed, states).unsqueeze(1).expand(-1, proposals, -1).cpu().numpy()
        drawn = coverage_portfolios(self.log_gamma[places.cpu().numpy()], listed)
        return CoverageProposals(*(torch.from_numpy(part).float().to(device) for part in drawn))
