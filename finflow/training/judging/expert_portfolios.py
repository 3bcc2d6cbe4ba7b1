"""What an agent's experts name, bar by bar, and whether that is what they are called after."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.agent.networks.policy import EXPERTS, Decision, ExpertPolicy
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.analysis.expert_traits import LONG, ExpertTraits, expert_traits
from finflow.evaluation.analysis.gate_states import ByState, gate_by_state
from finflow.market.features.market_features import TwoStates, crisis
from finflow.market.features.rolling_windows import PanelView
from finflow.training.data.replay import MarketTensors

ROWS = 1024  # decisions named at once


@torch.no_grad()
def _decisions(policy: ExpertPolicy, process: DecisionProcess, bars: range) -> Iterator[Decision]:
    """Decisions at decision bars, many at once; what is asked of them here does not depend on what is held."""
    device = next(policy.parameters()).device
    market = MarketTensors.of(process, device)
    for start in range(bars.start, bars.stop, ROWS):
        rows = torch.arange(start, min(start + ROWS, bars.stop), device=device)
        held = torch.full((len(rows), process.portfolio_size), 1.0 / process.n_weights, device=device)
        yield policy(market.states(rows, held))


def named_portfolios(policy: ExpertPolicy, process: DecisionProcess, bars: range) -> NDArray[np.float64]:
    """The portfolios that the experts name at decision bars, (steps, 5, K)."""
    return np.concatenate([one.experts.double().cpu().numpy() for one in _decisions(policy, process, bars)])


def gate_on(policy: ExpertPolicy, process: DecisionProcess, window: range, states: TwoStates) -> ByState | None:
    """What the gate does in each state of the market; None where there is no decision, or no experts.

    Parameters
    ----------
    policy : ExpertPolicy
    process : DecisionProcess
    window : range
        Of bars.
    states : TwoStates
        The crisis score's, as fitted on the training window.
    """
    bars = process.decision_bars(window)
    if not len(bars) or policy.names != EXPERTS:
        return None
    gates, cash = [], []
    for decision in _decisions(policy, process, bars):
        gates.append(decision.gate.double().cpu().numpy())
        cash.append(decision.aim[:, -1].double().cpu().numpy())
    score = crisis(PanelView(process.panel), states)[np.array(bars) - process.lag]
    return gate_by_state(score, np.concatenate(gates), np.concatenate(cash), EXPERTS)


def traits_on(policy: ExpertPolicy, process: DecisionProcess, window: range) -> ExpertTraits | None:
    """Traits of the experts over a window; None where there are too few bars before it to estimate any, or no experts.

    Parameters
    ----------
    policy : ExpertPolicy
    process : DecisionProcess
    window : range
        Of bars.
    """
    bars = process.decision_bars(window)
    known = [bar - process.lag for bar in bars]
    if not known or known[-1] < LONG or policy.names != EXPERTS:
        return None
    return expert_traits(process.panel, known, named_portfolios(policy, process, bars), EXPERTS)
