"""The offline phase: passes of IQL over the behaviour's transitions."""

from __future__ import annotations

import torch

from finflow.config import TrainConfig
from finflow.offline.dataset import OfflineDataset
from finflow.training.replay import MarketTensors, Transitions, make_batch
from finflow.training.run import TrainingRun
from finflow.training.state import OFFLINE, seeded

ORDER_PURPOSE = 1000  # generators of epochs are numbered from here


def updates_per_epoch(train: TrainConfig, transitions: int) -> int:
    """Whole batches in a pass over the data; one where the data are fewer than a batch."""
    return max(transitions // train.offline_batch_size, 1)


def offline_updates(train: TrainConfig, transitions: int) -> int:
    """Updates of the offline phase."""
    return train.offline_training_epochs * updates_per_epoch(train, transitions)


def pretrain(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Train IQL to the end of the offline phase, from wherever the state stands.

    Parameters
    ----------
    run : TrainingRun
        Its state's ``iql`` is trained.
    dataset : OfflineDataset

    Returns
    -------
    dict
        The last update's losses (``v_loss``, ``q_loss``, ``policy_loss`` among others) and validation metrics.
    """
    train, counters, iql = run.config.train, run.state.counters, run.state.iql
    if iql is None:
        raise ValueError("the offline phase is over")
    store = Transitions.of(dataset, run.device)
    market = MarketTensors.of(run.materials.process, run.device)
    total, per_epoch = offline_updates(train, len(dataset)), updates_per_epoch(train, len(dataset))
    size = min(train.offline_batch_size, len(dataset))
    run.progress.start_phase(f"{OFFLINE} (IQL)", total, done=counters.phase_update)
    order: torch.Tensor | None = None
    result: dict[str, float] = {}
    while counters.phase_update < total:
        epoch, place = divmod(counters.phase_update, per_epoch)
        if order is None or place == 0:
            generator = seeded(train.seed, ORDER_PURPOSE + epoch)
            order = torch.randperm(len(dataset), generator=generator).to(run.device)
        rows = store.rows(order[place * size : (place + 1) * size])
        batch = make_batch(rows, market, dataset.reward_scale, run.state.noise, train.observation_noise)
        noise = run.state.noise if run.config.bcell.dropout > 0.0 else None
        metrics = iql.update(batch, counters.phase_update / total, noise)
        run.count_update(metrics, {"epoch": float(epoch)})
        last = counters.phase_update == total
        if last or counters.phase_update % train.validation_updates == 0:
            result = {**{name: float(value) for name, value in metrics.items()}, **run.validate(iql.policy)}
        if last or counters.phase_update % train.checkpoint_updates == 0:
            run.checkpoint()
        run.stop_if_asked()
    run.progress.end_phase()
    return result
