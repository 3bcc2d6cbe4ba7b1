"""Saved behaviour data are reused, refused or collected anew, and travel; environments of a configuration."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finflow
from finflow.cli.exit_status import run_safely
from finflow.config import dump_config
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError, FinflowError
from finflow.offline.dataset import OfflineDataset
from finflow.training.data import training_data as datasets
from finflow.training.data.training_data import offline_data, prepare
from scripts.dataset import export_dataset, import_dataset
from tests.commands import refusal
from tests.training.whole_trainings import Make

SCRIPTS = Path(__file__).parents[2] / "scripts"


def called(name: str, *arguments: str) -> int:
    return run_safely(runpy.run_path(str(SCRIPTS / name))["main"], arguments)


def test_a_file_is_collected_once_and_reused_then(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder stays from its check on: another process may be about to write into it."""
    config, path, honest = tiny(), tmp_path / "new" / "set.npz", datasets.collect
    training_data = prepare(config)

    def collect(*given: Any) -> OfflineDataset:
        assert path.parent.is_dir()
        return honest(*given)

    monkeypatch.setattr(datasets, "collect", collect)
    first = offline_data(config, training_data, path)
    monkeypatch.setattr(datasets, "collect", lambda *_: pytest.fail("collected again"))
    second = offline_data(config, training_data, path)
    assert (first.reused, second.reused) == (False, True)
    assert second.dataset.meta == first.dataset.meta
    assert "collected: " in first.lines()[0]
    assert "reused: " in second.lines()[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"env__commission_bps": 33.0}, "costs and execution.*--recollect"),
        ({"market__train_end": "2011-05-31"}, "training window.*--recollect"),
        ({}, "not a complete finflow dataset"),
    ],
)
def test_a_file_of_other_data_or_a_damaged_one_is_refused_and_collected_anew_on_request(
    tiny: Make, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    path, config, other = tmp_path / "set.npz", tiny(), tiny(**change)
    offline_data(config, prepare(config), path)
    before = path.read_bytes()
    if not change:
        path.write_bytes(before[:1000])
    left, training_data = path.read_bytes(), prepare(other)
    with pytest.raises(FinflowError, match=named):
        offline_data(other, training_data, path)
    assert path.read_bytes() == left
    if change:
        with pytest.raises(FinflowError, match=named.partition(".")[0]):
            export_dataset(other, path, "mine-v0", tmp_path / "minari", full=True)  # shows another market
        assert not (tmp_path / "minari").exists()
    anew = offline_data(other, training_data, path, recollect=True)
    assert not anew.reused
    assert offline_data(other, training_data, path).reused
    assert json.loads(path.with_suffix(".json").read_text())["made_by"] == anew.dataset.meta["made_by"]


def test_pretraining_shows_the_card_reuses_the_file_and_refuses_another(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], quick_reports: None
) -> None:
    config = tiny(offline__evaluation_updates=0)
    (tmp_path / "tiny.yaml").write_text(dump_config(config), encoding="utf-8")
    path = tmp_path / "data" / "set.npz"
    arguments = ["--config", str(tmp_path / "tiny.yaml"), "--save-path", str(path), "--collect-episodes", "8"]
    assert called("pretrain_iql.py", *arguments) == 0
    first = capsys.readouterr().out
    assert "in 8 episodes, collected: " in first
    assert [line for line in first.splitlines() if line.startswith("coverage ")]
    assert called("pretrain_iql.py", *arguments) == 0
    assert "in 8 episodes, reused: " in capsys.readouterr().out
    runs = sorted((tmp_path / "logs").glob("[0-9]*"))
    assert len(runs) == 2
    for run in runs:
        assert (run / "dataset.json").read_bytes() == path.with_suffix(".json").read_bytes()
        assert "coverage " in (run / "console.log").read_text()
        assert "Behaviour data" in (run / "reports" / "report.html").read_text()
    said = refusal(capsys, *arguments, "--seed", "9", command=lambda given: called("pretrain_iql.py", *given))
    assert said.startswith("error: ")
    assert "other seed; " in said
    assert called("pretrain_iql.py", *arguments, "--seed", "9", "--recollect", "--iql-epochs", "0") == 0
    assert "collected: " in capsys.readouterr().out


def test_a_dataset_travels_to_minari_and_back(tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, path, back = tiny(), tmp_path / "set.npz", tmp_path / "back.npz"
    offline_data(config, prepare(config), path)
    (tmp_path / "tiny.yaml").write_text(dump_config(config), encoding="utf-8")
    common = ["--folder", str(tmp_path / "minari"), "--config", str(tmp_path / "tiny.yaml")]
    assert called("dataset.py", "export", str(path), "--minari", "mine-v0", *common) == 0
    assert "exported" in capsys.readouterr().out
    assert called("dataset.py", "import", str(back), "--minari", "mine-v0", *common) == 0
    assert "imported" in capsys.readouterr().out
    assert offline_data(config, prepare(config), back).reused
    assert back.with_suffix(".json").read_bytes() == path.with_suffix(".json").read_bytes()
    assert called("dataset.py", "show", str(back)) == 0
    assert "full data card: " in capsys.readouterr().out
    export_dataset(config, path, "small-v0", tmp_path / "minari", full=False)
    mine, without = (tmp_path / "minari" / name / "data" / "main_data.hdf5" for name in ("mine-v0", "small-v0"))
    assert without.stat().st_size < mine.stat().st_size
    with pytest.raises(FinflowError, match="is there already"):
        import_dataset(back, "mine-v0", tmp_path / "minari")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shw", "a.npz"], "did you mean show?"),
        (["export", "a.npz"], "need --minari NAME"),
        (["show", "a.npz", "--minari", "a-v0"], "show takes no --minari"),
        (["import", "a.npz", "--minari", "a-v0", "--observations", "full"], "belongs to export"),
        (["show"], "name the FILE"),
        (["show", "a.json"], "must end in .npz"),
        (["show", "none.npz"], "there is no dataset"),
        (["import", "none.npz", "--minari", "none"], "not the name of a Minari dataset"),
        (["import", "none.npz", "--minari", "none-v0", "--folder", "nowhere"], "there is no Minari dataset"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refusal(capsys, *arguments, command=lambda given: called("dataset.py", *given))


# --- the environment of a configuration in one line


def length_of(env: PortfolioEnv) -> tuple[int, int]:
    """First bar of an episode, and its decisions until it is truncated."""
    env.reset(seed=0)
    first, count = int(env._portfolios.state.bar[0]), 0
    over = False
    while not over:
        *_, over, _ = env.step(env.action_space.low + 0.2)
        count += 1
    return first, count


def test_training_episodes_begin_anywhere_in_the_training_window(tiny: Make) -> None:
    config = tiny(env__episode_length=15)
    split = prepare(config).split
    env = finflow.make_env(config)
    assert isinstance(env, PortfolioEnv)
    assert length_of(env)[1] == 15
    many = finflow.make_env(config, num_envs=300)
    assert isinstance(many, PortfolioVectorEnv)
    many.reset(seed=0)
    assert len(np.unique(many.state.bar)) > 50
    assert many.state.bar.max() + 15 < split.train_end
    assert (many.state.weights[:, -1] == 1.0).all()
    mixed = finflow.make_env(config, num_envs=300, random_portfolios=True)
    mixed.reset(seed=0)
    assert 0.02 < mixed.state.weights[:, -1].mean() < 0.5


def test_validation_is_played_once_from_its_first_bar_to_its_last(tiny: Make) -> None:
    config = tiny(market__train_end="2011-09-30")  # a month, longer than an episode
    split = prepare(config).split
    first, count = length_of(finflow.make_env(config, "validation"))
    assert (first, first + count) == (split.validation.start, split.validation.stop - 1)
    assert length_of(finflow.make_env(config, "validation", whole_window=False))[1] == config.env.episode_length
    train = finflow.make_env(config, whole_window=True)
    assert sum(length_of(train)) == split.train.stop - 1


def test_the_test_window_is_read_on_request_alone(tiny: Make) -> None:
    """Without that there are no prices after validation."""
    config = tiny()
    split = prepare(config).split
    for name in ("train", "validation"):
        assert finflow.make_env(config, name, num_envs=1).process.panel.n_bars == split.validation_end
    with pytest.raises(ConfigError, match="final_evaluation=True"):
        finflow.make_env(config, split="test", num_envs=4)
    with pytest.raises(ConfigError, match="train, validation, test"):
        finflow.make_env(config, "testing")
    first, count = length_of(finflow.make_env(config, "test", final_evaluation=True))
    assert (first, first + count) == (split.test.start, split.test.stop - 1)


def test_a_file_or_nothing_at_all_is_a_configuration_too(tiny: Make, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(dump_config(tiny(env__max_weight=0.5, env__execution_lag=2)), "utf-8")
    for given in (path, str(path)):
        process = finflow.make_env(given, num_envs=2).process
        assert (process.lag, process.limits.max_weight) == (2, 0.5)
    assert finflow.make_env().action_space.shape == (21,)  # 20 stocks of the embedded market, and cash
