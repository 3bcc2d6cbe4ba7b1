"""The loops of `fused_rollout`: a portfolio's decisions one after the other, and their gradient by the chain rule.

A policy moves the weights ``w`` a share of the way to its aim and draws a portfolio ``a`` around that. What is held and
what is aimed at drift to the fill, ``b`` and ``t``, where ``mu`` is the wealth factor of the trade. ``m``, ``s`` and
``d`` are the state of the reward: the means of the return in excess of cash and of its square, and the drawdown. The
gradient of the objective for a number ``x`` is ``of_x``.
"""

from __future__ import annotations

import math

import numpy as np

from finflow.agent.networks.distributions import LOG_DENSITY_AT_CENTRE, SMALLEST_WEIGHT
from finflow.agent.networks.layers import LEAST_RATE, LEAST_SLOPE
from finflow.agent.networks.policy import LOG_SCALE_RANGE
from finflow.arrays import FloatArray
from finflow.compiled_function import compiled_function
from finflow.ledger.accounting import MAX_ITERATIONS, WEALTH_TOLERANCE
from finflow.training.data.rollout_path import Constants, Path, Slopes, Work

LOWEST_SCALE, HIGHEST_SCALE = LOG_SCALE_RANGE
LEAST_GROWTH = 1e-12
REORDERED = {"reassoc", "contract"}  # sums may be added up in parts, several at a time


@compiled_function(nogil=True, fastmath=REORDERED)
def fill_path(constants: Constants, path: Path, work: Work) -> None:
    """Follow every portfolio through its decisions."""
    horizon, batch, last = path.noise.shape
    of_member, facts, b, t = batch // len(path.head_bias), work.facts, work.b, work.t
    for row in range(batch):
        for h in range(horizon):
            w, new, action = path.weights[h, row], path.weights[h + 1, row], path.action[h, row]
            growth, ahead = path.growth[h, row], path.growth[h + 1, row]
            _fill_facts(constants, path.aim[h, row], w, path.objective[h, row], facts)
            logit, log_scale = _read(path, h, row, row // of_member, facts)
            rate, bounded = _rate_of(logit, w[last]), min(max(log_scale, LOWEST_SCALE), HIGHEST_SCALE)
            path.outcome[1, h, row] = _draw(w, path.aim[h, row], rate, bounded, path.noise[h, row], action)
            _fill_drift(w, growth, b)
            _fill_drift(action, growth, t)
            mu, turnover = _trade(constants.rate, b, t, new)
            gross = mu * _dot(new, ahead)
            before, after = path.objective[h + 1, row], path.objective[h + 2, row]
            path.outcome[0, h, row] = _reward(constants, gross, turnover, math.log(ahead[last]), before, after)
            path.outcome[2, h, row], path.outcome[3, h, row] = turnover, gross
            path.numbers[h, row, 0], path.numbers[h, row, 1], path.numbers[h, row, 2] = logit, log_scale, mu


@compiled_function(nogil=True, fastmath=REORDERED)
def _dot(left: FloatArray, right: FloatArray) -> float:
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@compiled_function(nogil=True, fastmath=REORDERED)
def _fill_facts(constants: Constants, aim: FloatArray, w: FloatArray, objective: FloatArray, facts: FloatArray) -> None:
    """Fill what the trade rate reads of a portfolio: as in `move_toward` and `Objective.observe`."""
    facts[0], facts[1], facts[2] = 0.0, w[-1], aim[-1]
    for k in range(len(w)):
        facts[0] += 0.5 * abs(aim[k] - w[k])
    facts[3] = (objective[0] - constants.first) / (0.1 * constants.deviation)
    facts[4], facts[5] = objective[1] / constants.second - 1.0, 10.0 * objective[2]


@compiled_function(nogil=True, fastmath=REORDERED)
def _read(path: Path, h: int, row: int, member: int, facts: FloatArray) -> tuple[float, float]:
    """Logit of the trade rate, and log scale; the hidden layer is activated."""
    hidden, head, bias = path.hidden[h, row], path.head_weight[member], path.head_bias[member]
    logit, log_scale = bias[0], bias[1]
    for j in range(len(facts)):
        for u in range(len(hidden)):
            hidden[u] += facts[j] * path.facts_weight[member, j, u]
    for u in range(len(hidden)):
        hidden[u] = max(hidden[u], 0.0)
        logit += hidden[u] * head[0, u]
        log_scale += hidden[u] * head[1, u]
    return logit, log_scale


@compiled_function(nogil=True, fastmath=REORDERED)
def _rate_of(logit: float, cash: float) -> float:
    """Trade rate: the whole way out of cash."""
    return 1.0 if cash > 1.0 - SMALLEST_WEIGHT else max(1.0 / (1.0 + math.exp(-logit)), LEAST_RATE)


@compiled_function(nogil=True, fastmath=REORDERED)
def _draw(w: FloatArray, aim: FloatArray, rate: float, log_scale: float, noise: FloatArray, a: FloatArray) -> float:
    """Fill the portfolio that is drawn; returns its log density."""
    last, scale, logs, largest, total = len(noise), math.exp(log_scale), np.empty(len(w)), 0.0, 0.0
    of_cash = math.log(max(w[last] + rate * (aim[last] - w[last]), SMALLEST_WEIGHT))
    density = last * (LOG_DENSITY_AT_CENTRE - log_scale) - 0.5 * _dot(noise, noise)
    logs[last] = 0.0
    for i in range(last):
        logs[i] = math.log(max(w[i] + rate * (aim[i] - w[i]), SMALLEST_WEIGHT)) - of_cash + scale * noise[i]
        largest = max(largest, logs[i])
    for k in range(last + 1):
        a[k] = math.exp(logs[k] - largest)
        total += a[k]
    for k in range(last + 1):
        a[k] /= total
        density -= logs[k]
    return density + (last + 1) * (largest + math.log(total))


@compiled_function(nogil=True, fastmath=REORDERED)
def _fill_drift(weights: FloatArray, growth: FloatArray, drifted: FloatArray) -> None:
    total = _dot(weights, growth)
    for k in range(len(weights)):
        drifted[k] = weights[k] * growth[k] / total


@compiled_function(nogil=True, fastmath=REORDERED)
def _trade(rate: float, b: FloatArray, t: FloatArray, new: FloatArray) -> tuple[float, float]:
    """Fill the weights after a trade; its factor, the root of ``mu = 1 - rate * sum |mu t - b|``, and its turnover."""
    last, mu, cash, bought, changed = len(new) - 1, 1.0, 1.0, 0.0, 0.0
    for _ in range(MAX_ITERATIONS):
        traded = 0.0
        for i in range(last):
            traded += abs(mu * t[i] - b[i])
        before, mu = mu, 1.0 - rate * traded
        if abs(mu - before) <= WEALTH_TOLERANCE:
            break
    for i in range(last):
        new[i] = t[i]
        cash -= t[i]
        bought += t[i] - b[i]
        changed += abs(t[i] - b[i])
    new[last] = max(cash, 0.0)
    return mu, 0.5 * (changed + abs(bought))


@compiled_function(nogil=True, fastmath=REORDERED)
def _reward(
    constants: Constants, gross: float, turnover: float, cash: float, objective: FloatArray, after: FloatArray
) -> float:
    """Reward of a decision; fills the state after it: as in `Objective.step`."""
    m, s, d = objective[0], objective[1], objective[2]
    earned = math.log(max(gross, LEAST_GROWTH))
    risky = earned - cash
    change, change_of_square, below = risky - m, risky * risky - s, min(d + earned, 0.0)
    sharpe = (s * change - 0.5 * m * change_of_square) / max(s - m * m, constants.least_variance) ** 1.5
    after[0], after[1], after[2] = m + constants.eta * change, s + constants.eta * change_of_square, below
    penalties = constants.turnover * turnover + constants.cvar * max(constants.cvar_target - earned, 0.0)
    penalties += constants.drawdown * max(math.exp(d) - math.exp(below), 0.0)
    reward: float = earned + constants.sharpe * sharpe - penalties
    return reward


@compiled_function(nogil=True, fastmath=REORDERED)
def fill_slopes(constants: Constants, path: Path, slopes: Slopes, work: Work) -> None:
    """Fill the gradients for what is learned, by those of the outcome."""
    horizon, batch, last = path.noise.shape
    of_member = batch // len(path.head_bias)
    for row in range(batch):
        of_w, of_state, of_state_before = slopes.weights[row], slopes.objective[row], slopes.objective_before[row]
        for h in range(horizon - 1, -1, -1):
            w, aim, a, of_aim = path.weights[h, row], path.aim[h, row], path.action[h, row], slopes.aim[h, row]
            growth, ahead, gross = path.growth[h, row], path.growth[h + 1, row], path.outcome[3, h, row]
            logit, log_scale, mu = path.numbers[h, row, 0], path.numbers[h, row, 1], path.numbers[h, row, 2]
            weight, cash, state = slopes.reward[h, row], math.log(ahead[last]), path.objective[h + 1, row]
            of_earned = _return_slope(constants, weight, gross, cash, state, of_state)
            for j in range(3):  # it is observed as the state before, one decision later
                of_state[j] += of_state_before[j]
            for k in range(last + 1):
                of_w[k] += of_earned * mu / gross * ahead[k]
            _fill_drift(w, growth, work.b)
            _fill_drift(a, growth, work.t)
            _trade_slopes(constants.rate, mu, of_earned / mu, -weight * constants.turnover, of_w, work)
            _drift_slopes(a, growth, work.t, work.of_t, work.of_a)
            _drift_slopes(w, growth, work.b, work.of_b, of_w)
            rate, bounded = _rate_of(logit, w[last]), min(max(log_scale, LOWEST_SCALE), HIGHEST_SCALE)
            of_rate, of_scale = _draw_slopes(path, h, row, rate, bounded, slopes.density[h, row], of_w, of_aim, work)
            of_logit = 0.0 if w[last] > 1.0 - SMALLEST_WEIGHT else _logit_slope(logit, of_rate)
            _fill_facts(constants, aim, w, path.objective[h, row], work.facts)
            _read_slopes(path, slopes, h, row, row // of_member, of_logit, _inward_slope(log_scale, of_scale), work)
            of_facts = work.of_facts
            for k in range(last + 1):
                nearer = 0.5 * of_facts[0] * _sign(aim[k] - w[k])
                of_aim[k] += nearer
                of_w[k] -= nearer
            of_w[last] += of_facts[1]
            of_aim[last] += of_facts[2]
            of_state_before[0] = of_facts[3] / (0.1 * constants.deviation)
            of_state_before[1], of_state_before[2] = of_facts[4] / constants.second, 10.0 * of_facts[5]


@compiled_function(nogil=True, fastmath=REORDERED)
def _return_slope(
    constants: Constants, weight: float, gross: float, cash: float, objective: FloatArray, of_state: FloatArray
) -> float:
    """Gradient for the log return; that of the state after the decision becomes that of the state before it."""
    m, s, d = objective[0], objective[1], objective[2]
    earned = math.log(max(gross, LEAST_GROWTH))
    risky, below = earned - cash, min(d + earned, 0.0)
    change, change_of_square, variance = risky - m, risky * risky - s, max(s - m * m, constants.least_variance)
    of_ratio, of_variance = weight * constants.sharpe / variance**1.5, 0.0
    if s - m * m >= constants.least_variance:
        of_variance = -1.5 * of_ratio * (s * change - 0.5 * m * change_of_square) / variance
    of_change = of_ratio * s + constants.eta * of_state[0]
    of_change_of_square = -0.5 * of_ratio * m + constants.eta * of_state[1]
    of_earned = weight + of_change + 2.0 * risky * of_change_of_square
    if constants.cvar_target >= earned:
        of_earned += weight * constants.cvar
    fallen = weight * constants.drawdown if d >= below else 0.0
    of_below = of_state[2] + fallen * math.exp(below) if d + earned <= 0.0 else 0.0
    of_state[0] += -0.5 * of_ratio * change_of_square - of_change - 2.0 * m * of_variance
    of_state[1] += of_ratio * change - of_change_of_square + of_variance
    of_state[2] = of_below - fallen * math.exp(d)
    return of_earned + of_below if gross >= LEAST_GROWTH else 0.0


@compiled_function(nogil=True, fastmath=REORDERED)
def _trade_slopes(rate: float, mu: float, of_mu: float, of_turnover: float, of_new: FloatArray, work: Work) -> None:
    """Fill the gradients for what is held and aimed at; that of the root is the implicit function theorem's."""
    b, t, last, slope, bought, cash = work.b, work.t, len(of_new) - 1, 1.0, 0.0, 1.0
    for i in range(last):
        slope += rate * _sign(mu * t[i] - b[i]) * t[i]
        bought += t[i] - b[i]
        cash -= t[i]
    of_cash = of_new[last] if cash >= 0.0 else 0.0
    for i in range(last):
        traded = 0.5 * of_turnover * (_sign(t[i] - b[i]) + _sign(bought))
        paid = of_mu * rate * _sign(mu * t[i] - b[i]) / slope
        work.of_t[i] = of_new[i] - of_cash + traded - mu * paid
        work.of_b[i] = paid - traded
    work.of_b[last], work.of_t[last] = 0.0, 0.0


@compiled_function(nogil=True, fastmath=REORDERED)
def _drift_slopes(
    weights: FloatArray, growth: FloatArray, drifted: FloatArray, of_drifted: FloatArray, of_weights: FloatArray
) -> None:
    total, mean = _dot(weights, growth), _dot(of_drifted, drifted)
    for k in range(len(weights)):
        of_weights[k] = growth[k] / total * (of_drifted[k] - mean)


@compiled_function(nogil=True, fastmath=REORDERED)
def _draw_slopes(
    path: Path,
    h: int,
    row: int,
    rate: float,
    log_scale: float,
    of_density: float,
    of_w: FloatArray,
    of_aim: FloatArray,
    work: Work,
) -> tuple[float, float]:
    """Gradients for the trade rate and the log scale; those for what is held and aimed at are added."""
    w, aim, a, noise = path.weights[h, row], path.aim[h, row], path.action[h, row], path.noise[h, row]
    of_a, last, total, of_rate, of_scale, of_cash = work.of_a, len(noise), 0.0, 0.0, 0.0, 0.0
    for k in range(last + 1):
        of_a[k] = of_a[k] * a[k] - of_density  # for its logarithm
        total += of_a[k]
    for i in range(last):
        of_a[i] -= a[i] * total  # for its log ratio
        of_cash -= of_a[i]
        of_scale += of_a[i] * noise[i]
    of_a[last] = of_cash
    for k in range(last + 1):
        centre = w[k] + rate * (aim[k] - w[k])
        if centre >= SMALLEST_WEIGHT:
            of_centre = of_a[k] / centre
            of_w[k] += (1.0 - rate) * of_centre
            of_aim[k] += rate * of_centre
            of_rate += (aim[k] - w[k]) * of_centre
    return of_rate, math.exp(log_scale) * of_scale - last * of_density


@compiled_function(nogil=True, fastmath=REORDERED)
def _read_slopes(
    path: Path, slopes: Slopes, h: int, row: int, member: int, of_logit: float, of_scale: float, work: Work
) -> None:
    """Fill the gradient for the facts; those for the layers are added."""
    hidden, head, of_hidden = path.hidden[h, row], path.head_weight[member], slopes.hidden[h, row]
    of_head = slopes.head_weight[member]
    slopes.head_bias[member, 0] += of_logit
    slopes.head_bias[member, 1] += of_scale
    for u in range(len(hidden)):
        of_head[0, u] += of_logit * hidden[u]
        of_head[1, u] += of_scale * hidden[u]
        of_hidden[u] = of_logit * head[0, u] + of_scale * head[1, u] if hidden[u] > 0.0 else 0.0
    for j in range(len(work.facts)):
        work.of_facts[j] = 0.0
        for u in range(len(hidden)):
            slopes.facts_weight[member, j, u] += work.facts[j] * of_hidden[u]
            work.of_facts[j] += path.facts_weight[member, j, u] * of_hidden[u]


@compiled_function(nogil=True, fastmath=REORDERED)
def _logit_slope(logit: float, of_rate: float) -> float:
    """Gradient for the logit of a trade rate: as in `open_rate`."""
    rate = 1.0 / (1.0 + math.exp(-logit))
    return (min(of_rate, 0.0) if rate < LEAST_RATE else of_rate) * max(rate * (1.0 - rate), LEAST_SLOPE)


@compiled_function(nogil=True, fastmath=REORDERED)
def _inward_slope(log_scale: float, of_scale: float) -> float:
    """Gradient for a log scale that is held within its range: as in `inward_clamp`."""
    if log_scale > HIGHEST_SCALE:
        return max(of_scale, 0.0)
    return min(of_scale, 0.0) if log_scale < LOWEST_SCALE else of_scale


@compiled_function(nogil=True, fastmath=REORDERED)
def _sign(number: float) -> float:
    return 1.0 if number > 0.0 else (-1.0 if number < 0.0 else 0.0)
