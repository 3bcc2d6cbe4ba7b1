"""Trained agents as strategies: one alone, each of its experts, and several that act as one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from finflow.agent.batch import states_of
from finflow.agent.networks.decision import MarketReading, acted_portfolio
from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.agent.networks.policy_ensemble import LEAST_SHARE, PolicyEnsemble
from finflow.arrays import FloatArray
from finflow.config import ActingConfig, Config
from finflow.env.decision_process import DecisionProcess
from finflow.errors import CheckpointError, ConfigError, FinflowError
from finflow.evaluation.analysis.expert_traits import ByState, ExpertTraits, expert_traits, gate_by_state
from finflow.market.features.market_features import TwoStates, crisis
from finflow.market.features.rolling_windows import PanelView
from finflow.strategies.strategy import Information, Memo, Strategy, memoised
from finflow.training.checkpoints.checkpoint_reader import FREE_SECTIONS, Checkpoint, read_best, stored_config
from finflow.training.checkpoints.packaged_agents import is_packaged
from finflow.training.checkpoints.run_folder import resolve_run
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import choose_device

AGENT = "finflow"
ROWS = 1024  # decisions computed at once
SHARED_SECTIONS = ("market", "features", "env", "objectives")
"""Sections that agents acting as one must have in common: they decide what is observed."""


class AgentStrategy:
    """Decides by the centre of a policy or a draw around it, and records what led to each decision.

    ``expert``: number of the expert whose portfolio is the aim, in place of the gate's mixture; the trade rate is the
    agent's. ``acting``: temperature and ``top_p`` of its decisions; the centre when left out. ``memo``: readings of the
    market made before by this policy, which must not learn meanwhile.
    """

    def __init__(
        self,
        policy: ExpertPolicy,
        device: torch.device,
        name: str = AGENT,
        expert: int | None = None,
        acting: ActingConfig | None = None,
        memo: Memo | None = None,
    ) -> None:
        self.policy, self.device, self.name = policy, device, name
        self.expert, self.acting, self.memo = expert, acting or ActingConfig(), memo
        self._reasons: defaultdict[str, list[FloatArray]] = defaultdict(list)

    def decide(self, information: Information) -> FloatArray:
        """The portfolio that is taken from the policy's distribution, (K,)."""
        if information.observation is None:
            raise ValueError("a learned agent needs the environment's observation")
        states = states_of(information.observation, self.device)
        market = [np.asarray(information.observation[name]) for name in ("assets", "market")]
        with torch.inference_mode():
            reading = memoised(self.memo, "reading", market, lambda: self.policy.read_market(states))
            if self.expert is not None:
                reading = reading.of_expert(self.expert)
            decision = self.policy.trade_toward(states, reading)
            chosen = acted_portfolio(decision.distribution, self.acting, information.date)[0]
        portfolio = np.array(information.observation["portfolio"], dtype=np.float64)
        count = len(information.portfolio)
        inputs = {"held": portfolio[:count], "reward_state": portfolio[count:]}
        reasons = {"gate": decision.gate[0], "experts": decision.experts[0], "trade_rate": decision.trade_rate[0, 0]}
        for name, value in {**{name: value.cpu().numpy() for name, value in reasons.items()}, **inputs}.items():
            self._reasons[name].append(value)
        weights = chosen.double().cpu().numpy()
        if not np.isfinite(weights).all():
            raise FinflowError(
                "the agent's decision is not a portfolio: its training had failed; use another checkpoint"
            )
        normalised: FloatArray = weights / weights.sum()
        return normalised

    def explanation(self) -> dict[str, FloatArray]:
        """Record of all decisions so far: gate (steps, 5), experts (steps, 5, K), trade rate (steps,); and of their
        inputs besides the market: the weights held (steps, K) and the state of the reward (steps, 3).

        In a blend the reference is a sixth expert.
        """
        return {name: np.stack(values, dtype=np.float64) for name, values in self._reasons.items()}


def experts_alone(agent: AgentStrategy) -> list[AgentStrategy]:
    """Each expert of an agent as a strategy of its own, moving at its trade rate.

    They act as the agent does, and share its readings of the market.
    """
    readings: Memo = {} if agent.memo is None else agent.memo
    return [
        AgentStrategy(agent.policy, agent.device, f"{name} expert", expert, agent.acting, readings)
        for expert, name in enumerate(EXPERTS)
    ]


class EnsembleStrategy:
    """Decides by the mean of what its members decide.

    Each member sees what the ensemble holds. A mean of portfolios is a portfolio.
    """

    def __init__(self, members: Sequence[Strategy]) -> None:
        self.members = tuple(members)
        self.name = f"ensemble of {len(self.members)}"

    def decide(self, information: Information) -> FloatArray:
        """The members' mean portfolio, (K,)."""
        mean = np.mean([member.decide(information) for member in self.members], axis=0)
        return np.asarray(mean, dtype=np.float64)


@dataclass(frozen=True)
class Agents:
    """Trained agents that decide as one, by the mean of their portfolios.

    ``config`` is that of the first with what was asked for on top; ``identity`` the SHA-256 of their networks, and of
    how they act where that is not by their centre; ``folder`` that of the run, the job or the ensemble.
    """

    checkpoints: tuple[Checkpoint, ...]
    policies: tuple[ExpertPolicy, ...]
    names: tuple[str, ...]
    identity: str
    config: Config
    device: torch.device
    folder: Path

    @classmethod
    def of(
        cls, checkpoints: Sequence[Checkpoint], config: Config, device: torch.device, folder: Path | None = None
    ) -> Agents:
        """Join the agents of checkpoints.

        Raises CheckpointError if one cannot be used, is there twice, or does not see what the others see.
        """
        check_alike(checkpoints)
        policies = tuple(checkpoint.agent.policy(device) for checkpoint in checkpoints)
        known: dict[str, Path] = {}
        for checkpoint, policy in zip(checkpoints, policies, strict=True):
            identity = policy_identity(policy, config.acting)
            if identity in known:  # it would count twice in the mean
                raise CheckpointError(
                    f"{checkpoint.path} is the same agent as {known[identity]}; leave one of them out"
                )
            known[identity] = checkpoint.path
        first, *others = known
        together = hashlib.sha256("\n".join(["ensemble", *sorted(known)]).encode()).hexdigest()
        seeds = [f"seed {stored_config(checkpoint).train.seed}" for checkpoint in checkpoints] if others else [AGENT]
        if len(set(seeds)) < len(seeds):
            seeds = [f"agent {number}" for number in range(1, len(seeds) + 1)]
        place = folder or checkpoints[0].run_folder
        return cls(tuple(checkpoints), policies, tuple(seeds), together if others else first, config, device, place)

    @property
    def alone(self) -> Checkpoint:
        """The checkpoint of the only agent; a ConfigError if there are several."""
        if len(self.checkpoints) > 1:
            raise ConfigError(f"{self.folder} holds {len(self.checkpoints)} agents: name the run folder of one of them")
        return self.checkpoints[0]

    def makers(self) -> dict[str, Callable[[], AgentStrategy]]:
        """Name -> makes the strategy of one of them, fresh."""
        return {
            name: partial(AgentStrategy, policy, self.device, name, acting=self.config.acting)
            for policy, name in zip(self.policies, self.names, strict=True)
        }

    def strategies(self) -> list[AgentStrategy | EnsembleStrategy]:
        """The one that decides, fresh, and of several agents each alone after it."""
        deciding, alone = ([make() for make in self.makers().values()] for _ in range(2))
        return [EnsembleStrategy(deciding), *alone] if len(deciding) > 1 else [*deciding]


def policy_identity(policy: ExpertPolicy, acting: ActingConfig | None = None) -> str:
    """SHA-256 of a policy's weights and blend: the same agent, wherever its checkpoint lies.

    One that acts otherwise than by its centre is another agent.
    """
    digest = hashlib.sha256(b"policy" if policy.blend is None else f"policy {policy.blend}".encode())
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if acting is not None and not acting.takes_centre:
        digest.update(acting.model_dump_json().encode())
    return digest.hexdigest()


def load_agents(
    paths: Sequence[Path], overrides: Mapping[str, object], device: Callable[[str], torch.device] = choose_device
) -> Agents:
    """Read the agents of checkpoint files, run folders, or the folder of a job, which stands for all of its agents.

    ``overrides``: keys on top of the first agent's configuration; those of training may not differ.

    Raises ConfigError or CheckpointError if an agent cannot be used, or does not see what the others see.
    """
    if fixed := [key for key in overrides if not key.startswith(FREE_SECTIONS)]:
        raise ConfigError(f"{fixed[0]} belongs to training and cannot change for an evaluation; leave it out")
    checkpoints = [read_best(agent) for path in paths for agent in resolve_run(path).find_agents()]
    config = stored_config(checkpoints[0], overrides)
    torch.set_num_threads(config.train.threads)
    folder = resolve_run(paths[0]).folder
    if is_packaged(folder):  # nothing is written into the package
        folder = Path(config.output.logs_dir) / folder.name
    agents = Agents.of(checkpoints, config, device(config.train.device), folder)
    return agents if len(paths) == 1 else replace(agents, folder=folder.parent / "ensembles" / agents.identity[:8])


def check_alike(checkpoints: Sequence[Checkpoint]) -> None:
    """Agents that act as one see the same market in the same way.

    Raises CheckpointError: naming the two that do not.
    """
    first, *others = checkpoints
    for other in others:
        for name in SHARED_SECTIONS:  # but for the number of processes that compute rewards, which decides nothing
            own, base = (getattr(stored_config(one), name).model_dump(exclude={"workers"}) for one in (other, first))
            if own != base:
                raise CheckpointError(
                    f"{other.path} was trained with another {name} section than {first.path}: agents that act as "
                    "one must see the same; leave one of them out"
                )
        if other.facts["market"] != first.facts["market"]:
            raise CheckpointError(f"{other.path} was trained on other prices than {first.path}; leave one of them out")


@torch.no_grad()
def read_bars(policy: ExpertPolicy, market: MarketTensors, bars: range, rows: int = ROWS) -> MarketReading:
    """Reading of a policy of the market at decision bars, (steps, ...), so many at once."""
    device, readings = market.market.device, []
    for start in range(bars.start, bars.stop, rows):
        some = torch.arange(start, min(start + rows, bars.stop), device=device)
        blank = torch.zeros(len(some), market.assets.shape[1] + 4, device=device)  # the weights held are not read
        readings.append(policy.read_market(market.states(some, blank)))
    return MarketReading.join(readings, torch.cat)


def _read(policy: ExpertPolicy, process: DecisionProcess, bars: range) -> MarketReading:
    """Reading of a policy; of an ensemble the mean of its members', each expert's portfolio weighed by their gates."""
    reading = read_bars(policy, MarketTensors.of(process, next(policy.parameters()).device), bars)
    if not isinstance(policy, PolicyEnsemble):
        return reading
    share = reading.gate.clamp(min=LEAST_SHARE).unsqueeze(-1)
    experts = (share * reading.experts).sum(dim=1) / share.sum(dim=1)
    return MarketReading(experts, reading.gate.mean(dim=1), reading.aim.mean(dim=1), reading.hidden[:, 0], None)


def named_portfolios(policy: ExpertPolicy, process: DecisionProcess, bars: range) -> FloatArray:
    """The portfolios that the experts name at decision bars, (steps, 5, K)."""
    return _read(policy, process, bars).experts[:, : len(EXPERTS)].double().cpu().numpy()


def gate_on(policy: ExpertPolicy, process: DecisionProcess, window: range, states: TwoStates) -> ByState | None:
    """Mean gate weights in each state of the market; None where there is no decision, or no experts."""
    bars = process.decision_bars(window)
    if not len(bars):
        return None
    reading = _read(policy, process, bars)
    gate, cash = (part.double().cpu().numpy() for part in (reading.gate, reading.aim[:, -1]))
    score = crisis(PanelView(process.panel).market[:, 0], states)[np.array(bars) - process.lag]
    return gate_by_state(score, gate, cash, policy.sources)


def traits_on(policy: ExpertPolicy, process: DecisionProcess, window: range) -> ExpertTraits | None:
    """Traits of the experts over a window; None where there are too few bars before it to estimate any."""
    bars = process.decision_bars(window)
    if not len(bars):
        return None
    known = [bar - process.lag for bar in bars]
    return expert_traits(process.panel, known, named_portfolios(policy, process, bars), EXPERTS)
