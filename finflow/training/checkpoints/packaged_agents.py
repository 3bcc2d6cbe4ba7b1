"""Trained agents that are installed with finflow, by name; and how one is made from a run.

An agent is the folder of its run without what only learning needs: the deployed policy with its configuration, the data
that it learned from, and the verdict on it. `make agent RUN=logs/RUN NAME=sp500` makes one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from finflow.agent.learners.bcell import PREFIX
from finflow.agent.networks.decision import Blend
from finflow.errors import CheckpointError, ConfigError, FinflowError, refuse
from finflow.files import write_atomically
from finflow.guard.checkpoint_folder import BEST, MODELS, SUFFIX
from finflow.json_text import format_json, parse_json
from finflow.tensor_file import write_tensors
from finflow.training.checkpoints.checkpoint_reader import read_best
from finflow.training.checkpoints.run_folder import MANIFEST

AGENTS = Path(__file__).resolve().parents[2] / "agents"
METRICS = Path("reports") / "metrics.json"
KEPT = {Path(MANIFEST): "data", METRICS: "verdict"}  # parts of a run's files that an agent keeps
PARTS = ("policy/", "average/", "blend", "log_alpha")  # of an agent's tensors: those that decide


def packaged_agent(name: str) -> Path:
    """Folder of an agent that is installed with finflow; a ConfigError where there is none of that name."""
    known = sorted(path.name for path in AGENTS.iterdir() if path.is_dir())
    refuse(name not in known, f"--agent {name}: finflow has {', '.join(known)}; others follow --resume", ConfigError)
    return AGENTS / name


def is_packaged(path: Path) -> bool:
    return path.resolve().is_relative_to(AGENTS)


def package_agent(run: Path, folder: Path) -> None:
    """Write a run's agent, its best by validation, into a folder; a CheckpointError if the run was not evaluated."""
    checkpoint = read_best(run)
    try:
        kept = {file: {key: parse_json((run / file).read_text("utf-8"))[key]} for file, key in KEPT.items()}
    except (OSError, ValueError, LookupError, TypeError):
        raise CheckpointError(f"{run} has no {MANIFEST} or no report: give a run that was evaluated") from None
    blend = Blend.from_tensor(checkpoint.agent.tensors.get("blend"))
    # without confidence the blocks' policies decide nothing
    parts = PARTS if blend is not None and blend.confidence == 0.0 else (*PARTS, "members/")
    tensors = {f"{PREFIX}{name}": one for name, one in checkpoint.agent.tensors.items() if name.startswith(parts)}
    facts = {**checkpoint.facts, "training": {"counters": checkpoint.counters}}
    for file, content in kept.items():
        write_atomically(folder / file, format_json(content))
    write_tensors(folder / MODELS / f"{BEST}{SUFFIX}", tensors, facts)


if __name__ == "__main__":
    try:
        package_agent(Path(sys.argv[1]), AGENTS / sys.argv[2])
    except FinflowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
