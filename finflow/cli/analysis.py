"""What is shown of runs that are over: why one traded, and several side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from finflow.cli.configuration import evaluation_overrides


def run_explanation(
    arguments: argparse.Namespace, checkpoint: Path, dates: Sequence[str], changes: Sequence[str], output: Path | None
) -> None:
    """Print why an agent traded on some dates; with `output`, write it as JSON too.

    Parameters
    ----------
    arguments
        With the options of `add_configuration_options`.
    checkpoint
        A run folder or checkpoint file.
    dates
        Of the test window.
    changes
        `FEATURE=VALUE` or `ASSET:FEATURE=VALUE`, each tried alone.
    output
        A file, which is replaced.
    """
    overrides = evaluation_overrides(arguments, checkpoint)
    from finflow.evaluation.analysis.decision_explanation import as_numbers, lines
    from finflow.files import write_atomically
    from finflow.training.judging.explainer import asked_of, explain_dates

    found = explain_dates(checkpoint, overrides, dates, [asked_of(change) for change in changes])
    if output is not None:
        content = {one.date: as_numbers(one) for one in found}
        write_atomically(
            output, json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
        )
    print("\n\n".join("\n".join(lines(one)) for one in found))
    print("\nparts are shares of wealth, by integrated gradients from every feature at its training mean")
    if output is not None:
        print(f"written to {output}")


def run_comparison(runs: Sequence[Path], output: Path | None) -> None:
    """Write the page that sets runs side by side, and say where it is.

    Parameters
    ----------
    runs
        Folders with `reports/metrics.json`.
    output
        Folder of the report; `comparisons/` beside the first run when left out.
    """
    from finflow.experiments.jobs.run_comparison import compare_runs

    outcome = compare_runs(runs, output)
    print("\n".join(outcome.lines))
    print(f"report: {outcome.page}")
