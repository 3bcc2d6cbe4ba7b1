"""Cost of an update with bfloat16 products and recomputed layers: `python scripts/benchmark.py precision`.

The default networks, 20 assets, batches of 256, 30 proposals, one thread; each option in turn, in rounds. Time is the
processor's. Memory is what the critics keep for their backward pass, the encoding and the proposals included.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from benchmark_tools import seconds_of, spread, use_one_thread

from finflow.agent.batch import Batch, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig

BATCH, ASSETS, FEATURES, MARKET = 256, 20, 24, 12
UPDATES = 6  # of each option in a round
OPTIONS: dict[str, dict[str, bool]] = {
    "as it is": {},
    "mixed precision": {"mixed_precision": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "both": {"mixed_precision": True, "gradient_checkpointing": True},
}
LENSES = tuple(tuple(range(first, FEATURES - 1, 5)) for first in range(5))


def _portfolios(*shape: int, noise: torch.Generator) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, ASSETS + 1, generator=noise), dim=-1)


def random_batch(noise: torch.Generator) -> Batch:
    """Random transitions of the usual sizes."""
    assets = torch.randn(2 * BATCH, ASSETS, FEATURES, generator=noise)
    assets[..., -1] = 1.0
    held = torch.cat([_portfolios(2 * BATCH, noise=noise), torch.zeros(2 * BATCH, 3)], dim=-1)
    both = States(assets, torch.randn(2 * BATCH, MARKET, generator=noise), held, complete=True)
    numbers = torch.randn(3, BATCH, generator=noise)
    zeros = torch.zeros(BATCH)
    families = torch.zeros(BATCH, dtype=torch.int64)
    actions = _portfolios(BATCH, noise=noise)
    return Batch(both, actions, numbers[0], zeros, actions, families, numbers[1], numbers[2])


def kept_memory(agent: BCell, batch: Batch, proposals: torch.Tensor) -> int:
    """Bytes that the critics keep for their backward pass."""
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        torch.autocast("cpu", torch.bfloat16, enabled=agent.config.mixed_precision),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        encoding = agent.critic.encode(batch.states)
        valuation = agent.critic.value(encoding, batch.states, proposals)
    for part in (*encoding, proposals):
        note(part)
    del valuation
    return sum(kept.values())


def benchmark_precision(given: argparse.Namespace) -> None:
    """Measure and print."""
    use_one_thread()
    noise = torch.Generator().manual_seed(0)
    batch, config = random_batch(noise), BCellConfig()
    coverage = CoverageProposals(
        _portfolios(BATCH, config.cql_samples, noise=noise), torch.full((BATCH, config.cql_samples), 42.3)
    )
    proposals = _portfolios(BATCH, 1 + 3 * config.cql_samples, noise=noise)
    shape = NetworkShape(FEATURES, MARKET, config.hidden_dim, LENSES)
    agents: dict[str, BCell] = {}
    times: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for name, options in OPTIONS.items():
        chosen = config.model_copy(update=options)
        agents[name] = BCell(shape, chosen, torch.Generator().manual_seed(1), torch.device("cpu"))
        agents[name].update_sac(batch, coverage, noise, 0)

    def train(agent: BCell) -> None:
        for update in range(UPDATES):
            agent.update_sac(batch, coverage, noise, update)

    for _ in range(given.rounds):
        for name, agent in agents.items():
            times[name].append(1000.0 * seconds_of(partial(train, agent)).processor / UPDATES)
    usual = statistics.median(times["as it is"])
    for name, agent in agents.items():
        memory = kept_memory(agent, batch, proposals) / 2**20
        share = statistics.median(times[name]) / usual
        print(
            f"{name:>24}: {spread(times[name], '.1f')} ms an update, {share:.2f} of the time, "
            f"{memory:6.1f} MiB kept by the critics"
        )
