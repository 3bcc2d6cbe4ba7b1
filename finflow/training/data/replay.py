"""Transitions and the market they happened in: a batch is a gather.

Actions do not move prices, so a transition holds the bar and the portfolio, and the features of its two states are
looked up in the market's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States
from finflow.agent.losses.listwise import ListwiseTargets
from finflow.env.decision_process import DecisionProcess
from finflow.guard.state_capture import check_like
from finflow.offline.dataset import OfflineDataset
from finflow.offline.recorder import SOURCES
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.training.data.rewards import RewardUnits

ONLINE = len(SOURCES)  # the family of the agent's own transitions
SMALLEST_TOTAL = 1e-12  # of weights that are scaled to sum to one


class MarketTensors(NamedTuple):
    """Features of the market on the learner's device.

    Attributes
    ----------
    assets : Tensor, (bars, assets, F + 1)
    market : Tensor, (bars, M)
    lag : int
    complete : bool
        True where every asset is listed at every bar.
    members : Tensor or None, (pool, n)
        Assets of each sub-universe, to which states are restricted.
    named : Tensor, (bars, 5, K), optional
        Portfolios of the rules of the five families at every bar, on average over each family's variants.
    rankings : ListwiseTargets, optional
        Of the assets by their returns after decisions at every bar.
    """

    assets: Tensor
    market: Tensor
    lag: int
    complete: bool
    members: Tensor | None = None
    named: Tensor | None = None
    rankings: ListwiseTargets | None = None

    @classmethod
    def of(cls, process: DecisionProcess, device: torch.device, with_families: bool = False) -> MarketTensors:
        """The features of a decision process, and the portfolios of the families' rules on request."""
        assets = torch.from_numpy(process.asset_features).to(device)
        market = torch.from_numpy(process.market_features.copy()).to(device)
        named = None
        if with_families:
            tables = [process.of_panels(partial(family_tables, family=family), axis=1) for family in FAMILIES]
            named = torch.from_numpy(np.stack([table.mean(axis=0) for table in tables], axis=1)).float().to(device)
        members = None if process.members is None else torch.from_numpy(process.members).to(device)
        complete = bool((process.asset_features[:, :, -1] > 0.0).all())
        return cls(assets, market, process.lag, complete, members, named)

    @property
    def n_weights(self) -> int:
        """Weights of a state: the assets that an episode has, and cash."""
        return 1 + (self.assets.shape[1] if self.members is None else self.members.shape[1])

    def states(
        self,
        bars: Tensor,
        portfolio: Tensor,
        noise: Generator | None = None,
        scale: float = 0.0,
        universe: Tensor | None = None,
    ) -> States:
        """States at decision bars, with Gaussian noise on the features if asked for.

        Parameters
        ----------
        bars : int Tensor, (groups,)
        portfolio : Tensor, (batch, K + 3)
            In groups of one size, one for each bar.
        noise : Generator, optional
        scale : float
            Deviation of the noise; that of the features is one.
        universe : int Tensor, (groups,), optional
            Sub-universes, where the market has any; all of the assets when left out.
        """
        rows = bars - self.lag
        market = self.market[rows]
        if self.members is None or universe is None:
            assets = self.assets[rows]
        else:
            inside = self.members[universe]
            assets = self.assets[rows.unsqueeze(1), inside]
            portfolio = self.gather_assets(portfolio, universe.repeat_interleave(len(portfolio) // len(universe)))
        if scale > 0.0 and noise is not None:
            market = market + scale * torch.randn(market.shape, generator=noise, device=market.device)
            drawn = torch.randn(assets.shape, generator=noise, device=assets.device)
            drawn[..., -1] = 0.0  # the last column says whether an asset is listed
            assets = assets + scale * drawn
        return States(assets, market, portfolio, self.complete)

    def families(self, bars: Tensor, universe: Tensor | None = None) -> Tensor | None:
        """Portfolios of the families' rules for decisions at ``bars`` (groups,), restricted to the sub-universes.

        Returns
        -------
        Tensor, (groups, 5, K), or None where it is not wanted
        """
        if self.named is None:
            return None
        named = self.named[bars - self.lag]
        if self.members is None or universe is None:
            return named
        members = self.members[universe]
        risky, cash = named.gather(2, members.unsqueeze(1).expand(-1, named.shape[1], -1)), named[..., -1:]
        total = risky.sum(dim=-1, keepdim=True)
        equal = torch.full_like(risky, 1.0 / risky.shape[-1])
        if not self.complete:
            listed = self.assets[(bars - self.lag).unsqueeze(1), members, -1].unsqueeze(1)
            count = listed.sum(dim=-1, keepdim=True)
            equal = (listed / count.clamp(min=1.0)).expand_as(risky)
            cash = torch.where((total > SMALLEST_TOTAL) | (count > 0.0), cash, torch.ones_like(cash))
        shares = torch.where(total > SMALLEST_TOTAL, risky / total.clamp(min=SMALLEST_TOTAL), equal)
        return torch.cat([(1.0 - cash) * shares, cash], dim=-1)

    def rankings_at(self, bars: Tensor, universe: Tensor | None = None) -> ListwiseTargets | None:
        """Rankings after decisions at ``bars`` (groups,), of the sub-universes' assets; None where none are kept."""
        if self.rankings is None:
            return None
        return self.rankings.rows(bars, None if self.members is None or universe is None else self.members[universe])

    def gather_assets(self, portfolios: Tensor, universe: Tensor | None) -> Tensor:
        """Columns of ``portfolios`` (batch, K + ...) of the sub-universes' assets, of cash, and all after it."""
        if self.members is None or universe is None:
            return portfolios
        n_assets = self.assets.shape[1]
        rest = torch.arange(n_assets, portfolios.shape[1], device=portfolios.device).expand(len(portfolios), -1)
        return portfolios.gather(1, torch.cat([self.members[universe], rest], dim=1))

    def scatter_assets(self, portfolios: Tensor, universe: Tensor | None) -> Tensor:
        """Portfolios of sub-universes (batch, n + 1) among all weights, with nothing outside."""
        if self.members is None or universe is None:
            return portfolios
        n_assets = self.assets.shape[1]
        cash = torch.full((len(portfolios), 1), n_assets, dtype=torch.int64, device=portfolios.device)
        wide = portfolios.new_zeros(len(portfolios), n_assets + 1)
        return wide.scatter(1, torch.cat([self.members[universe], cash], dim=1), portfolios)


class Transitions:
    """A fixed store of transitions, a ring once it is full.

    Parameters
    ----------
    capacity : int
    n_weights : int
        K.
    portfolio_size : int
        K + 3.
    device : torch.device
    slack : int
        Older transitions kept in addition, which are not drawn: ``forget_after`` can go back so far without a loss.
    universes : bool
        Whether a transition remembers the sub-universe of its episode.

    Attributes
    ----------
    columns : dict of Tensor
        Everything stored; rewards are raw.
    written : int
        Transitions ever written, less those forgotten.
    first : int
        The oldest that is still there, counted as ``written`` is.
    """

    def __init__(
        self,
        capacity: int,
        n_weights: int,
        portfolio_size: int,
        device: torch.device,
        slack: int = 0,
        universes: bool = False,
    ) -> None:
        widths = {
            "portfolio": portfolio_size,
            "next_portfolio": portfolio_size,
            "action": n_weights,
            "next_action": n_weights,
        }
        self.places = places = capacity + slack
        self.columns = {name: torch.zeros(places, width, device=device) for name, width in widths.items()}
        for name in ("reward", "terminated", "calibration", "behaviour_return"):
            self.columns[name] = torch.zeros(places, device=device)
        for name in ("bar", "family"):
            self.columns[name] = torch.zeros(places, dtype=torch.int64, device=device)
        if universes:
            self.columns["universe"] = torch.zeros(places, dtype=torch.int64, device=device)
        self.capacity = capacity
        self.written = self.first = 0

    def __len__(self) -> int:
        return min(self.written - self.first, self.capacity)

    @property
    def occupied(self) -> int:
        """Places that hold something, drawn from or not."""
        return self.places if self.first > 0 else self.written

    @property
    def device(self) -> torch.device:
        """Device of the columns."""
        return self.columns["bar"].device

    @classmethod
    def of(cls, dataset: OfflineDataset, device: torch.device, universes: bool = False) -> Transitions:
        """All transitions of an offline dataset."""
        n_weights, size = dataset.action.shape[1], dataset.portfolio.shape[1]
        store = cls(len(dataset), n_weights, size, device, universes=universes)
        stored = dataset.arrays()
        store.add(**{name: stored[name] for name in store.columns if name in stored})
        return store

    def add(self, **rows: NDArray[Any]) -> None:
        """Append rows, (n, ...) each; the oldest go when the store is full. Columns left out are zero."""
        count = len(rows["bar"])
        places = (self.written + torch.arange(count)) % self.places
        for name, column in self.columns.items():
            if name in rows:
                column[places] = torch.as_tensor(np.ascontiguousarray(rows[name])).to(column.device, column.dtype)
            else:
                column[places] = 0
        self.written += count
        self.first = max(self.first, self.written - self.places)

    def forget_after(self, written: int) -> int:
        """Drop the newest transitions, down to so many written; returns how many were dropped."""
        count = self.written - max(written, self.first)
        self.written -= count
        return count

    def restore(self, rows: Mapping[str, Tensor], written: Any, first: Any, process: DecisionProcess) -> None:
        """Restore the contents, ``occupied`` rows of every column, and the counts.

        Raises
        ------
        ValueError
            If they do not fit the store or the process.
        """
        if type(written) is not int or type(first) is not int or not 0 <= first <= written <= 10**12:
            raise ValueError("its count of transitions is none")
        kept = self.places if first > 0 else written
        universes = 1 if process.inside is None else len(process.inside)
        limits = {"bar": len(process.growth) - 1, "family": ONLINE + 1, "universe": universes}
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
        device = self.columns["bar"].device
        oldest = self.written - len(self)
        if allowed is None:
            drawn = torch.randint(len(self), (count,), generator=generator, device=device)
            return self.rows((drawn + oldest) % self.places)
        places = (torch.arange(len(self), device=device) + oldest) % self.places
        places = places[allowed[self.columns["bar"][places]]]
        return self.rows(places[torch.randint(len(places), (count,), generator=generator, device=device)])

    def rows(self, places: Tensor) -> dict[str, Tensor]:
        """Rows at given places."""
        return {name: column[places] for name, column in self.columns.items()}


def make_batch(
    rows: dict[str, Tensor],
    market: MarketTensors,
    units: RewardUnits,
    noise: Generator | None = None,
    noise_scale: float = 0.0,
    group_size: int = 1,
) -> Batch:
    """Look up the features of both states and put the rewards into the learners' units.

    Parameters
    ----------
    rows : dict of Tensor
        From one store, or from several joined.
    market : MarketTensors
    units : RewardUnits
        Of the rewards, which the store keeps raw.
    noise : Generator, optional
    noise_scale : float
        Of the observation noise.
    group_size : int
        Every so many rows are of one bar, and share its market.
    """
    bars, universe = rows["bar"][::group_size], rows.get("universe")
    shared = None if universe is None else universe[::group_size]
    named, rankings = market.families(bars, shared), market.rankings_at(bars, shared)
    bars = torch.cat([bars, bars + 1])
    shared = None if shared is None else shared.repeat(2)
    portfolios = torch.cat([rows["portfolio"], rows["next_portfolio"]])
    return Batch(
        both=market.states(bars, portfolios, noise, noise_scale, shared),
        actions=market.gather_assets(rows["action"], universe),
        rewards=units.scaled(rows["reward"], rows["bar"], universe),
        terminated=rows["terminated"],
        next_actions=market.gather_assets(rows["next_action"], universe),
        families=rows["family"],
        calibrations=rows["calibration"],
        behaviour_returns=rows["behaviour_return"],
        references=units.references(rows["bar"], universe),
        named=named,
        rankings=rankings,
    )


def join_rows(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows of several stores, one after the other."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
