"""What docs/architecture.md says of extending finflow: a stranger changes the files it names, and no others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TASKS = (
    *("a cost model", "a feature", "a strategy", "a critic loss", "an online algorithm", "a price source"),
    *("a report section", "a guard signal", "a broker", "a tuning objective"),
)


def files_of(task: str) -> list[str]:
    """Files that the page names for a task."""
    row = next(line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| {task} |"))
    return re.findall(r"`(finflow/[\w/]+\.py)`", row)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_names_three_files_at_most(task: str) -> None:
    assert 1 <= len(files_of(task)) <= 3
    assert all((ROOT / file).is_file() for file in files_of(task))


#: Task -> (text in one of its files, what stands before that text afterwards).
CHANGES: dict[str, list[tuple[str, str]]] = {
    "a cost model": [
        (
            "class SumOfCosts(CostModel):",
            '''@dataclass(frozen=True)
class StampDuty(CostModel):
    """A tax on purchases alone."""

    rate: float

    def by_asset(self, trades: Any, wealth: Any, market: MarketState | None = None) -> Any:
        return self.rate * array_namespace(trades).clip(trades, 0.0)


''',
        ),
        ("    return SumOfCosts(models)\n", "    models.append(StampDuty(extra.stamp_duty_bps * BASIS_POINT))\n"),
        ("    impact: Number = key(0.0", '    stamp_duty_bps: Number = key(0.0, "tax on purchases", ge=0)\n'),
    ],
    "a feature": [
        (
            "    # Sum of r over 5 bars",
            '    AssetFeature("half_return", ("momentum",), lambda v, _: 0.5 * v.returns),\n',
        )
    ],
    "a strategy": [
        (
            "class SixtyForty:",
            '''class FirstAsset:
    """All in the first listed asset."""

    name = "first-asset"

    def decide(self, information: Information) -> FloatArray:
        chosen = np.zeros(len(information.portfolio))
        chosen[np.argmax(information.listed)] = 1.0
        return chosen


''',
        ),
        ('    "sixty-forty": lambda config', '    "first-asset": lambda config: FirstAsset(),\n'),
    ],
}
USED = """
import numpy as np
from finflow.cli import main
from finflow.config import load_config
from finflow.ledger.costs import costs_of
from finflow.training.data.training_data import prepare

keys = {"market.source": "synthetic", "market.synthetic.bars": 1000, "market.train_end": "2021-12-31",
        "market.validation_end": "2022-06-30", "env.costs.stamp_duty_bps": 50, "features.filters": "none"}
config = load_config(None, keys)
cost = costs_of(config.env).share(np.array([[0.2, -0.1]]), np.array([1.0]))
assert abs(cost[0] - (0.3 * 15e-4 + 0.2 * 50e-4)) < 1e-15, cost
data = prepare(config)
assert "half_return" in data.features.asset_names
options = [word for name, value in keys.items() for word in ("--set", f"{name}={value}")]
backtest = ["--mode", "backtest", "--strategy", "first-asset", "--set", "evaluation.sweeps=false"]
raise SystemExit(main([*backtest, *options]))
"""


def test_a_cost_model_a_feature_and_a_strategy_work_once_their_files_are_changed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "finflow", tmp_path / "finflow", ignore=shutil.ignore_patterns("__pycache__"))
    for task, changes in CHANGES.items():
        for text, before in changes:
            places = [tmp_path / file for file in files_of(task)]
            (place,) = [path for path in places if text in path.read_text("utf-8")]
            place.write_text(place.read_text("utf-8").replace(text, before + text, 1), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USED],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "first-asset" in done.stdout
