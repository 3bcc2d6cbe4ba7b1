"""The scripts: a few lines each over the functions of the command line, and the page made from the schema."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finflow.cli import options, runs, trained_agents
from finflow.cli.exit_status import run_safely
from finflow.config import load_config
from finflow.errors import ConfigError
from finflow.training.judging.agent_strategy import AGENT
from tests.commands import refusal
from tests.short_trainings import SHORT

SCRIPTS = Path(__file__).parents[1] / "scripts"
MEMORY_IS_SEEN = Path("/proc/self/smaps_rollup").exists()


class Calls(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Notes how a function was called."""

    def __call__(self, *values: Any, **named: Any) -> None:
        self.append((values, named))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(runs, "run_training", calls)
    monkeypatch.setattr(trained_agents, "run_evaluation", calls)
    return calls


def called(name: str, *arguments: str) -> int:
    """Exit status of a script's main function."""
    return run_safely(runpy.run_path(str(SCRIPTS / name))["main"], arguments)


def test_train_runs_both_phases_or_stops_after_the_first(trainings: Calls) -> None:
    assert called("train.py", "--config", "configs/default.yaml", "--mode", "full", "--seed", "2") == 0
    assert trainings == [((load_config(None, {"train.seed": 2}, {}),), {"resume": None, "recollect": False})]
    assert called("train.py", "--mode", "offline") == 0
    assert trainings[1][1]["offline_only"]


def test_train_goes_online_from_a_pretrained_file_with_its_configuration(
    trainings: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = load_config(None, {"bcell.hidden_dim": 64}, {})
    monkeypatch.setattr(options, "checkpoint_configuration", lambda path: stored)
    assert called("train.py", "--mode", "online", "--pretrained", "a.safetensors", "--sac-episodes", "5") == 0
    ((config,), named) = trainings[0]
    assert (config.bcell.hidden_dim, config.train.online_episodes) == (64, 5)
    assert named == {"pretrained": Path("a.safetensors"), "recollect": False, "offline_only": False}


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("train.py", ["--mode", "online"], "error: "),
        ("train.py", ["--mode", "full", "--pretrained", "a.safetensors"], "error: "),
        ("train.py", ["--mode", "online", "--pretrained", "none.safetensors"], "none.safetensors does not exist"),
        ("train.py", ["--mode", "offline", "--dry-run"], "--dry-run belongs to --mode full, not to offline"),
        ("pretrain_iql.py", ["--collect-episodes", "none"], "train.offline_episodes = 'none'"),
        ("pretrain_iql.py", ["--save-path", "set.csv"], "must end in .npz"),
        ("evaluate.py", [], "--checkpoint is missing"),
        ("evaluate.py", ["--protocol", "walk-foward"], "did you mean walk-forward?"),
        ("evaluate.py", ["--protocol", "cpcv", "--with-backtest"], "--with-backtest belongs to a holdout evaluation"),
        ("evaluate.py", ["--dry-run", "--checkpoint", "a.safetensors"], "--dry-run belongs to --protocol"),
        ("train_ranking.py", ["--reward_type", "ndgc"], "did you mean ndcg"),
        ("train_ranking.py", ["--k", "0"], "'0' must be a whole number, 1 or more"),
        ("train_ranking.py", ["--mini_batch_size", "32"], "--mini_batch_size 32 is more than --batch_size 16"),
        ("train_ranking.py", ["--top_p", "1.5"], "acting.top_p = 1.5"),
        ("train_ranking.py", ["--model_name", "gpt2"], "model_name belongs to text models, and assets are ranked here"),
        ("train_ranking.py", ["--max_length=9"], "an episode has env.episode_length decisions"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_runs(
    script: str, arguments: list[str], words: str, trainings: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *arguments, command=lambda given: called(script, *given))
    assert said.startswith("error: ")
    assert words in said
    assert trainings == []


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


def test_pretrain_collects_as_many_episodes_as_asked_for_into_the_file_named(trainings: Calls) -> None:
    assert called("pretrain_iql.py", "--collect-episodes", "12", "--save-path", "a/set.npz") == 0
    ((config,), named) = trainings[0]
    assert config == load_config(None, {"train.offline_episodes": 12}, {})
    assert named == {"dataset": Path("a/set.npz"), "recollect": False, "offline_only": True}


def test_evaluate_lists_equal_weight_or_every_strategy_or_takes_a_protocol(
    trainings: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called("evaluate.py", "--checkpoint", "a.safetensors") == 0
    assert called("evaluate.py", "--checkpoint", "a.safetensors", "--with-backtest") == 0
    first, second = trainings
    assert (first[0][1:], first[1]) == (([Path("a.safetensors")], ["equal-weight"]), {"with_backtest": False})
    assert (second[0][1:], second[1]) == (([Path("a.safetensors")], None), {"with_backtest": True})
    protocols = Calls()
    monkeypatch.setattr(runs, "run_protocol", protocols)
    assert called("evaluate.py", "--protocol", "cpcv", "--dry-run") == 0
    assert called("evaluate.py", "--protocol", "walk-forward", "--checkpoint", "a.safetensors") == 0
    assert [(values[0].protocol, *values[1:]) for values, _ in protocols] == [
        ("cpcv", None),
        ("walk-forward", Path("a.safetensors")),
    ]


@pytest.mark.parametrize(
    "name", ["train.py", "pretrain_iql.py", "evaluate.py", "dataset.py", "make_docs.py", "tune.py"]
)
def test_a_script_runs_as_a_program(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(SCRIPTS / name), "--help"]
    helped = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True, timeout=60, check=False)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert f"scripts/{name}" in helped.stdout
    assert called(name, "--wrong") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: unknown argument --wrong")


def test_the_page_of_keys_is_that_of_the_schema() -> None:
    made = runpy.run_path(str(SCRIPTS / "make_docs.py"))
    page: Path = made["PAGE"]
    assert page.read_text("utf-8") == made["configuration_page"](), "run python scripts/make_docs.py"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "0"], "'0' must be a whole number, 1 or more"),
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


def test_a_benchmark_takes_ratios_round_by_round_and_names_a_peer_that_cannot_be_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tools = runpy.run_path(str(SCRIPTS / "benchmark_tools.py"))
    rates = {"ours": [10.0, 40.0, 20.0], "theirs": [5.0, 10.0, 20.0]}  # the machine's speed drifts
    tools["print_ratio"](rates, "ours", "theirs", 1.5)
    assert capsys.readouterr().out == "ours / theirs: 2.00 (1.00 to 4.00), wanted at least 1.5\n"
    with pytest.raises(ConfigError, match="--peer-python nowhere/python cannot be run: No such file"):
        tools["Peer"]("nowhere/python", "--peer-python", "d3rlpy_updates.py", ("cql", 3, 1, 8))
    with pytest.raises(ConfigError, match=r"--peer-python: d3rlpy_updates\.py ended: ModuleNotFoundError: .*d3rlpy"):
        tools["Peer"](sys.executable, "--peer-python", "d3rlpy_updates.py", ("cql", 3, 1, 8))


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of `benchmark.py scale`, which its folder is searched for."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("benchmark_scale")


def test_the_page_of_scale_is_that_of_its_results(scale: Any) -> None:
    made = scale.page(scale.kept_results(scale.RESULTS))
    assert scale.PAGE.read_text("utf-8") == made, 'run python scripts/benchmark.py scale --row "20 x 10"'


def test_scale_projects_a_training_shows_refusals_and_tells_exponents(
    scale: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "WARM_UP", 40)
    monkeypatch.setattr(scale, "UPDATES", 2)
    monkeypatch.setattr("finflow.training.trainer.judge_agents", lambda *_: SimpleNamespace(summary={AGENT: {}}))
    tiny = {**SHORT, "train.updates_per_vector_step": 1}
    whole = load_config(None, tiny, {}, base=scale.configuration(tmp_path, 3, 4, 252, "B", "default"))
    assert scale.whole_calls(whole)[scale.UPDATE] == 5  # of 4 episodes of 20 decisions, 16 for an update
    found = scale.measured(whole)
    assert all(found[key] > 0.0 for key in scale.FIGURES if key != "memory" or MEMORY_IS_SEEN)
    quarterly = scale.measured(scale.configuration(tmp_path, 3, 60, 4, "BQE", "default"))
    assert "bars" in quarterly["refused"]
    larger = {**found, **{key: found[key] * 25.0 for key in scale.FIGURES}}
    text = scale.page({"20 x 10": found, "100 x 10": larger, "quarterly": quarterly})
    cells = " | ".join(str(found[key]) for key in scale.FIGURES)
    assert f"| 20 x 10 | 20 | 2,520 | {cells} | - |" in text
    assert f"| quarterly | 20 | 240 | {' | '.join('-' * 6)} | {quarterly['refused']} |" in text
    assert f"| 20 x 10 to 100 x 10 | {' | '.join(['2.0'] * 6)} |" in text


@pytest.mark.skipif(not MEMORY_IS_SEEN, reason="the benchmark reads /proc/PID/smaps_rollup")
@pytest.mark.parametrize(("own", "expected"), [(0, 0.134), (2**24, 0.268)])
def test_memory_that_processes_share_counts_once(own: int, expected: float, scale: Any) -> None:
    """Of this process and one that it forked: 134 MB that both have, and as much that the other has alone or not."""

    def wait(connection: Any) -> None:
        kept = np.ones(own)
        connection.send(len(kept))
        connection.recv()

    before, shared = scale.held(), np.ones(2**24)
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=wait, args=(there,))
    other.start()
    assert here.recv() == own
    held = scale.held() - before
    here.send(len(shared))
    other.join()
    assert held == pytest.approx(expected, abs=0.06)  # a process writes to some pages of its own
