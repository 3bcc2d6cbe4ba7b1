"""Results of trained agents and strategies: evaluation, backtest, audit, inspection, explanation, comparison."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finflow.cli.configuration import evaluation_overrides
from finflow.cli.options import explicit
from finflow.cli.output import plain, show_audit, show_outcome, show_report
from finflow.errors import CheckpointError, FinflowError
from finflow.provenance import short_hash

if TYPE_CHECKING:
    from finflow.config import Config

#: Keys that an evaluation may change without changing its figures.
_NOT_DECIDING = (
    *("output.", "trading.", "train.", "market.cache_dir", "market.use_cache", "market.extend_cache"),
    "env.episode_length",
)


def run_evaluation(
    arguments: argparse.Namespace,
    paths: Sequence[Path],
    only: Sequence[str] | None = None,
    with_backtest: bool = False,
) -> None:
    """Evaluate a trained agent, or several that act as one, on the test window, and show the outcome.

    Several agents trade the mean of their portfolios; the folder of a job stands for all of its agents. The report goes
    into the run's folder; that of a changed market or environment into a folder of its own there. ``only`` names the
    strategies to list; ``with_backtest`` runs sweeps and stress periods whatever `evaluation.sweeps` is.
    """
    first = paths[0]
    overrides = evaluation_overrides(arguments, first)
    elsewhere = explicit(arguments).get("output.logs_dir")
    from finflow.training.judging.agent_strategy import load_agents
    from finflow.training.judging.evaluations import evaluate_agents

    agents, part = load_agents(paths, overrides), _part(overrides)
    folder = agents.folder
    if elsewhere is not None:
        folder = Path(str(elsewhere)) / folder.relative_to(folder.parent if len(paths) == 1 else folder.parents[1])
    if part is not None:  # else the agents' own folder, whose report no other evaluation may replace
        folder = folder / part
    outcome = evaluate_agents(agents, folder, with_backtest)
    show_outcome(outcome, only)


def backtest_named(config: Config, names: Sequence[str]) -> None:
    """Backtest named strategies on the test window, the first as the evaluated one, and show the outcome."""
    sys.path.append(str(Path.cwd()))  # a user's own strategy lies where the user is
    from finflow.training.judging.evaluations import backtest_strategies

    show_outcome(backtest_strategies(config, names))


def run_audit(config: Config, strategies: Sequence[str], checkpoint: Path | None) -> None:
    """Audit a configuration, with a user's strategies and an agent if given; FinflowError if one looks ahead."""
    sys.path.append(str(Path.cwd()))  # a user's own strategy or feature lies where the user is
    from finflow.training.audit.configuration_audit import audit_configuration

    outcome = audit_configuration(config, strategies, checkpoint)
    show_audit(outcome.findings)
    if outcome.complaint is not None:
        raise FinflowError(outcome.complaint)


def run_inspection(path: Path) -> None:
    """Show the contents of a run's checkpoints; raises a CheckpointError that names those that are not whole."""
    from finflow.training.checkpoints.checkpoint_reader import inspect_checkpoints

    inspections = inspect_checkpoints(path)
    print("\n".join(line for inspection in inspections for line in inspection.lines))
    bad = [inspection.path.name for inspection in inspections if inspection.complaint is not None]
    if bad:
        others = "use another one" if len(bad) < len(inspections) else "start a new run"
        raise CheckpointError(
            f"{len(bad)} of {len(inspections)} checkpoints cannot be used: {', '.join(bad)}; {others}"
        )


def run_explanation(arguments: argparse.Namespace, checkpoint: Path, dates: Sequence[str], output: Path | None) -> None:
    """Print why an agent traded on some dates; `output` is a JSON file to write."""
    overrides = evaluation_overrides(arguments, checkpoint)
    from finflow.evaluation.analysis.attribution import decisions_section
    from finflow.evaluation.page.page_numbers import json_text
    from finflow.files import write_atomically
    from finflow.training.judging.evaluations import explain_dates

    explanations = explain_dates(checkpoint, overrides, dates)
    if output is not None:
        write_atomically(output, json_text(dict(explanations)))
    shown = decisions_section(explanations)
    print("\n".join(shown.text({shown.key: shown.numbers})))
    if output is not None:
        print(f"written to {output}")


def run_comparison(runs: Sequence[Path], output: Path | None) -> None:
    """Write the page that compares runs, by default in `comparisons/` next to the first, and print where it is."""
    from finflow.experiments.jobs.run_comparison import compare_runs

    page, lines = compare_runs(runs, output)
    print("\n".join(lines))
    show_report(page)


def _part(overrides: Mapping[str, object]) -> Path | None:
    """Subfolder for an evaluation under other conditions; None under the same."""
    deciding = {key: plain(value) for key, value in sorted(overrides.items()) if not key.startswith(_NOT_DECIDING)}
    return Path("evaluations") / short_hash(json.dumps(deciding)) if deciding else None
