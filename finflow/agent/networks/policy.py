"""Policy of five experts, a gate and a trade rate, and its decisions.

Each expert reads the assets through its own lens, its own group of features, and names a portfolio. A gate that
reads the market mixes them into an aim, and a trade rate moves part of the way from the current weights to it, as
optimal trading under costs does. The action is logistic-normal around that centre.

References
----------
Garleanu and Pedersen (2013), Dynamic Trading with Predictable Returns and Transaction Costs, proposition 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.gradient_steps import at_least_single, full_precision
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import REFERENCE, Blend, Decision, MarketReading
from finflow.agent.networks.distributions import (
    SMALLEST_WEIGHT,
    LogisticNormal,
    count_dimensions,
    kl_from_portfolios,
    log_portfolio,
    log_ratio_entropy,
    log_ratios,
    mean_listed,
    weighted_likelihood_loss,
)
from finflow.agent.networks.layers import (
    AssetLayers,
    EnsembleLinear,
    EnsembleReadout,
    dropout,
    inward_clamp,
    kept_units,
    linear,
    open_rate,
    pooled,
)

EXPERTS = ("volatility", "correlation", "momentum", "defensive", "growth")
INITIAL_TRADE_RATE = -2.0  # logit: about an eighth of the way to the aim, each day
INITIAL_LOG_SCALE = -1.5
# Decisions without a trade have a density without bound: with a free scale, one that never trades is the likeliest;
# with a scale of at least a tenth, one that trades as much as the data on average.
LOG_SCALE_RANGE = (-2.3, -0.7)
# The aim's gradient is proportional to the trade rate: ascent on critics scales it as if the rate were at least this.
LEAST_PULL = 0.2
N_TRADE_FACTS = 3 + 3  # turnover to the aim, cash held, cash aimed at; the state of the reward


class ExpertPolicy(AssetLayers):
    """The policy of the B-Cell; takes any number of assets.

    ``generator`` draws the initial weights, ``dropout_rate`` is of the gate's hidden layer, and ``expert_cloning``
    weighs the divergence of each expert's portfolio from what its family names.
    """

    __call__: Callable[..., Decision]
    lens: Tensor
    blend: Blend | None = None
    keeps_slope = False
    entropy_unit = 0.0125  # of the entropy coefficient, in sigma_A: the entropy of weights pulls the centre as well
    target_entropy = staticmethod(log_ratio_entropy)  # of a share: its scale in each dimension is the share

    def __init__(
        self, shape: NetworkShape, generator: Generator, dropout_rate: float = 0.0, expert_cloning: float = 0.0
    ) -> None:
        experts, width = len(EXPERTS), max(shape.hidden // 16, 8)
        super().__init__(experts, shape.n_asset_features, shape.n_market_features, width, generator)
        self.expert_cloning, self.dropout_rate = expert_cloning, dropout_rate
        lens = torch.zeros(experts, shape.n_asset_features, 1)
        for expert, columns in enumerate(shape.lenses):
            lens[expert, list(columns)] = 1.0
        self.register_buffer("lens", lens, persistent=False)
        self.score = EnsembleReadout(experts, width, generator)
        self.cash_score = EnsembleLinear(experts, width + shape.n_market_features, 1, generator)
        gate_width = max(shape.hidden // 2, 8)
        self.gate_hidden = linear(experts * width + shape.n_market_features, gate_width, generator)
        self.gate = linear(gate_width, experts, generator, scale=0.1)
        self.trade_hidden = linear(gate_width + N_TRADE_FACTS, gate_width, generator)
        self.trade = linear(gate_width, 2, generator, scale=0.1)
        with torch.no_grad():
            self.trade.bias.copy_(torch.tensor([INITIAL_TRADE_RATE, INITIAL_LOG_SCALE]))

    def forward(
        self, states: States, noise: Generator | None = None, gate_only: bool = False, least_pull: float = 0.0
    ) -> Decision:
        """Decide for a batch of states; ``noise`` switches dropout on.

        With ``gate_only`` gradients of the aim stop at the gate and the trade rate: offline each expert learns from its
        own family. ``least_pull`` is the least trade rate for the gradient of the aim: see ``LEAST_PULL``.
        """
        reading = self.read_market(states, noise, gate_only)
        return self.trade_toward(states, reading.each(lambda part: repeat_groups(part, states)), least_pull)

    def read_market(self, states: States, noise: Generator | None = None, gate_only: bool = False) -> MarketReading:
        """Read the markets of a batch of states: portfolios of the experts, gate and aim. Parameters as `forward`."""
        experts, seen = self._expert_portfolios(states)
        seen = seen.detach() if gate_only else seen
        with full_precision(seen):
            hidden = functional.relu(self.gate_hidden(torch.cat([seen, states.market], dim=-1)))
            kept = kept_units(tuple(hidden.shape), self.dropout_rate, noise)
            hidden = dropout(hidden, self.dropout_rate, kept)
            gate = torch.softmax(self.gate(hidden), dim=-1)
            aim = torch.bmm(gate.unsqueeze(1), experts.detach() if gate_only else experts).squeeze(1)
        reading = MarketReading(experts, gate, aim, hidden, None if states.complete else states.listed)
        if self.blend is None:
            return reading
        return reading.with_reference(self.blend.portfolio(states), self.blend.confidence)

    def _expert_portfolios(self, states: States) -> tuple[Tensor, Tensor]:
        """Portfolios of the five experts, (groups, 5, K), and their pooled embeddings, (groups, 5 * width)."""
        embedded = self.embed(self.from_asset.weight * self.lens, states)
        scores = self.score(embedded).masked_fill(~states.listed, float("-inf"))
        market = states.market.expand(len(EXPERTS), -1, -1)
        seen = at_least_single(pooled(embedded, states))
        with full_precision(seen):
            cash = self.cash_score(torch.cat([seen, market], dim=-1))
        portfolios = torch.softmax(torch.cat([scores, cash], dim=-1), dim=-1)
        return portfolios.transpose(0, 1), seen.transpose(0, 1).flatten(1)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the portfolios that the aim is mixed from: the experts', and in a blend the reference's."""
        return EXPERTS if self.blend is None else (*EXPERTS, REFERENCE)

    def imitation_loss(
        self, batch: Batch, weights: Tensor, noise: Generator | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted likelihood: of the mixture on all actions, of each expert on the logged ones of its own family.

        The weights, (batch, P), are of each state's actions; ``noise`` is for dropout. Returns the loss, (), and
        metrics.
        """
        decision = self(batch.states, noise, gate_only=True)
        distribution = decision.distribution.repeated(weights.shape[1])
        density = distribution.log_density(batch.outcomes.actions.flatten(0, 1))
        mixture = weighted_likelihood_loss(density, weights.flatten(), distribution.dimensions)
        experts, held, metrics = expert_losses(decision, batch, weights[:, 0], self.expert_cloning)
        return mixture + experts + held, metrics | {"policy_loss": mixture.detach()}

    def deterministic(self, states: States) -> Tensor:
        """The centre of the policy, (batch, K)."""
        return self(states).distribution.centre()

    def coordinate_count(self, actions: Tensor) -> int:
        """Coordinates that actions (..., K) are drawn in: K - 1."""
        return actions.shape[-1] - 1

    def free_dimensions(self, actions: Tensor, states: States) -> int | Tensor:
        """Free dimensions of portfolios (batch, K): K - 1, or in states with listings the listed assets, (batch,)."""
        return count_dimensions(actions[..., :-1], _listed_assets(states))

    def pathwise_gradient(
        self, batch: Batch, weights: Tensor, noise: Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The centre with gradients for the whole policy, (batch, K), and the losses that hold it to the data.

        These are the likelihood loss of the data's actions, all weighted alike, (), and the policy's others, (). The
        weights, (batch,), are of the logged actions in each expert's loss on its own family; ``noise`` is for dropout.
        """
        decision = self(batch.states, noise, least_pull=LEAST_PULL)
        distribution = decision.distribution
        listed = distribution.listed
        shift = log_ratios(batch.actions, listed) - distribution.location
        spread = LogisticNormal(distribution.location.detach(), distribution.log_scale, listed)
        scale = weighted_likelihood_loss(spread.log_density(batch.actions), torch.ones_like(weights), spread.dimensions)
        cloning = 0.5 * (shift.square().mean() if listed is None else mean_listed(shift.square(), listed).mean())
        experts, held, metrics = expert_losses(decision, batch, weights, self.expert_cloning)
        metrics["cloning_loss"] = cloning.detach()
        return distribution.centre(), cloning, experts + scale + held, metrics

    def coordinates(self, actions: Tensor, states: States) -> Tensor:
        """Coordinates in which actions are compared: additive log ratios, (..., K - 1)."""
        return log_ratios(actions, _listed_assets(states))

    def squared_distance(self, actions: Tensor, others: Tensor, states: States) -> Tensor:
        """Mean square of the difference of actions in each coordinate, (batch,)."""
        difference = self.coordinates(actions, states) - self.coordinates(others, states)
        return mean_listed(difference.square(), _listed_assets(states))

    def perturbed(self, actions: Tensor, change: Tensor, states: States) -> Tensor:
        """Move portfolios by ``change`` (..., K - 1) in log ratios."""
        return log_portfolio(log_ratios(actions, _listed_assets(states)) + change).exp()

    def trade_toward(self, states: States, reading: MarketReading, least_pull: float = 0.0) -> Decision:
        """Move from the current weights toward the aim, by the whole way where only cash is held.

        Of the states the portfolios alone are read; the reading has a row for each. The gradient of the aim is scaled
        as if the trade rate were at least ``least_pull``.
        """
        return move_toward(self, states, reading, self._trade_head, least_pull)

    def _trade_head(self, rows: Tensor) -> Tensor:
        """Logit of the trade rate, and log scale, of rows of the market's reading and facts of portfolios."""
        with full_precision(rows):
            numbers: Tensor = self.trade(functional.relu(self.trade_hidden(rows)))
        return numbers


def move_toward(
    policy: ExpertPolicy,
    states: States,
    reading: MarketReading,
    head: Callable[[Tensor], Tensor],
    least_pull: float = 0.0,
) -> Decision:
    """Decide for portfolios: part of the way from their weights to the aim, the whole way out of cash.

    Of the policy its blend is used. ``head`` maps what is known of market and portfolio (batch, inputs) to logit of the
    trade rate and log scale, (batch, 2). The rest as in `ExpertPolicy.trade_toward`.
    """
    experts, gate, aim, hidden, listed = reading
    weights = states.weights
    distance = 0.5 * (aim - weights).abs().sum(-1, keepdim=True)
    facts = torch.cat([distance, weights[:, -1:], aim[:, -1:], states.reward_state], dim=-1)
    rate_and_scale = head(torch.cat([hidden, facts], dim=-1))
    trade_rate = open_rate(rate_and_scale[:, :1], policy.keeps_slope)
    if policy.blend is not None:
        trade_rate = policy.blend.trade_rate(trade_rate)
    trade_rate = torch.where(weights[:, -1:] > 1.0 - SMALLEST_WEIGHT, 1.0, trade_rate)
    log_scale = inward_clamp(rate_and_scale[:, 1:], *LOG_SCALE_RANGE)
    target = aim
    if least_pull > 0.0:  # the same numbers, with a larger gradient
        target = aim.detach() + (least_pull / trade_rate.detach()).clamp(min=1.0) * (aim - aim.detach())
    centre = ((1.0 - trade_rate) * weights + trade_rate * target).clamp(min=SMALLEST_WEIGHT)
    if listed is not None:
        centre = centre * functional.pad(listed, (0, 1), value=True)
    return Decision(experts, gate, aim, trade_rate, centre, log_scale, listed)


def blended(policy: ExpertPolicy, blend: Blend | None) -> ExpertPolicy:
    """The same networks, parameters shared, whose decisions are blended with a reference; none for no blend."""
    other = copy.copy(policy)
    other.blend = blend
    return other


def _listed_assets(states: States) -> Tensor | None:
    """Assets that are listed in the state of each portfolio, (batch, assets); None where all are."""
    return None if states.complete else repeat_groups(states.listed, states)


def expert_losses(
    decision: Decision, batch: Batch, weights: Tensor, cloning: float
) -> tuple[Tensor, Tensor | float, dict[str, Tensor]]:
    """Losses of each expert on the family of behaviour of its name: on its decisions, and on portfolios that it names.

    The first is the weighted likelihood of part-way moves to the expert's portfolio, on its own family's transitions;
    the second, times ``cloning``, holds the experts' portfolios to rules. The rest are figures for the log.
    """
    count = decision.experts.shape[1]
    of_family = (batch.families < count).to(weights.dtype)
    learning = batch.families.clamp(max=count - 1)
    distribution = decision.expert_distribution(learning, batch.states.weights)
    density = distribution.log_density(batch.actions)
    loss = weighted_likelihood_loss(density, weights * of_family, distribution.dimensions)
    metrics = {"expert_loss": loss.detach(), "trade_rate": decision.trade_rate.mean().detach()}
    if not cloning or batch.named is None:
        return loss, 0.0, metrics
    naming = kl_from_portfolios(batch.named, decision.experts[:: batch.states.group_size]).mean()
    return loss, cloning * naming, metrics | {"naming_loss": naming.detach()}
