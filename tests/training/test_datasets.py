"""Saved behaviour data are reused, refused with a reason, or collected anew; and travel to Minari and back."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from finflow.cli.exit_status import run_safely
from finflow.config import dump_config
from finflow.errors import FinflowError
from finflow.training.data import training_data as datasets
from finflow.training.data.training_data import offline_data, prepare
from scripts.dataset import export_dataset, import_dataset
from tests.commands import refusal
from tests.training.whole_trainings import Make

SCRIPTS = Path(__file__).parents[2] / "scripts"


def called(name: str, *arguments: str) -> int:
    return run_safely(runpy.run_path(str(SCRIPTS / name))["main"], arguments)


def test_a_file_is_collected_once_and_reused_then(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, path = tiny(), tmp_path / "new" / "set.npz"
    training_data = prepare(config)
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
