"""Reading checkpoints back: as a configuration, as a policy, as an agent with the market to evaluate it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Generator, Tensor
from torch.nn import Module

from finflow.agent.learners.bcell import BCell, stored_settings
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import deployed_policy, load_members
from finflow.config import Config, config_hash, describe_schema, flatten, load_config
from finflow.config.yaml_text import parse_file, parse_scalar
from finflow.errors import CheckpointError, ConfigError
from finflow.guard.checkpoint_folder import BEST
from finflow.guard.state_capture import SEPARATOR, without_prefix
from finflow.market.features.feature_set import Features
from finflow.tensor_file import TensorFile, read_file
from finflow.training.checkpoints.checked_facts import checked_facts
from finflow.training.checkpoints.run_folder import CONFIG, STUDY, Kind, resolve_run, run_folder_of
from finflow.training.data.training_data import TrainingData, choose_device, prepare

OFFLINE, ONLINE = "offline", "online"  # phases of a training, as checkpoints and logs name them
FREE_SECTIONS = ("market.", "env.", "acting.", "evaluation.", "trading.", "output.", "train.device", "train.threads")
"""Keys that an evaluation may change."""
PREFERENCES = "preferences"
"""Fact of the file of an agent that learned from preferences: what it learned from."""
POLICY_PARTS = (("bcell", "average"), ("bcell", "policy"), ("learner", "policy"))
LEARNED = ("learner" + SEPARATOR, "bcell" + SEPARATOR)


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    ``facts``: ``training``, ``config``, ``config_hash``, ``market``, ``shape``, ``features``, ``log``, ``runtime``; in
    the present format, whichever the file has.
    """

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    warning: str | None
    version: int

    @property
    def run_folder(self) -> Path:
        return run_folder_of(self.path)

    @property
    def counters(self) -> dict[str, Any]:
        """Counters of the training: phase, updates, steps, and the best score so far."""
        return dict(self.facts["training"]["counters"])


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file, or the latest whole one of a run folder.

    Raises CheckpointError if it is damaged, of a newer format, no checkpoint of a training, or holds weights that are
    not finite.
    """
    file_path, file, warning = read_newest(path)
    facts = checked_facts(file_path, file.state)
    for name, tensor in file.tensors.items():
        if name.startswith(LEARNED) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{file_path} holds NaN or an infinity in {name}: learning had failed there; use an earlier checkpoint"
            )
    return Checkpoint(file_path, file.tensors, facts, warning, file.version)


def read_best(path: Path) -> Checkpoint:
    """Read the checkpoint to evaluate: the file given, or of a run folder its best by validation, else its latest.

    Raises CheckpointError: as `read_checkpoint`.
    """
    best = resolve_run(path).checkpoints.path(BEST)
    return read_checkpoint(best if path.is_dir() and best.is_file() else path)


def read_newest(path: Path) -> tuple[Path, TensorFile, str | None]:
    """Read a checkpoint; of a run folder the latest, or, if that is damaged, the newest whole one before it.

    Raises CheckpointError if none can be read; for a file, if that file cannot.
    """
    saved = resolve_run(path)
    first = saved.find_checkpoint()
    if saved.kind is Kind.CHECKPOINT:
        return first, read_file(first), None
    problem = ""
    for candidate in dict.fromkeys([first, *saved.checkpoints.numbered()]):
        try:
            file = read_file(candidate)
        except CheckpointError as error:
            problem = problem or str(error).rsplit("; ", 1)[0]  # without the advice to use another one
        else:
            warning = f"{problem}; using the newest intact one, {candidate.stem}" if problem else None
            return candidate, file, warning
    raise CheckpointError(
        f"no checkpoint in {first.parent} can be read: {problem}; start a new run, or use the finflow that wrote it"
    )


def configuration_of(path: Path) -> Config:
    """The resolved configuration that results were made with, its folders as they have them.

    The path is that of a checkpoint file, or of the folder of a run, a job or a study.
    """
    saved = resolve_run(path)
    if saved.kind is Kind.JOB:
        return load_config(path.joinpath(*saved.universes[:1]) / CONFIG, {}, environ={})
    if saved.kind is Kind.STUDY:
        return load_config(path / STUDY, environ={})
    return stored_config(read_checkpoint(path))


def stored_config(checkpoint: Checkpoint, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration in a checkpoint, with overrides on top; environment variables are not read.

    A checkpoint holds all keys that decide results; folders are read from the ``config.yaml`` of its run, if that is
    still there.
    """
    try:
        nested = parse_scalar(checkpoint.facts["config"])
        if not isinstance(nested, Mapping):
            raise ConfigError("it is not a mapping of keys")
        stored = flatten(nested)
        load_config(None, stored, environ={})
    except (yaml.YAMLError, RecursionError, ValueError, TypeError):
        raise CheckpointError(f"{checkpoint.path} holds a configuration that cannot be read; use another one") from None
    except ConfigError as error:
        problem = f"this finflow does not know ({str(error).replace(' (command line)', '')})"
        advice = "use the finflow that wrote it, or start a new run"
        raise CheckpointError(f"{checkpoint.path} holds a configuration that {problem}; {advice}") from None
    written = checkpoint.run_folder / CONFIG
    if written.is_file():
        content, _ = parse_file(written)
        known = [key for key, *_ in describe_schema() if key.startswith("output.")]
        stored |= {key: value for key, value in flatten(content).items() if key in known}
    return load_config(None, {**stored, **(overrides or {})}, environ={})


def check_same_configuration(checkpoint: Checkpoint, config: Config) -> None:
    """Check that a training is resumed with its configuration.

    Raises CheckpointError if ``config`` differs in anything that decides results.
    """
    if config_hash(stored_config(checkpoint)) != config_hash(config):  # keys that are new have their defaults
        raise CheckpointError(
            f"{checkpoint.path} was trained with another configuration; a resumed run keeps its own: start a new run, "
            "or leave the changes out"
        )


def check_same_features(checkpoint: Checkpoint, features: Features) -> None:
    """As `check_feature_names`, of a checkpoint."""
    check_feature_names(checkpoint.path, checkpoint.facts.get("features"), features)


def policy_of(checkpoint: Checkpoint, device: torch.device) -> ExpertPolicy:
    """The policy in a checkpoint of either phase: the average, where the online phase keeps one.

    Raises CheckpointError if there is none that fits.
    """
    shape = NetworkShape.from_facts(checkpoint.facts["shape"])
    largest = max((tensor.numel() for tensor in checkpoint.tensors.values()), default=0)
    if max(shape.hidden, shape.n_asset_features, shape.n_market_features) > largest:
        raise CheckpointError(f"{checkpoint.path} holds no policy of the sizes that it says")
    try:
        config = stored_settings(checkpoint.facts.get("bcell", {}))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} does not say how its agent is configured; use another one") from error
    policy = make_policy(shape, config, Generator()).to(device)
    if problem := _load(policy, without_prefix(checkpoint.tensors, policy_part(checkpoint))):
        advice = f"does not fit this finflow ({problem}); use the one that wrote it"
        raise CheckpointError(f"the policy in {checkpoint.path} {advice}")
    try:
        members = load_members(policy, _tensors_of(checkpoint, "bcell", "members"))
        blend = Blend.from_tensor(checkpoint.tensors.get(f"bcell{SEPARATOR}blend"))
        return deployed_policy(policy, members, blend)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"the agent in {checkpoint.path} cannot be used: {error}") from error


def policy_part(checkpoint: Checkpoint) -> str:
    """Beginning of the names of the policy's tensors: of the average, where the online phase keeps one.

    Raises CheckpointError if it holds no policy.
    """
    for owner, part in POLICY_PARTS:
        if _tensors_of(checkpoint, owner, part):
            return SEPARATOR.join((owner, part, ""))
    raise CheckpointError(f"{checkpoint.path} holds no policy")


def _tensors_of(checkpoint: Checkpoint, owner: str, part: str) -> dict[str, Tensor]:
    return without_prefix(checkpoint.tensors, SEPARATOR.join((owner, part, "")))


def _load(network: Module, tensors: dict[str, Tensor]) -> str | None:
    try:
        network.load_state_dict(tensors)
    except (RuntimeError, ValueError, TypeError) as error:
        return " ".join(str(error).split())[:160]
    return None


def carry_over(checkpoint: Checkpoint, bcell: BCell) -> None:
    """Load the networks of a checkpoint of either phase into an agent: policy, critics, targets, V_mu.

    Of a policy and its average it is the average, which is what was validated there.

    Raises CheckpointError if a network is missing or does not fit.
    """
    learner = "bcell" if checkpoint.counters["phase"] == ONLINE else "learner"
    value = "behaviour_value" if learner == "bcell" else "value"
    parts = {"policy": "policy", "critic": "critic", "target_critic": "target_critic", "behaviour_value": value}
    if _tensors_of(checkpoint, "bcell", "average"):
        parts["policy"] = "average"
    for name, saved_name in parts.items():
        if problem := _load(getattr(bcell, name), _tensors_of(checkpoint, learner, saved_name)):
            raise CheckpointError(
                f"the {name} in {checkpoint.path} does not fit the configuration ({problem}); leave "
                "bcell.n_quantiles and bcell.hidden_dim as they were"
            )
    bcell.begin()


class LoadedAgent(NamedTuple):
    """A checkpoint, the training data of its configuration, and the device that it runs on."""

    checkpoint: Checkpoint
    training_data: TrainingData
    device: torch.device


def load_agent(path: Path, overrides: Mapping[str, object]) -> LoadedAgent:
    """Read a checkpoint and prepare its market.

    ``overrides``: keys on top of the checkpoint's own configuration; only those of the market, the environment, the
    evaluation and the output may differ.
    """
    check_free(overrides)
    checkpoint = read_best(path)
    config = stored_config(checkpoint, overrides)
    torch.set_num_threads(config.train.threads)
    training_data = prepare(config)
    check_same_features(checkpoint, training_data.features)
    return LoadedAgent(checkpoint, training_data, choose_device(config.train.device))


def check_free(overrides: Mapping[str, object]) -> None:
    """Refuse what an evaluation cannot change: a ConfigError."""
    fixed = [key for key in overrides if not key.startswith(FREE_SECTIONS)]
    if fixed:
        raise ConfigError(f"{fixed[0]} belongs to training and cannot change for an evaluation; leave it out")


def feature_names(features: Features) -> dict[str, list[str]]:
    return {"assets": list(features.asset_names), "market": list(features.market_names)}


def check_feature_names(path: Path, trained: Mapping[str, Sequence[str]] | None, features: Features) -> None:
    """An agent reads the features that it was trained on, by name and in their order; not all markets give the same.

    Raises CheckpointError if the file does not say its features, or a market's are others.
    """
    if trained is None:
        raise CheckpointError(
            f"{path} does not say which features it reads; use the finflow that wrote it, or start a new run"
        )
    for kind, names in feature_names(features).items():
        known = list(trained[kind])
        if names == known:
            continue
        lacking = ", ".join(name for name in known if name not in names)
        more = ", ".join(name for name in names if name not in known)
        differences = [f"lacks {lacking}"] * bool(lacking) + [f"has {more} beside"] * bool(more)
        raise CheckpointError(
            f"{path} was trained on other features: this market "
            f"{' and '.join(differences) or 'has them in another order'}; use prices with the same fields (open, high, "
            "low, volume) and the same features.extra and features.filters"
        )
