"""Every path of saved results is told from the others, with its folder, its checkpoints and its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finflow.config import dump_config, load_config
from finflow.errors import CheckpointError
from finflow.training.checkpoints.checkpoint_reader import configuration_of
from finflow.training.checkpoints.run_folder import CONFIG, JOB, NOTE, STUDY, Kind, resolve_run

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


def test_a_study_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text(dump_config(SEEDED))
    assert resolve_run(tmp_path).kind is Kind.STUDY
    assert configuration_of(tmp_path) == SEEDED


def test_a_path_without_results_or_with_a_damaged_note_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist: name a run folder"):
        resolve_run(tmp_path / "none")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        resolve_run(tmp_path).find_checkpoint()
    (tmp_path / JOB).write_text("[1]")
    with pytest.raises(CheckpointError, match=r"job\.json cannot be read; start a new job"):
        resolve_run(tmp_path).find_agents()
