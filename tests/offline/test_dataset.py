"""A dataset is kept whole or refused with the reason, and its card says what is inside and what it was worth.

It comes back from Minari bit for bit, other tools can read what lies there, and nothing else is believed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

from finflow.config import load_config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import FinflowError, OutputError
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.offline.collection import collect, made_by, simulate_behaviour
from finflow.offline.dataset import (
    SOURCES,
    OfflineDataset,
    Rows,
    card_lines,
    data_card,
    load_dataset,
    regions,
    save_dataset,
)
from finflow.offline.minari_files import export_minari, import_minari, minari_folder
from finflow.training.data.training_data import prepare
from tests.offline.conftest import assert_same, make_small


def expected(world: Any) -> dict[str, str]:
    return made_by(world.config, world.process, world.window)


@pytest.fixture
def stored(tmp_path: Path, dataset: OfflineDataset) -> Path:
    path = tmp_path / "data" / "behaviour.npz"
    save_dataset(path, dataset)
    return path


def refusal(path: Path, wanted: dict[str, str]) -> str:
    """The one line with which a dataset is refused."""
    with pytest.raises(FinflowError) as raised:
        load_dataset(path, wanted)
    message = str(raised.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_what_is_read_is_what_was_written(stored: Path, small: Any, dataset: OfflineDataset) -> None:
    assert_same(load_dataset(stored, expected(small)), dataset)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"env__commission_bps": 20.0}, "costs and execution"),
        ({"env__execution_lag": 2}, "costs and execution"),
        ({"objectives__lambda_turn": 0.5}, "objectives"),
        ({"train__seed": 1}, "seed"),
        ({"train__offline_episodes": 41}, "episodes"),
        ({"market__train_end": "2008-05-30"}, "training window"),
        ({"market__tickers": "AAPL,AMD,GE,JNJ"}, "prices"),
        ({"market__cash_rate": 0.03}, "prices"),
    ],
)
def test_data_made_by_something_else_are_refused_by_name(stored: Path, change: dict[str, object], named: str) -> None:
    message = refusal(stored, expected(make_small(**change)))
    assert named in message
    assert "--recollect" in message


def test_data_made_by_other_code_are_refused(stored: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.offline.collection.code_hash", lambda *rooms: "0" * 16)
    assert "other ledger, code;" in refusal(stored, expected(small))


def test_what_decides_nothing_changes_nothing(small: Any) -> None:
    assert expected(make_small(train__n_envs=3, bcell__gamma=0.9)) == expected(small)


def test_a_file_of_another_kind_is_refused(tmp_path: Path, small: Any, stored: Path) -> None:
    """Other bytes, a part of a dataset, other arrays, and a pickle, which is never opened."""
    path = tmp_path / "other.npz"
    assert "there is no dataset" in refusal(path, expected(small))
    whole = bytearray(stored.read_bytes())
    whole[len(whole) // 2] ^= 1  # in an array, each of which has a checksum
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04]", whole[:-500], whole):
        path.write_bytes(content)
        assert "not a complete finflow dataset" in refusal(path, expected(small))
    for arrays in ({"a": np.ones(3)}, {"meta": np.array([{"a": 1}], dtype=object)}):
        np.savez(path, **arrays)
        assert "not a complete finflow dataset" in refusal(path, expected(small))


EPISODES, LENGTH, K = 40, 25, 6
PENALTIES = ("sharpe_beta", "lambda_turn", "lambda_cvar", "lambda_dd")


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Rows]:
    """Behaviour whose reward is its net log return."""
    world = make_small(**{f"objectives__{name}": 0.0 for name in PENALTIES})
    return world, simulate_behaviour(world.config, world.process, world.window)


def test_the_card_lies_beside_the_file_without_times_or_folders(tmp_path: Path, dataset: OfflineDataset) -> None:
    for name in ("a", "b"):
        save_dataset(tmp_path / name / "data.npz", dataset)
    text, other = ((tmp_path / name / "data.json").read_text("utf-8") for name in ("a", "b"))
    assert text == other
    card = json.loads(text)
    assert card["reward_scale"] == dataset.reward_scale
    assert card["made_by"] == dataset.meta["made_by"]
    assert {"prices", "training window", "costs and execution", "ledger", "code"} <= card["made_by"].keys()
    assert {name: card[name] for name in dataset.meta["card"]} == dataset.meta["card"]


def test_every_transition_and_episode_is_counted_once(small: Any, dataset: OfflineDataset) -> None:
    card, dates = dataset.meta["card"], small.process.panel.dates
    assert card["first_fill"] == str(dates[dataset.bar.min()])
    assert card["last_fill"] == str(dates[dataset.bar.max()])
    assert (card["transitions"], card["episodes"]) == (EPISODES * LENGTH, EPISODES)
    assert list(card["families"]) == list(SOURCES[:-1])  # nobody gave decisions of their own
    for index, name in enumerate(card["families"]):
        assert card["families"][name]["transitions"] == (dataset.family == index).sum()
    assert sum(family["episodes"] for family in card["families"].values()) == EPISODES
    assert card["ruined_episodes"] == 0
    for part in (card, *card["families"].values()):
        for name in ("largest_weight", "effective_assets", "cash_share", "distance_from_equal_weight"):
            assert sum(part["coverage"][name].values()) == pytest.approx(1.0, abs=1e-4), name


def test_regions_of_three_portfolios_by_hand() -> None:
    actions = np.array([[0.25, 0.25, 0.25, 0.25], [0.05, 0.85, 0.05, 0.05], [0.0, 0.0, 0.4, 0.6]])
    found = regions(actions, ("A", "B", "C"))
    third = pytest.approx(1 / 3)
    used = {kind: {name: share for name, share in found[kind].items() if share} for kind in found}
    assert used["largest_weight"] == {"0.2 to 0.3": third, "0.7 to 0.9": third, "0.3 to 0.5": third}
    # 1 / (4 / 16), 1 / (0.7225 + 0.0075), 1 / (0.16 + 0.36)
    assert used["effective_assets"] == {"1 to 1.5": third, "1.5 to 2": third, "3 to 4": third}
    # 0, half of 0.6 + 3 * 0.2, half of 2 * 0.25 + 0.15 + 0.35
    assert used["distance_from_equal_weight"] == {"0 to 0.1": third, "0.6 to 0.8": third, "0.4 to 0.6": third}
    assert found["largest_holding"] == {"A": third, "B": third, "C": 0.0, "cash": third}
    assert found["over_half"] == {"A": 0.0, "B": third, "C": 0.0, "cash": third}
    assert found["mean_weight"]["cash"] == pytest.approx(0.3)


def test_returns_are_those_of_whole_episodes_net_of_costs(plain: tuple[Any, Rows]) -> None:
    """Without penalties the reward is the net log return: the card's figures follow from the rewards alone."""
    world, rows = plain
    card = data_card(rows, world.process.panel)
    rewards = rows["reward"].reshape(EPISODES, LENGTH)
    owner = rows["family"].reshape(EPISODES, LENGTH).min(axis=1)
    for index, name in enumerate(card["families"]):
        own, returns = rewards[owner == index], card["families"][name]["returns"]
        annual = own.mean(axis=1) * BARS_PER_YEAR
        assert returns["annual_log_return"]["mean"] == pytest.approx(annual.mean(), rel=1e-5)
        assert returns["annual_log_return"]["median"] == pytest.approx(np.median(annual), rel=1e-5)
        wealth = np.exp(np.concatenate([np.zeros((len(own), 1)), own.cumsum(axis=1)], axis=1))
        deepest = (wealth / np.maximum.accumulate(wealth, axis=1) - 1.0).min(axis=1)
        assert returns["max_drawdown"]["5%"] == pytest.approx(np.quantile(deepest, 0.05), rel=1e-5)
        spread = np.expm1(own).std(axis=1, ddof=1) * np.sqrt(BARS_PER_YEAR)
        assert returns["annual_volatility"]["95%"] == pytest.approx(np.quantile(spread, 0.95), rel=1e-5)


def test_costs_are_the_rate_times_what_was_traded_where_targets_are_not_what_was_held(plain: tuple[Any, Rows]) -> None:
    """Turnover counts a purchase paid in cash once, and commission is on the risky side alone: costs lie between."""
    world, rows = plain
    rate = (world.config.env.commission_bps + world.config.env.slippage_bps) * 1e-4
    moved = np.abs(rows["action"] - rows["portfolio"][:, :K]).sum(axis=1) / 2.0 > 2e-6
    for index, family in enumerate(data_card(rows, world.process.panel)["families"].values()):
        cost, turnover = (family["returns"][key]["mean"] for key in ("annual_cost", "annual_turnover"))
        assert 0.5 * rate * turnover < cost < 2.01 * rate * turnover
        share = moved[rows["family"] == index].mean()
        assert family["trades"]["share_that_trade"] == pytest.approx(share, abs=0.01)


def test_what_is_undefined_is_null_and_a_dash(plain: tuple[Any, Rows]) -> None:
    """One step has no volatility and no Sharpe ratio."""
    world, rows = plain
    card = data_card({name: column[:1] for name, column in rows.items()}, world.process.panel)
    (family,) = card["families"].values()
    assert family["returns"]["sharpe"] == {"mean": None, "5%": None, "median": None, "95%": None}
    json.dumps(card, allow_nan=False)
    assert " - " in card_lines(card)[1]
    only = {name: column[rows["family"] == 2] for name, column in rows.items()}
    assert list(data_card(only, world.process.panel)["families"]) == [SOURCES[2]]  # the others have no data


def test_the_default_data_visit_every_region_of_the_simplex() -> None:
    market = prepare(load_config(environ={}))
    data = collect(market.config, market.process, market.train)
    assert len(data) == 500 * 252
    coverage = data.meta["card"]["coverage"]
    for name in ("largest_weight", "effective_assets", "cash_share", "distance_from_equal_weight"):
        assert all(share > 0.0 for share in coverage[name].values()), f"a region of {name} is never visited"
    assert min(coverage["largest_holding"].values()) > 0.01
    assert min(coverage["over_half"].values()) > 0.0


NAME = "finflow/behaviour-v0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return minari_folder(NAME)


def test_ruined_and_users_episodes_come_back_bit_for_bit(folder: Path, ruined: OfflineDataset) -> None:
    export_minari(ruined, folder, NAME)
    assert_same(import_minari(folder), ruined)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_other_tools_see_what_the_environment_shows(folder: Path, lag: int) -> None:
    """Minari's own reader, against observations of the environment played again with the stored actions."""
    world = make_small(env__execution_lag=lag)
    data = world.collect()
    export_minari(data, folder, NAME, world.process)
    assert_same(import_minari(folder), data)
    stored = minari.load_dataset(NAME)
    assert (stored.total_episodes, stored.total_steps) == (40, len(data))
    env = PortfolioVectorEnv(world.process, world.window, 1, 25)
    assert stored.action_space == env.single_action_space
    assert set(stored.observation_space.spaces) == set(env.single_observation_space.spaces)
    for episode in (stored[3], stored[39]):
        held = episode.observations["portfolio"][:1, : world.process.n_weights].astype(np.float64)
        bar = episode.infos["bar"][:1].astype(np.int64)
        if lag == 0:
            held /= world.process.growth[bar]
        observation, _ = env.reset(options={"bars": bar, "weights": held / held.sum()})
        for step, action in enumerate(episode.actions):
            for name, value in observation.items():
                np.testing.assert_allclose(episode.observations[name][step], value[0], rtol=0, atol=1e-5)
            observation, reward, *_, info = env.step(action[None])
            assert episode.rewards[step] == pytest.approx(reward[0], abs=1e-6)
        last = info["final_obs"][0]
        for name, value in last.items():
            np.testing.assert_allclose(episode.observations[name][-1], value, rtol=0, atol=1e-5)
            assert episode.observations[name].shape == (26, *value.shape)
        assert episode.truncations.tolist() == [False] * 24 + [True]


def test_a_failed_export_leaves_nothing(
    folder: Path, dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", full)
    with pytest.raises(OutputError, match="No space left"):
        export_minari(dataset, folder, NAME)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["behaviour", "../up-v0", "/root-v0", ""])
def test_a_name_that_minari_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(FinflowError, match="not the name of a Minari dataset"):
        minari_folder(name)


def test_what_was_changed_or_cut_since_is_refused_and_not_written_over(folder: Path, dataset: OfflineDataset) -> None:
    export_minari(dataset, folder, NAME)
    with pytest.raises(FinflowError, match="already; use another name"):
        export_minari(dataset, folder, NAME)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_7/rewards"][3] += 1e-3
    with pytest.raises(FinflowError, match="was changed since"):
        import_minari(folder)
    path = folder / "data" / "main_data.hdf5"
    content = path.read_bytes()
    for share in (0.0, 0.5, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(FinflowError, match="not a complete Minari dataset"):
            import_minari(folder)


def test_datasets_of_others_are_refused_before_anything_of_theirs_is_made(
    folder: Path, dataset: OfflineDataset, tmp_path: Path
) -> None:
    """Without spaces in its metadata Minari would import and make the environment that a file names."""
    export_minari(dataset, folder, NAME)
    path = folder / "data" / "metadata.json"
    whole = json.loads(path.read_text())
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('imported')", encoding="utf-8")
    spec = json.dumps({"id": "Trap-v0", "entry_point": "trap:Trap"})
    for missing in ("observation_space", "finflow_meta", "finflow_sha256"):
        changed = {key: value for key, value in whole.items() if key != missing}
        path.write_text(json.dumps({**changed, "env_spec": spec}))
        with pytest.raises(FinflowError, match="was not exported by finflow"):
            import_minari(folder)
    assert "trap" not in sys.modules
    path.write_text("{")
    with pytest.raises(FinflowError, match="not a complete Minari dataset"):
        import_minari(folder)
    with pytest.raises(FinflowError, match="there is no Minari dataset"):
        import_minari(minari_folder("none-v0"))


def test_without_the_package_one_line_says_what_to_install(
    folder: Path, dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    for attempt in (lambda: export_minari(dataset, folder, NAME), lambda: import_minari(folder)):
        with pytest.raises(FinflowError, match=r"pip install 'finflow\[minari\]'"):
            attempt()
