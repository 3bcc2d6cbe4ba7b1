"""A protocol trains once for every fold, sees nothing that it judges on, and leaves the test window alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch

from finflow.cli import main
from finflow.config import Config, ProtocolConfig, dump_config
from finflow.errors import FinflowError, MarketError
from finflow.evaluation.page.page_numbers import look_up
from finflow.experiments.jobs import independent_trainings as trainings
from finflow.experiments.jobs.independent_trainings import finished_best, train_one
from finflow.experiments.jobs.protocols import ProtocolJob, make_protocol_job
from finflow.experiments.jobs.walk_forward import HISTORY, Fold, Protocol, folds_of
from finflow.guard.checkpoint_folder import LATEST, MODELS, CheckpointFolder
from finflow.training.checkpoints.checkpoint_reader import Checkpoint, read_checkpoint
from finflow.training.data.training_data import offline_data, prepare
from finflow.training.phases.stopping import request_stop
from tests.short_trainings import SHORT, config_in, write_prices

pytestmark = pytest.mark.usefixtures("quick_reports")
SMALL = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2014-06-30",
    "market.validation_end": "2016-06-30",
    "train.validation_updates": 20,
    "evaluation.protocol.validation_share": 0.05,  # a few months: backtests of longer windows are most of a training
    "evaluation.rebalance_every": 150,
    "evaluation.protocol.folds": 2,
    "evaluation.protocol.groups": 4,
    "evaluation.protocol.purge": 30,
    "evaluation.protocol.embargo": 5,
}
BARS = 2000  # 1849 of them before the test window
SHORTER = {"market__train_end": "2013-06-28", "market__validation_end": "2014-06-30"}  # for windows that are played


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Config]:
    """Makes configurations of trainings of a second; keys in keyword form."""
    prices = write_prices(tmp_path / "prices.csv", BARS)
    return partial(config_in, tmp_path, {**SMALL, "market.path": str(prices)})


def with_a_hole(plan: ProtocolJob) -> Fold:
    """The fold that learns from bars before and after those that it is judged on."""
    (fold,) = (one for one in plan.folds if len(one.pieces) == 2 and one.tests[0].stop == one.tests[1].start)
    return fold


def train_fold(plan: ProtocolJob, fold: Fold, seed: int) -> Path:
    """Make a training in this process; its best checkpoint."""
    training, panels = plan.fold_training(fold, seed), {plan.market: plan.panel}
    train_one(panels, training)
    best = finished_best(training, plan.panel)
    assert best is not None
    return best


def trained(config: Config) -> Checkpoint:
    plan = make_protocol_job(config, "cpcv")
    return read_checkpoint(train_fold(plan, with_a_hole(plan), config.train.seed))


def same_bits(first: Checkpoint, second: Checkpoint) -> bool:
    return first.tensors.keys() == second.tensors.keys() and all(
        torch.equal(tensor.view(-1).view(torch.uint8), second.tensors[name].view(-1).view(torch.uint8))
        for name, tensor in first.tensors.items()
    )


def test_no_held_out_bar_moves_a_bit_of_what_was_learned(small: Callable[..., Config], tmp_path: Path) -> None:
    """Judged windows, the purge before them, the embargo after them, and the test window, all with other prices."""
    config = small()
    plan = make_protocol_job(config, "cpcv")
    fold = with_a_hole(plan)
    seen = {bar for piece in fold.pieces for bar in piece}
    hidden = np.array([bar for bar in range(BARS) if bar not in seen])
    assert {bar for test in fold.tests for bar in test} < set(hidden.tolist())
    first = trained(config)
    other = write_prices(tmp_path / "other.csv", BARS, changed=hidden)
    assert same_bits(first, trained(small(market__path=str(other), output__logs_dir=str(tmp_path / "more"))))
    told = write_prices(tmp_path / "told.csv", BARS, changed=np.array([fold.pieces[1].stop - 60]))
    assert not same_bits(first, trained(small(market__path=str(told), output__logs_dir=str(tmp_path / "told"))))


def test_no_decision_is_learned_from_across_the_hole_or_in_the_purge(small: Callable[..., Config]) -> None:
    config = small()
    plan = make_protocol_job(config, "cpcv")
    fold = with_a_hole(plan)
    training_data = plan.fold_training(fold, 0).training_data(plan.panel)
    data = offline_data(config, training_data).dataset
    first, second = fold.pieces
    join = len(first)
    at = data.bar
    assert ((at < join - 1) | (at > join + 252)).all()  # 252 bars of history, and a lag of one, after the join
    assert (at < join).any()
    assert (at > join).any()
    episodes = pd.Series(at).groupby(data.episode)
    assert ((episodes.max() < join) | (episodes.min() > join)).all()
    bars = len(first) + len(second)
    assert training_data.panel.n_bars == bars
    assert training_data.split.validation == range(bars - fold.validation, bars)


def test_the_test_window_is_not_even_loaded(small: Callable[..., Config]) -> None:
    config = small()
    plan = make_protocol_job(config, "walk-forward")
    assert plan.panel.n_bars == prepare(config).split.validation_end
    assert plan.windows[-1].stop == plan.panel.n_bars


def test_a_finished_training_is_kept_until_configuration_or_code_change(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_protocol_job(small(), "walk-forward")
    fold = plan.folds[0]
    path = train_fold(plan, fold, 0)
    with monkeypatch.context() as patch:
        patch.setattr(trainings, "FinFlowTrainer", lambda *given, **named: pytest.fail("trained again"))
        assert train_fold(plan, fold, 0) == path
        judged_otherwise = make_protocol_job(small(evaluation__bootstrap_samples=150), "walk-forward")
        assert train_fold(judged_otherwise, fold, 0) == path
    monkeypatch.setattr(trainings, "code_hash", lambda: "other")
    assert train_fold(plan, fold, 0) != path


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(small: Callable[..., Config], tmp_path: Path) -> None:
    whole, cut = (
        make_protocol_job(small(output__logs_dir=str(tmp_path / name)), "walk-forward") for name in ("a", "b")
    )
    fold = whole.folds[0]
    request_stop()
    with pytest.raises(KeyboardInterrupt):
        train_fold(cut, fold, 0)
    note = json.loads((cut.fold_training(fold, 0).folder / "training.json").read_text())
    assert not note["finished"]
    went_on = train_fold(cut, fold, 0)
    assert went_on.parent.parent.name == note["run"]
    latest = (
        read_checkpoint(CheckpointFolder(path.parent.parent / MODELS).path(LATEST))
        for path in (went_on, train_fold(whole, fold, 0))
    )
    assert same_bits(*latest)


def test_a_dry_run_says_what_would_run_and_leaves_nothing(
    small: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(dump_config(small()))
    before = sorted(tmp_path.rglob("*"))
    command = ["--mode", "evaluate", "--protocol", "cpcv", "--config", str(config), "--seeds", "3", "--dry-run"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "18 trainings; to run: fold 1, seed 0; fold 2, seed 0; " in said  # 6 choices of 2 of 4 groups
    changed = said.splitlines()[-1].removeprefix("configuration: the defaults, except ").split(", ")
    assert {"market.source", "evaluation.protocol.groups", "evaluation.protocol.seeds"} <= set(changed)
    assert "bcell.gamma" not in changed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_protocol_reports_windows_paths_and_their_spread(
    small: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(dump_config(small(evaluation__protocol__groups=3, **SHORTER)))
    command = ["--mode", "evaluate", "--protocol", "cpcv", "--config", str(config), "--seeds", "2"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "fold 3, seed 1 (6 of 6)" in said
    assert "There is no verdict on a combinatorial path" in said  # nobody could have traded a combinatorial path
    (folder,) = (tmp_path / "logs" / "protocols").iterdir()
    content = json.loads((folder / "reports" / "metrics.json").read_text())
    found = content["protocol"]
    assert len(found["windows"]) == 12  # 3 folds of 2 windows, 2 seeds
    assert len(found["paths"]) == 4  # 2 ways through the folds for each seed
    assert found["improvement"]["trainings_of_a_window"] == 4
    spread = found["of_paths"]["sharpe"]
    assert spread["low"] <= spread["interval_low"] <= spread["interquartile_mean"] <= spread["interval_high"]
    shown = found["paths"][str(found["shown_path"])]
    assert shown["sharpe"] == content["strategies"]["finflow"]["sharpe"]
    page = (folder / "reports" / "report.html").read_text()
    cells = re.findall(r'data-path="protocol/([^"]+)" data-value="([^"]+)"', page)
    assert len(cells) > 100
    for path, value in cells:
        number = look_up(found, tuple(path.split("/")))
        assert value == ("null" if np.isnan(number) else repr(number))
    paths = pd.read_csv(folder / "reports" / "paths.csv", index_col="date")
    growth = (1.0 + paths["path 1"]).prod() ** (252 / len(paths)) - 1.0
    assert growth == pytest.approx(found["paths"]["1"]["annual_return"], rel=1e-9)
    assert not list(tmp_path.rglob("readings.jsonl"))  # nobody read the test window
    assert max(paths.index) <= "2014-06-30"


def test_a_walk_forward_has_a_verdict_on_all_its_years(
    small: Callable[..., Config],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fits_schema: Callable[[object], list[str]],
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(dump_config(small(**SHORTER)))
    command = ["--mode", "evaluate", "--protocol", "walk-forward", "--config", str(config), "--seeds", "2"]
    assert main(command) == 0
    assert "the mean of the 2 seeds, none of which was chosen, beats equal weight: " in capsys.readouterr().out
    (folder,) = (tmp_path / "logs" / "protocols").iterdir()
    content = json.loads((folder / "reports" / "metrics.json").read_text())
    paths = pd.read_csv(folder / "reports" / "paths.csv", index_col="date")
    found = content["walk_forward"]
    assert (found["windows"], found["seeds"]) == (2, 2)
    mean = paths[["path 1", "path 2"]].mean(axis=1)
    active = mean - paths["equal-weight"]
    expected = active.mean() / active.std() * 252**0.5
    assert found["verdict"]["active_sharpe"] == pytest.approx(expected, rel=1e-9)
    assert fits_schema(content) == []
    assert found["verdict"]["days"] == content["window"]["days"] == len(paths)
    page = (folder / "reports" / "report.html").read_text("utf-8")  # the ledger has readings of the test window alone
    assert f"The judged days, {paths.index[0]} to {paths.index[-1]}, lie before the test window: how often they" in page
    assert "read the test window" not in page
    assert not (tmp_path / "logs" / "readings.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offline__decisions": ["mine.csv"]}, r"leave offline\.decisions out"),
        ({"env__episode_length": 500}, r"fold \d, seed 0 cannot be trained: no segment of the \d+ bars"),
    ],
)
def test_what_cannot_be_trained_is_told(small: Callable[..., Config], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FinflowError, match=words):
        make_protocol_job(small(**changes), "cpcv")


EMBEDDED_BARS = 6550  # before the test window of the embedded market


@pytest.mark.parametrize("protocol", get_args(Protocol))
@pytest.mark.parametrize("purge", [None, 0, 100])
def test_a_training_sees_no_bar_that_it_is_judged_on(protocol: Protocol, purge: int | None) -> None:
    for fold in folds_of(protocol, EMBEDDED_BARS, ProtocolConfig(purge=purge)):
        for test in fold.tests:
            assert not any(set(piece) & set(test) for piece in fold.pieces)


def test_walk_forward_judges_the_bars_after_the_first_share_once_and_learns_only_from_the_past() -> None:
    """A checkpoint is chosen by the last of the bars that are seen."""
    folds = folds_of("walk-forward", EMBEDDED_BARS, ProtocolConfig(validation_share=0.1))
    judged = [bar for fold in folds for test in fold.tests for bar in test]
    assert judged == list(range(judged[0], EMBEDDED_BARS))
    assert EMBEDDED_BARS / 2 - 5 <= judged[0] - HISTORY <= EMBEDDED_BARS / 2 + 5
    for fold in folds:
        assert fold.pieces == (range(0, fold.tests[0].start - HISTORY),)
        assert fold.validation == int(0.1 * len(fold.pieces[0]))


def test_the_paths_of_purged_folds_each_judge_every_bar_once() -> None:
    folds = folds_of("cpcv", EMBEDDED_BARS, ProtocolConfig())
    assert len(folds) == len(list(combinations(range(6), 2))) == 15
    paths: dict[int, list[int]] = {}
    for fold in folds:
        for test, path in zip(fold.tests, fold.paths, strict=True):
            paths.setdefault(path, []).extend(test)
    assert len(paths) == 5
    assert all(sorted(bars) == list(range(EMBEDDED_BARS)) for bars in paths.values())


def test_after_a_judged_window_come_the_embargo_and_then_bars_that_are_history_alone() -> None:
    """Between two judged windows 1091 bars apart: 252 are purged before the second, 21 are held out after the first."""
    fold = folds_of("cpcv", EMBEDDED_BARS, ProtocolConfig())[1]
    first, second = fold.tests
    assert (fold.number, first.start) == (2, 0)
    assert fold.pieces[0] == range(first.stop + 21, second.start - HISTORY)
    without = folds_of("cpcv", EMBEDDED_BARS, ProtocolConfig(purge=0, embargo=0))[1]
    assert without.pieces[0] == range(first.stop, second.start)


@pytest.mark.parametrize(
    ("protocol", "bars", "groups", "words"),
    [
        ("walk-forward", 500, 6, "500 bars before the test window are too few for 5 folds"),
        ("walk-forward", 520, 6, "520 bars"),
        ("cpcv", 1600, 6, "6 groups of the 1600 bars before the test window have 266 bars each"),
        ("cpcv", 1522, 3, "fold 2 of the cpcv protocol has too few bars"),
    ],
)
def test_too_few_bars_are_told(protocol: Protocol, bars: int, groups: int, words: str) -> None:
    with pytest.raises(MarketError, match=words):
        folds_of(protocol, bars, ProtocolConfig(groups=groups))
