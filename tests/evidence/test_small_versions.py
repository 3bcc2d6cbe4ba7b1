"""Small versions of the evidence about transfer, the search and foreknowledge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finflow.training.audit.foreknowledge import Foreknowledge
from finflow.training.data import mirrored_growth
from finflow.training.data.training_data import prepare
from scripts.evidence import foresight, later_years, rollout_controls, tuning_evidence
from scripts.evidence.foresight import OTHERWISE, foresight_page, measure_honest
from scripts.evidence.results import run_missing
from scripts.evidence.transfer import _parts, transfer_variants
from scripts.evidence.tuning_evidence import WAYS, tuning_table, tuning_variants
from tests.short_trainings import SHORT, config_in, write_prices

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
SMALL: dict[str, object] = {
    **SHORT,
    "market.synthetic.bars": 1500,
    "market.train_end": "2020-12-31",
    "market.validation_end": "2021-07-30",
}


# --- transfer: disjoint names, and every agent judged on the same market


def test_an_agent_never_learns_from_the_others() -> None:
    order = np.random.default_rng(0).permutation(30)
    parts = _parts(order, 20)
    assert {name: len(part) for name, part in parts.items()} == {"known": 20, "others": 10, "all": 30}
    assert not set(parts["known"]) & set(parts["others"])
    assert set(_parts(order[:20], 10)) == {"known", "others"}  # half of the names: all of them are not another market


def test_a_small_training_moves_to_other_stocks(tmp_path: Path) -> None:
    more = {
        **{"train.online_episodes": 4, "env.episode_length": 40, "market.start": "2004-01-01", "bcell.hidden_dim": 8},
        **{"market.train_end": "2008-12-31", "market.validation_end": "2009-12-31"},
    }
    variant = transfer_variants(1, more)[1]
    (found,) = run_missing([variant], tmp_path / "page.json", tmp_path / "runs")
    others = found["targets"]["others"]
    assert others["names"] == 10
    assert others["visitor"] != pytest.approx(others["resident"], abs=1e-9)
    assert np.isfinite([others["visitor"], others["equal-weight"]]).all()


# --- later years, and a control that changes code


def test_a_fold_is_judged_on_years_after_its_training(tmp_path: Path) -> None:
    keys: dict[str, object] = {"market.path": str(write_prices(tmp_path / "prices.csv", 1800)), **SHORT}
    keys |= {"market.source": "csv", "market.train_end": "2014-06-30", "market.validation_end": "2015-06-30"}
    keys |= {"evaluation.protocol.folds": 2, "evaluation.protocol.purge": 30, "out_of_fold.blocks": 2}
    found = later_years.judge_fold(2, config_in(tmp_path, keys))
    assert "2014-06-30" > found["window"][0] < found["window"][1] <= "2015-06-30"
    sharpes = [found[name] for name in (*later_years.RULES, *later_years.LEARNED)]
    assert np.isfinite(sharpes).all()
    assert len({found[name] for name in later_years.LEARNED}) == 3  # three policies, not one by three names
    assert found["confidence"] < 1.0
    assert "| 2 | " in later_years.later_years_table([found])


def test_without_the_switching_model_nothing_is_predicted_by_regime(tmp_path: Path) -> None:
    keys = {**SMALL, "market.source": "synthetic", "market.synthetic.kind": "regime"}
    data = prepare(config_in(tmp_path, keys))
    bars = np.array(data.process.decision_bars(data.split.train))
    assert np.nanmax(np.abs(mirrored_growth.regime_returns(data.process, bars))) > 1e-4
    with rollout_controls.without_switching():
        assert not mirrored_growth.regime_returns(data.process, bars).any()


# --- the search


def test_a_search_and_its_retraining_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_evidence, "FRESH", 1)
    keys = {**SMALL, "market.test_end": "2021-12-31", "evaluation.protocol.purge": 5}
    keys |= {"tune.space": {"bcell.gamma": {"low": 0.9, "high": 0.99}}}
    variants = [one for one in tuning_variants(DEMO, 1, 2, keys) if one.name == "tune-pruned-2"]
    (searched,) = run_missing(variants, tmp_path / "page.json", tmp_path / "runs")
    assert searched["finished"] == 2
    assert searched["updates"] > 0
    assert set(searched["best"]) == {"bcell.gamma"}
    assert len(searched["scores"]) == 1
    assert "best of TPE with pruning | 1 |" in tuning_table([searched])


def test_every_pair_has_a_market_of_its_own_and_the_same_for_every_way(tmp_path: Path) -> None:
    variants = tuning_variants(DEMO, pairs=2)
    assert len(variants) == 2 * len(WAYS)
    configs = [variant.config(variant.seeds[0], tmp_path) for variant in variants]
    for pair in (0, 1):
        own = [config for config in configs if config.train.seed == pair]
        assert {config.market.synthetic.seed for config in own} == {pair}
        assert len({config.market.model_dump_json() for config in own}) == 1
        assert (own[0].tune.sampler, own[0].tune.pruner) == ("tpe", "median")


# --- foreknowledge


def leaks_of(share: float, draw: int) -> bool:
    moves = 0.01 * np.random.default_rng(3).standard_normal((900, 12))
    test = Foreknowledge(100.0 * np.exp(np.cumsum(moves, axis=0)))
    return foresight._is_flagged(test, np.arange(300, 890), share, OTHERWISE[1], 1, draw)


def test_a_large_leak_is_flagged_and_none_is_not() -> None:
    assert all(leaks_of(0.6, draw) for draw in range(3))
    assert not any(leaks_of(0.0, draw) for draw in range(3))


def test_an_honest_market_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "NAMED", ("momentum",))
    keys = {**SMALL, "market.source": "synthetic", "market.synthetic.kind": "mean-reverting"}
    found = measure_honest(config_in(tmp_path, keys))
    assert next(iter(found["rows"])) == "optimal"
    assert {"finflow", "momentum"} <= set(found["rows"])
    parts = [row[part] for row in found["rows"].values() for part in ("whole", "block") if part in row]
    assert all(part["share"] < 1.0 for part in parts)
    assert set(found["features"]) == {"clean"}
    assert found["honest"]["1"]["assets"] > 0.15  # a reversion can be foretold
    leaks = {
        f"{other}|{count}|{share}": 3 for other in OTHERWISE for count in (250, 1000) for share in foresight.SHARES
    }
    page = foresight_page(
        [{"variant": "foresight-mean-reverting", "code": "c", **found}, {"code": "c", "flagged": leaks}]
    )
    assert "| mean-reverting | optimal | " in page
    assert page.count("| no |") == len(found["rows"]) + 1
    assert "| equal weight | 250 | 3 |" in page
