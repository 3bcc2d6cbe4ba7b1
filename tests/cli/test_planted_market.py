"""The demo on a planted market, as a person runs and reads it, much smaller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finflow.cli import main
from finflow.experiments.jobs.planted_market import _score
from tests.short_trainings import SHORT, SHORT_MARKET

SMALL = {key: value for key, value in {**SHORT, **SHORT_MARKET}.items() if key != "market.source"}
SMALL |= {"market.validation_end": "2022-06-30"}  # a score is of a test window of half a year


def test_two_markets_are_trained_in_side_by_side_and_said_by_their_own_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [word for key, value in SMALL.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    assert main(["--mode", "demo", "--market", "planted", *options, "--set", "output.logs_dir=runs"]) == 0
    shown = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").glob("2*")
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"picture: {folder.relative_to(tmp_path) / 'demo.png'}" in shown
    for market, kind in (("planted", "mean-reverting"), ("null", "exchangeable")):
        (report,) = folder.glob(f"{market}/*/reports/report.html")
        assert f"report: {report.relative_to(tmp_path)}" in shown
        numbers = json.loads(report.with_name("metrics.json").read_text("utf-8"))
        (line,) = (one for one in shown.splitlines() if one.startswith(f"{market} market: ") and ". Trades" in one)
        score = numbers["optimum"]["scores"]["finflow"]["score"]
        assert (f"score {score:.2f} of 1" if market == "planted" else "not tested") in line
        assert "Trades its own policy. Its largest holdings" in line  # blocks are off in a training so short
        assert f"kind: {kind}" in (report.parents[1] / "config.yaml").read_text("utf-8")
        assert any((report.parents[1] / "models").iterdir())
    assert len((tmp_path / "runs" / "readings.jsonl").read_text("utf-8").splitlines()) >= 2
    assert len(list((tmp_path / "data" / "offline").glob("*.npz"))) == 2


@pytest.mark.parametrize(("confidence", "said"), [(0.0, "nothing was found"), (0.4, "something was found")])
def test_a_null_market_is_said_to_hold_what_was_recorded(tmp_path: Path, confidence: float, said: str) -> None:
    """A best policy that leads by less than 1 % a year gives no score: it is luck, or costs of rebalancing."""
    window = {"optimum": 0.000667, "baseline": 0.000664, "baseline_name": "buy-and-hold"}
    optimum = {"scores": {"finflow": {"score": 0.3}}, "window": window}
    numbers = {"agent": "finflow", "optimum": optimum, "out_of_fold": {"confidence": confidence}}
    (tmp_path / "metrics.json").write_text(json.dumps(numbers))
    assert _score(tmp_path / "report.html") == said


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({"FINFLOW_MARKET__SOURCE": "embedded"}, [], "leave FINFLOW_MARKET__... out"),
        ({}, ["--set", "market.synthetic.persistence=0.5"], "leave market.synthetic.persistence out"),
        ({}, ["--set", "env.max_weight=0.4"], "env.max_weight"),
    ],
    ids=["market from the environment", "key of one market", "no optimum"],
)
def test_what_leaves_no_score_is_refused_before_any_training(
    environment: dict[str, str],
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["--mode", "demo", "--market", "planted", *options]))
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))
