"""Saved results: every path is told from the others, a crafted state is one line, and inspection shows a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finflow.cli import main
from finflow.config import dump_config, load_config
from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import capture
from finflow.tensor_file import VERSION, read_tensors, write_tensors
from finflow.training import trainer
from finflow.training.checkpoints import run_folder as code
from finflow.training.checkpoints.checkpoint_reader import configuration_of, read_checkpoint
from finflow.training.checkpoints.run_folder import CONFIG, JOB, NOTE, STUDY, Kind, resolve_run
from finflow.training.trainer import FinFlowTrainer
from tests.commands import refusal
from tests.training.whole_trainings import Make, train_through

CPU = torch.device("cpu")
LATEST = Path("run/models/checkpoint_latest.safetensors")


@pytest.fixture(scope="module")
def trained(shared: Make) -> Path:
    """The run folder of a training that reached its end."""
    return train_through(shared()).run_folder


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Path:
    """The working folder, with a copy of the run, of which the latest checkpoint is the only one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    for path in (tmp_path / "run" / "models").iterdir():
        if path.stem != "checkpoint_latest":
            path.unlink()
    return tmp_path


def test_a_resume_says_which_code_and_libraries_are_others() -> None:
    before = code.runtime(CPU)
    assert code.changed(before, dict(before)) is None
    assert code.changed({"torch": before["torch"]}, before) is None  # what was not recorded is not compared
    said = code.changed({**before, "code": "0123", "threads": "7"}, before)
    assert said is not None
    assert f"code was 0123, is {before['code']}; threads was 7, is {before['threads']}" in said
    assert "\n" not in said


# --- crafted states, each under a hash that is right


def state_of(facts: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = facts["training"]
    return state


def learner_of(facts: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = state_of(facts)["learners"]["learners"][0]
    return own


Craft = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]
CRAFTED: dict[str, Craft] = {
    "facts that are a word": lambda _, facts: facts.update(training="x"),
    "no counters": lambda _, facts: state_of(facts).pop("counters"),
    "a negative update": lambda _, facts: state_of(facts)["counters"].update(update=-1),
    "a phase of another name": lambda _, facts: state_of(facts)["counters"].update(phase="later"),
    "a counter too many": lambda _, facts: state_of(facts)["counters"].update(restore=1),
    "a configuration that is no YAML": lambda _, facts: facts.update(config="{" * 50),
    "a configuration as deep as the sea": lambda _, facts: facts.update(config="[" * 5000),
    "a shape without a width": lambda _, facts: facts["shape"].pop("hidden"),
    "an absurd width": lambda _, facts: facts["shape"].update(hidden=10**15),
    "another width": lambda _, facts: facts["shape"].update(hidden=4096, n_asset_features=9999),
    "lenses beyond the features": lambda _, facts: facts["shape"]["lenses"][0].append(10**9),
    "features that are numbers": lambda _, facts: facts["features"].update(assets=[1, 2]),
    "a negative place in the log": lambda _, facts: facts["log"].update({"metrics.jsonl": -5}),
    "a log that is a word": lambda _, facts: facts.update(log="x"),
    "prices that are a number": lambda _, facts: facts.update(market=3),
    "a learner that is a number": lambda _, facts: state_of(facts).update(bcell=5),
    "a generator of another kind": lambda _, facts: learner_of(facts)["portfolios"].update(
        generator={"bit_generator": "os"}
    ),
    "a generator without a state": lambda _, facts: learner_of(facts)["portfolios"]["generator"].update(state={}),
    **{
        f"a replay of {count}": lambda _, facts, count=count: learner_of(facts).update(written=count)
        for count in (-3, 10**40, 1.5, True)
    },
    "networks that are not numbers": lambda tensors, _: tensors["bcell/policy/gate.bias"].fill_(torch.nan),
    "bars of another market": lambda tensors, _: tensors["learners/0/portfolios/bar"].add_(10**6),
    "bars before the market": lambda tensors, _: tensors["learners/0/replay/bar"].sub_(10**6),
    "families that are not there": lambda tensors, _: tensors["learners/0/replay/family"].add_(100),
    "portfolios that are none": lambda tensors, _: tensors["learners/0/portfolios/weights"].mul_(3.0),
    "wealth below zero": lambda tensors, _: tensors["learners/0/portfolios/wealth"].mul_(-1.0),
    "as many portfolios as there are not": lambda tensors, _: tensors.update(
        {"learners/0/portfolios/bar": torch.zeros(9).long()}
    ),
    "a replay of another type": lambda tensors, _: tensors.update({"learners/0/replay/bar": torch.zeros(40)}),
    "a random state of another size": lambda tensors, _: tensors.update(noise=torch.zeros(7, dtype=torch.uint8)),
    "a random state of nothing": lambda tensors, _: tensors["noise"].fill_(255),
    "moments of another shape": lambda tensors, _: tensors.update({"bcell/critic_optimiser/0.exp_avg": torch.ones(3)}),
    "moments of a parameter that is not there": lambda tensors, _: tensors.update(
        {f"bcell/critic_optimiser/99.{key}": torch.ones(()) for key in ("step", "exp_avg", "exp_avg_sq")}
    ),
    "a tensor too many": lambda tensors, _: tensors.update(extra=torch.ones(1)),
    "a tensor too few": lambda tensors, _: tensors.pop("exploration"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_checkpoint_is_one_line_and_status_2(
    case: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real command line; training itself is not reached."""
    monkeypatch.setattr(trainer, "finetune", lambda *_: pytest.fail("it was trained on"))
    tensors, facts = read_tensors(LATEST)
    CRAFTED[case](tensors, facts)
    write_tensors(LATEST, tensors, facts)
    said = refusal(capsys, "--mode", "train", "--resume", "run")
    assert said.startswith("error: ")


def test_facts_deeper_than_json_itself_would_write_are_one_line(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = json.dumps
    tensors, facts = read_tensors(LATEST)
    text = real(facts)[:-1] + ', "deep": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with monkeypatch.context() as patch:
        patch.setattr("finflow.tensor_file.json.dumps", lambda value, **_: text if value is facts else real(value))
        write_tensors(LATEST, tensors, facts)
    assert "nested too deeply" in refusal(capsys, "--mode", "train", "--resume", "run")


def test_the_cases_above_are_crafted_from_one_that_is_taken(desk: Path) -> None:
    """Otherwise they would be refused for another reason."""
    checkpoint = read_checkpoint(LATEST)
    write_tensors(LATEST, checkpoint.tensors, checkpoint.facts)
    resumed = FinFlowTrainer(configuration_of(desk / "run"), resume=desk / "run")
    tensors, facts = capture(resumed._begin().state)
    given = read_checkpoint(LATEST)
    kept = given.facts["training"].keys() - {"watch", "counters"}  # the best checkpoint is not in the folder
    assert {name: facts[name] for name in kept} == {name: given.facts["training"][name] for name in kept}
    assert facts.keys() == given.facts["training"].keys()
    assert tensors.keys() == given.tensors.keys()


# --- inspection


def test_inspect_shows_what_is_held(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters, reports = read_checkpoint(desk / "run").counters, desk / "run" / "reports"
    reports.mkdir(exist_ok=True)
    (reports / "metrics.json").write_text('{"verdict": {"beats_equal_weight": "no"}}')
    for given in (["run"], ["run/models/checkpoint_latest.safetensors"], ["--resume", "run"]):
        assert main(["--mode", "inspect", *given]) == 0
        shown = capsys.readouterr().out
        for words in (
            "checkpoint_latest.safetensors: intact, SHA-256 verified",
            f"format {VERSION}",
            f"online phase, update {counters['update']} ({counters['phase_update']} of the phase)",
            "best by validation: ",
            "bcell/policy ",
            "market: csv, 4 assets (A, B, C, D), 2009-06-01 to 2012-02-03",
            "verdict: beats equal weight: no (reports/report.html)",
            "  holds ",
        ):
            assert words in shown


def test_inspect_names_what_is_damaged_and_ends_with_status_2(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = desk / "run" / "models"
    content = (models / "checkpoint_latest.safetensors").read_bytes()
    (models / "checkpoint_best.safetensors").write_bytes(content[:-50])
    (models / "checkpoint_000000042.safetensors").write_bytes(content[:5000] + b"x" + content[5001:])
    assert main(["--mode", "inspect", "run"]) == 2
    captured = capsys.readouterr()
    assert "checkpoint_latest.safetensors: intact" in captured.out
    assert "checkpoint_best.safetensors: is damaged" in captured.out
    end = "2 of 3 checkpoints cannot be used: checkpoint_best.safetensors, checkpoint_000000042.safetensors"
    assert f"error: {end}; use another one\n" == captured.err


@pytest.mark.parametrize("given", [[], ["none"], ["run", "--resume", "run"], ["empty"]])
def test_inspect_needs_one_run_that_is_there(given: list[str], desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "empty").mkdir()
    refusal(capsys, "--mode", "inspect", *given)


SEEDED = load_config(None, {"train.seed": 7}, {})


def make_run(folder: Path, *names: str) -> Path:
    """A run folder with files of these names, which hold nothing."""
    (folder / "models").mkdir(parents=True)
    for name in names:
        (folder / "models" / f"{name}.safetensors").touch()
    return folder


def make_job(folder: Path, finished: int, seeds: int = 2) -> Path:
    """A job of so many seeds, the first of them finished."""
    folder.mkdir(parents=True)
    (folder / JOB).write_text(json.dumps({"seed": 3, "seeds": seeds}))
    (folder / CONFIG).write_text(dump_config(SEEDED))
    for seed in range(3, 3 + finished):
        make_run(folder / f"seed-{seed}" / "run", "checkpoint_best", "checkpoint_latest")
        (folder / f"seed-{seed}" / NOTE).write_text(json.dumps({"run": "run", "finished": True}))
    return folder


def test_a_run_its_models_and_a_checkpoint_have_one_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "checkpoint_best", "checkpoint_latest", "checkpoint_000000005")
    earlier = run / "models" / "checkpoint_000000005.safetensors"
    found = [resolve_run(path) for path in (run, run / "models", earlier)]
    assert [one.kind for one in found] == [Kind.RUN, Kind.RUN, Kind.CHECKPOINT]
    assert {one.folder for one in found} == {run}
    assert [one.find_checkpoint().stem for one in found] == ["checkpoint_latest"] * 2 + ["checkpoint_000000005"]
    assert [one.find_checkpoint(best=True).stem for one in found] == ["checkpoint_best"] * 2 + ["checkpoint_000000005"]
    assert [one.find_agents() for one in found] == [[run], [run / "models"], [earlier]]
    loose = tmp_path / "loose.safetensors"
    loose.touch()
    assert resolve_run(loose).folder == tmp_path


def test_a_job_has_an_agent_of_every_seed_once_all_are_finished(tmp_path: Path) -> None:
    job = resolve_run(make_job(tmp_path / "job", finished=2))
    assert (job.kind, job.universes) == (Kind.JOB, [])
    assert [path.parts[-4:-2] for path in job.find_agents()] == [("seed-3", "run"), ("seed-4", "run")]
    assert configuration_of(job.path) == SEEDED
    with pytest.raises(CheckpointError, match="has 1 of 2 agents; make the others with --mode train --resume"):
        resolve_run(make_job(tmp_path / "half", finished=1)).find_agents()


def test_a_job_in_several_universes_names_them(tmp_path: Path) -> None:
    make_job(tmp_path / "sweep" / "north", finished=0)
    (tmp_path / "sweep" / JOB).write_text(json.dumps({"universes": ["north", "south"]}))
    sweep = resolve_run(tmp_path / "sweep")
    assert sweep.universes == ["north", "south"]
    assert configuration_of(sweep.path) == SEEDED
    with pytest.raises(CheckpointError, match=r"holds 2 universes: name one of them, as .*north"):
        sweep.find_agents()


def test_a_study_is_told_by_its_file_and_a_path_without_results_or_with_a_damaged_note_is_one_line(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="does not exist: name a run folder"):
        resolve_run(tmp_path / "none")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        resolve_run(tmp_path).find_checkpoint()
    (tmp_path / STUDY).write_text(dump_config(SEEDED))
    assert resolve_run(tmp_path).kind is Kind.STUDY
    assert configuration_of(tmp_path) == SEEDED
    (tmp_path / JOB).write_text("[1]")
    with pytest.raises(CheckpointError, match=r"job\.json cannot be read; start a new job"):
        resolve_run(tmp_path).find_agents()
