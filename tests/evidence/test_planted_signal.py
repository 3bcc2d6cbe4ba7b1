"""Offline learning on made-up markets: it finds the best asset, and holds where no asset is better."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.market.bar_frequency import BARS_PER_YEAR
from tests.evidence.planted_markets import learn

pytestmark = pytest.mark.learning
KEYS: dict[str, object] = {"market__validation_end": "2014-12-31", "train__offline_batch_size": 256}


def test_the_best_asset_is_found(tmp_path: Path) -> None:
    keys = {"bcell__actor_lr": 3e-3, "bcell__critic_lr": 3e-3, "market__synthetic__kind": "constant-drift"}
    learned = learn(tmp_path, **KEYS, **keys, train__offline_episodes=150, train__offline_training_epochs=3)
    families = [learned.data.reward[learned.data.family == family].mean() for family in range(6)]
    assert learned.own.rewards.mean() > max(families)
    assert learned.scores["finflow"].score > 0.15  # seen: 0.39 over four years, with a standard error of 0.18


def test_where_assets_do_not_differ_it_learns_to_hold(tmp_path: Path) -> None:
    keys = {"bcell__actor_lr": 2e-3, "bcell__critic_lr": 2e-3, "market__synthetic__kind": "exchangeable"}
    keys |= {"market__synthetic__bars": 12_000}
    learned = learn(tmp_path, **KEYS, **keys, train__offline_episodes=100, train__offline_training_epochs=4)
    held, aimed = learned.data.portfolio[:, :3], learned.data.action
    behaviour = 0.5 * abs(aimed - held).sum(axis=1).mean() * BARS_PER_YEAR
    own = learned.own.turnover.mean() * BARS_PER_YEAR
    assert own < 0.05 * behaviour
    assert own < 2.0 * learned.optimal.turnover.mean() * BARS_PER_YEAR  # most of either is the first purchase
