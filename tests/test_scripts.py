"""The scripts: a few lines each over the functions of the command line, and the page made from the schema."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finflow.cli import analysis, configuration, runs
from finflow.cli.exit_status import run_safely
from finflow.config import Config, load_config

SCRIPTS = Path(__file__).parents[1] / "scripts"


class Calls(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Notes how a function was called."""

    def __call__(self, *values: Any, **named: Any) -> None:
        self.append((values, named))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(runs, "run_training", calls)
    return calls


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(analysis, "run_evaluation", calls)
    return calls


def called(name: str, *arguments: str) -> int:
    """Exit status of a script's main function."""
    return run_safely(runpy.run_path(str(SCRIPTS / name))["main"], arguments)


def test_train_runs_both_phases(trainings: Calls) -> None:
    assert called("train.py", "--config", "configs/default.yaml", "--mode", "full", "--seed", "2") == 0
    assert trainings == [((load_config(None, {"train.seed": 2}, {}),), {"resume": None, "recollect": False})]


def test_several_agents_belong_to_both_phases(trainings: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("train.py", "--mode", "offline", "--seeds", "3") == 2
    assert "belong to --mode full, not to offline" in capsys.readouterr().err
    assert trainings == []


def test_train_stops_after_the_offline_phase(trainings: Calls) -> None:
    assert called("train.py", "--mode", "offline") == 0
    assert trainings[0][1]["offline_only"]


def test_train_goes_online_from_a_pretrained_file_with_its_configuration(
    trainings: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = load_config(None, {"bcell.hidden_dim": 64}, {})
    monkeypatch.setattr(configuration, "checkpoint_configuration", lambda path: stored)
    assert called("train.py", "--mode", "online", "--pretrained", "a.safetensors", "--sac-episodes", "5") == 0
    ((config,), named) = trainings[0]
    assert (config.bcell.hidden_dim, config.train.online_episodes) == (64, 5)
    assert named == {"pretrained": Path("a.safetensors"), "recollect": False, "offline_only": False}


@pytest.mark.parametrize(
    "arguments", [["--mode", "online"], ["--mode", "full", "--pretrained", "a.safetensors"], ["--mode", "ofline"]]
)
def test_train_refuses_what_does_not_fit_together(
    arguments: list[str], trainings: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("train.py", *arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert trainings == []


def test_train_counts_and_trains_nothing_with_dry_run(
    trainings: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = Calls()
    monkeypatch.setattr(runs, "_several", lambda given, make: counted(given.dry_run, len(make())))
    assert called("train.py", "--dry-run") == 0
    assert [values for values, _ in counted] == [(True, 1)]
    assert called("train.py", "--mode", "offline", "--dry-run") == 2
    assert "--dry-run belongs to --mode full, not to offline" in capsys.readouterr().err
    assert trainings == []


def test_train_needs_a_pretrained_file_that_is_there(capsys: pytest.CaptureFixture[str], trainings: Calls) -> None:
    assert called("train.py", "--mode", "online", "--pretrained", "none.safetensors") == 2
    assert "none.safetensors does not exist" in capsys.readouterr().err


def test_a_ranking_is_trained_on_by_ppo(trainings: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that users were promised; 3 passes of 16 portfolios through the training years of the defaults."""
    monkeypatch.setenv("WANDB_PROJECT", "another")
    options = ["--reward_type", "ndcg", "--k", "10", "--batch_size", "16", "--mini_batch_size", "4"]
    options += ["--ppo_epochs", "4", "--num_epochs", "3", "--max_steps", "10000", "--learning_rate", "1e-5"]
    options += ["--checkpoint_dir", str(tmp_path), "--temperature", "0.5", "--top_p", "0.8"]
    assert called("train_ranking.py", *options, "--log_with", "tensorboard", "--project_name", "mine") == 0
    assert os.environ["WANDB_PROJECT"] == "mine"
    ((config,), named) = trainings[0]
    assert (config.objectives.reward, config.objectives.ranking.type, config.objectives.ranking.k) == (
        ("ranking", "ndcg", 10)
    )
    online = config.online
    assert (online.algorithm, online.portfolios, online.epochs, online.learning_rate) == ("ppo", 16, 4, 1e-5)
    assert online.rollout == 4 * online.minibatch == 16 * 21
    assert config.output.logs_dir == tmp_path
    assert (config.acting.temperature, config.acting.top_p) == (0.5, 0.8)
    bars = config.train.online_episodes * config.env.episode_length / (3 * 16)
    assert 5000 < bars < 6000  # of the embedded training years, 1990 to 2011
    assert named == {"resume": None, "recollect": False}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--reward_type", "ndgc"], "did you mean ndcg"),
        (["--k", "0"], "needs a whole number of at least 1, not '0'"),
        (["--mini_batch_size", "32"], "--mini_batch_size 32 is more than --batch_size 16"),
        (["--learning_rate", "2"], "online.learning_rate = 2"),
        (["--top_p", "1.5"], "acting.top_p = 1.5"),
        (["--temperature", "cold"], "acting.temperature = 'cold'"),
    ],
)
def test_a_wrong_option_of_a_ranking_is_named(
    options: list[str], words: str, trainings: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("train_ranking.py", *options) == 2
    assert words in capsys.readouterr().err
    assert trainings == []


def test_pretrain_collects_as_many_episodes_as_asked_for_into_the_file_named(trainings: Calls) -> None:
    assert called("pretrain_iql.py", "--collect-episodes", "12", "--save-path", "a/set.npz") == 0
    ((config,), named) = trainings[0]
    assert config == load_config(None, {"train.offline_episodes": 12}, {})
    assert named == {"dataset": Path("a/set.npz"), "recollect": False, "offline_only": True}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--collect-episodes", "none"], "train.offline_episodes = 'none'"),
        (["--save-path", "set.csv"], "must end in .npz"),
    ],
)
def test_pretrain_names_the_mistake(
    arguments: list[str], words: str, trainings: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("pretrain_iql.py", *arguments) == 2
    assert words in capsys.readouterr().err
    assert trainings == []


def test_evaluate_lists_equal_weight_or_every_strategy_beside_the_agent(evaluations: Calls) -> None:
    assert called("evaluate.py", "--checkpoint", "a.safetensors") == 0
    assert called("evaluate.py", "--checkpoint", "a.safetensors", "--with-backtest") == 0
    assert [values[1] for values, _ in evaluations] == [[Path("a.safetensors")]] * 2
    assert [values[2] for values, _ in evaluations] == [["equal-weight"], None]
    assert [named for _, named in evaluations] == [{"with_backtest": False}, {"with_backtest": True}]


def test_evaluate_takes_a_protocol_with_a_checkpoint_or_without(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(runs, "run_protocol", calls)
    assert called("evaluate.py", "--protocol", "cpcv", "--dry-run") == 0
    assert called("evaluate.py", "--protocol", "walk-forward", "--checkpoint", "a.safetensors") == 0
    assert [values[1:] for values, _ in calls] == [
        ("cpcv", None, True),
        ("walk-forward", Path("a.safetensors"), False),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--protocol", "walk-foward"], "did you mean walk-forward?"),
        (["--protocol", "cpcv", "--with-backtest"], "--with-backtest belongs to a holdout evaluation"),
        (["--dry-run", "--checkpoint", "a.safetensors"], "--dry-run belongs to --protocol"),
    ],
)
def test_evaluate_refuses_what_does_not_fit_a_protocol(
    arguments: list[str], words: str, evaluations: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("evaluate.py", *arguments) == 2
    assert words in capsys.readouterr().err
    assert evaluations == []


def test_evaluate_needs_a_checkpoint(evaluations: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("evaluate.py") == 2
    assert "--checkpoint is missing" in capsys.readouterr().err
    assert evaluations == []


@pytest.mark.parametrize(
    "name", ["train.py", "pretrain_iql.py", "evaluate.py", "dataset.py", "make_docs.py", "tune.py"]
)
def test_a_script_runs_as_a_program(name: str) -> None:
    command = [sys.executable, str(SCRIPTS / name)]
    root = SCRIPTS.parent
    helped = subprocess.run([*command, "--help"], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert f"scripts/{name}" in helped.stdout
    wrong = subprocess.run([*command, "--wrong"], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: unknown argument --wrong")


def test_the_page_of_keys_is_that_of_the_schema() -> None:
    made = runpy.run_path(str(SCRIPTS / "make_docs.py"))
    page: Path = made["PAGE"]
    assert page.read_text("utf-8") == made["configuration_page"](), "run python scripts/make_docs.py"


def test_the_page_of_keys_has_every_section() -> None:
    page = (SCRIPTS.parent / "docs" / "reference" / "configuration.md").read_text("utf-8")
    for section in Config.model_fields:
        assert f"\n## {section}: " in page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "0"], "0 is no whole number of at least 1"),
        (["--sb3-python", "/nowhere/python"], "there is no /nowhere/python; name the interpreter that has the peers"),
    ],
)
def test_evidence_refuses_at_once_what_would_fail_after_hours(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts.evidence", "optimality", *given])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("scripts.evidence", run_name="__main__")
    assert capsys.readouterr().err.rstrip().endswith(said)
