"""The loops of `fused_rollout`: a portfolio's decisions one after the other, and their gradient by the chain rule.

Compiled code is kept beside this file until the file changes. So it uses no number and no class of another module.

A policy moves the weights ``w`` a share of the way to its aim and draws a portfolio ``a`` around that. What is held and
what is aimed at drift to the fill, ``b`` and ``t``, where ``mu`` is the trade's wealth factor; ``m``, ``s``, ``d`` are
the state of the reward: means of the return in excess of cash and of its square, and the drawdown. ``of_x`` is the
gradient of the loss for a number ``x``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from finflow.arrays import FloatArray
from finflow.compiled_function import compiled_function

LEAST_GROWTH, LOG_DENSITY_AT_CENTRE = 1e-12, -0.5 * math.log(2.0 * math.pi)
ROUNDS, TOLERANCE = 200, 1e-15  # to find the wealth factor
Pair = tuple[float, float]
#: Sums may be added up in parts; numbers that are not finite are no error, as in torch.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}


class Constants(NamedTuple):
    """Numbers of the ledger and the reward; weights of its terms with their scales."""

    rate: float  # of all costs
    first: float
    second: float
    deviation: float
    least_variance: float
    cvar_target: float
    eta: float
    sharpe: float
    turnover: float
    cvar: float
    drawdown: float
    least_weight: float  # those of the policy's layers
    least_rate: float
    least_slope: float
    lowest_scale: float
    highest_scale: float


class Path(NamedTuple):
    """All that portfolios meet and do, in double precision; the loop fills the latter."""

    aim: FloatArray  # (horizon, batch, K)
    hidden: FloatArray  # (horizon, batch, width): what the market adds; then activations
    facts_weight: FloatArray  # (members, facts, width)
    head_weight: FloatArray  # (members, 2, width)
    head_bias: FloatArray  # (members, 2)
    noise: FloatArray  # (horizon, batch, K - 1)
    growth: FloatArray  # (horizon + 1, batch, K)
    weights: FloatArray  # (horizon + 1, batch, K)
    objective: FloatArray  # (horizon + 2, batch, 3): one decision before the first one, too
    action: FloatArray  # (horizon, batch, K)
    numbers: FloatArray  # (horizon, batch, 5): logit, log scale, wealth factor, trade rate, bounded log scale
    outcome: FloatArray  # (4, horizon, batch): reward, log density, turnover, gross return


class Slopes(NamedTuple):
    """Gradients: given ones of the outcome, and those that the loop fills."""

    reward: FloatArray
    density: FloatArray
    weights: FloatArray  # (batch, K): at the end
    objective: FloatArray  # (batch, 3): likewise
    objective_before: FloatArray
    aim: FloatArray
    hidden: FloatArray
    facts_weight: FloatArray
    head_weight: FloatArray
    head_bias: FloatArray


class Work(NamedTuple):
    """Room for one decision: arrays (K,), and facts that the trade rate reads."""

    b: FloatArray
    t: FloatArray
    of_b: FloatArray
    of_t: FloatArray
    of_a: FloatArray
    facts: FloatArray
    of_facts: FloatArray


@compiled_function(**OPTIONS)
def fill_path(constants: Constants, path: Path, work: Work) -> None:
    """Follow every portfolio through its decisions."""
    horizon, batch, _ = path.aim.shape
    for row in range(batch):
        for h in range(horizon):
            new, growth = path.weights[h + 1, row], path.growth[h, row]
            _fill_facts(constants, path, h, row, work.facts)
            _read(constants, path, h, row, work.facts)
            path.outcome[1, h, row] = _draw(constants, path, h, row)
            _fill_drift(path.weights[h, row], growth, work.b)
            _fill_drift(path.action[h, row], growth, work.t)
            mu, path.outcome[2, h, row] = _trade(constants.rate, work.b, work.t, new)
            path.numbers[h, row, 2], path.outcome[3, h, row] = mu, mu * _dot(new, path.growth[h + 1, row])
            path.outcome[0, h, row] = _reward(constants, path, h, row)


@compiled_function(**OPTIONS)
def _dot(left: FloatArray, right: FloatArray) -> float:
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@compiled_function(**OPTIONS)
def _fill_facts(constants: Constants, path: Path, h: int, row: int, facts: FloatArray) -> None:
    """Fill what the trade rate reads of a portfolio: as in `move_toward` and `Objective.observe`."""
    w, aim, objective = path.weights[h, row], path.aim[h, row], path.objective[h, row]
    facts[0], facts[1], facts[2] = 0.0, w[-1], aim[-1]
    for k in range(len(w)):
        facts[0] += 0.5 * abs(aim[k] - w[k])
    facts[3] = (objective[0] - constants.first) / (0.1 * constants.deviation)
    facts[4], facts[5] = objective[1] / constants.second - 1.0, 10.0 * objective[2]


@compiled_function(**OPTIONS)
def _read(constants: Constants, path: Path, h: int, row: int, facts: FloatArray) -> None:
    """Activate the hidden layer; fill the logit of the trade rate, and the log scale, with what they are bounded to."""
    member, hidden, numbers = (
        row // (path.aim.shape[1] // len(path.head_bias)),
        path.hidden[h, row],
        path.numbers[h, row],
    )
    head, logit, log_scale = path.head_weight[member], path.head_bias[member, 0], path.head_bias[member, 1]
    for j in range(len(facts)):
        for u in range(len(hidden)):
            hidden[u] += facts[j] * path.facts_weight[member, j, u]
    for u in range(len(hidden)):
        hidden[u] = max(hidden[u], 0.0)
        logit += hidden[u] * head[0, u]
        log_scale += hidden[u] * head[1, u]
    whole = path.weights[h, row, -1] > 1.0 - constants.least_weight  # the whole way out of cash
    numbers[3] = 1.0 if whole else max(1.0 / (1.0 + math.exp(-logit)), constants.least_rate)
    numbers[0], numbers[1] = logit, log_scale
    numbers[4] = min(max(log_scale, constants.lowest_scale), constants.highest_scale)


@compiled_function(**OPTIONS)
def _draw(constants: Constants, path: Path, h: int, row: int) -> float:
    """Fill the portfolio that is drawn; returns its log density."""
    w, aim, noise, a = path.weights[h, row], path.aim[h, row], path.noise[h, row], path.action[h, row]
    rate, log_scale = path.numbers[h, row, 3], path.numbers[h, row, 4]
    last, scale, logs, largest, total = len(noise), math.exp(log_scale), np.empty(len(w)), 0.0, 0.0
    log_cash = math.log(max(w[last] + rate * (aim[last] - w[last]), constants.least_weight))
    density = last * (LOG_DENSITY_AT_CENTRE - log_scale) - 0.5 * _dot(noise, noise)
    logs[last] = 0.0
    for i in range(last):
        logs[i] = math.log(max(w[i] + rate * (aim[i] - w[i]), constants.least_weight)) - log_cash + scale * noise[i]
        largest = max(largest, logs[i])
    for k in range(last + 1):
        a[k] = math.exp(logs[k] - largest)
        total += a[k]
    for k in range(last + 1):
        a[k] /= total
        density -= logs[k]
    return float(density + (last + 1) * (largest + math.log(total)))


@compiled_function(**OPTIONS)
def _fill_drift(weights: FloatArray, growth: FloatArray, drifted: FloatArray) -> None:
    total = _dot(weights, growth)
    for k in range(len(weights)):
        drifted[k] = weights[k] * growth[k] / total


@compiled_function(**OPTIONS)
def _trade(rate: float, b: FloatArray, t: FloatArray, new: FloatArray) -> tuple[float, float]:
    """Fill the weights after a trade; its factor, the root of ``mu = 1 - rate * sum |mu t - b|``, and its turnover."""
    last, mu, cash, bought, changed = len(new) - 1, 1.0, 1.0, 0.0, 0.0
    for _ in range(ROUNDS):
        traded = 0.0
        for i in range(last):
            traded += abs(mu * t[i] - b[i])
        before, mu = mu, 1.0 - rate * traded
        if abs(mu - before) <= TOLERANCE:
            break
    for i in range(last):
        new[i] = t[i]
        cash -= t[i]
        bought += t[i] - b[i]
        changed += abs(t[i] - b[i])
    new[last] = max(cash, 0.0)
    return mu, 0.5 * (changed + abs(bought))


@compiled_function(**OPTIONS)
def _reward(constants: Constants, path: Path, h: int, row: int) -> float:
    """Reward of a decision; fills the state after it: as in `Objective.step`."""
    m, s, d = path.objective[h + 1, row, 0], path.objective[h + 1, row, 1], path.objective[h + 1, row, 2]
    turnover, earned = path.outcome[2, h, row], math.log(max(path.outcome[3, h, row], LEAST_GROWTH))
    after, cash = path.objective[h + 2, row], math.log(path.growth[h + 1, row, -1])
    risky = earned - cash
    change, change_of_square, below = risky - m, risky * risky - s, min(d + earned, 0.0)
    sharpe = (s * change - 0.5 * m * change_of_square) / max(s - m * m, constants.least_variance) ** 1.5
    after[0], after[1], after[2] = m + constants.eta * change, s + constants.eta * change_of_square, below
    penalties = constants.turnover * turnover + constants.cvar * max(constants.cvar_target - earned, 0.0)
    penalties += constants.drawdown * max(math.exp(d) - math.exp(below), 0.0)
    return float(earned + constants.sharpe * sharpe - penalties)


@compiled_function(**OPTIONS)
def fill_slopes(constants: Constants, path: Path, slopes: Slopes, work: Work) -> None:
    """Fill the gradients for what is learned, by those of the outcome."""
    horizon, batch, last = path.aim.shape[0], path.aim.shape[1], path.aim.shape[2] - 1
    for row in range(batch):
        of_w, of_state, of_state_before = slopes.weights[row], slopes.objective[row], slopes.objective_before[row]
        for h in range(horizon - 1, -1, -1):
            w, aim, a, of_aim = path.weights[h, row], path.aim[h, row], path.action[h, row], slopes.aim[h, row]
            growth, ahead, gross = path.growth[h, row], path.growth[h + 1, row], path.outcome[3, h, row]
            of_earned, mu = _return_slope(constants, path, slopes, h, row), path.numbers[h, row, 2]
            for j in range(3):  # it is observed as the state before, one decision later
                of_state[j] += of_state_before[j]
            for k in range(last + 1):
                of_w[k] += of_earned * mu / gross * ahead[k]
            _fill_drift(w, growth, work.b)
            _fill_drift(a, growth, work.t)
            _trade_slopes(constants.rate, mu, of_earned / mu, -slopes.reward[h, row] * constants.turnover, of_w, work)
            _drift_slopes(a, growth, work.t, work.of_t, work.of_a)
            _drift_slopes(w, growth, work.b, work.of_b, of_w)
            of_rate, of_scale = _draw_slopes(constants, path, slopes, h, row, work)
            of_logit, of_scale = _head_slopes(constants, path, h, row, of_rate, of_scale)
            _fill_facts(constants, path, h, row, work.facts)
            _read_slopes(path, slopes, h, row, of_logit, of_scale, work)
            for k in range(last + 1):
                nearer = 0.5 * work.of_facts[0] * np.sign(aim[k] - w[k])
                of_aim[k] += nearer
                of_w[k] -= nearer
            of_w[last] += work.of_facts[1]
            of_aim[last] += work.of_facts[2]
            of_state_before[0] = work.of_facts[3] / (0.1 * constants.deviation)
            of_state_before[1], of_state_before[2] = work.of_facts[4] / constants.second, 10.0 * work.of_facts[5]


@compiled_function(**OPTIONS)
def _return_slope(constants: Constants, path: Path, slopes: Slopes, h: int, row: int) -> float:
    """Gradient for the log return; that of the state after the decision becomes that of the state before it."""
    m, s, d = path.objective[h + 1, row, 0], path.objective[h + 1, row, 1], path.objective[h + 1, row, 2]
    weight, gross, cash = slopes.reward[h, row], path.outcome[3, h, row], math.log(path.growth[h + 1, row, -1])
    of_state = slopes.objective[row]
    earned = math.log(max(gross, LEAST_GROWTH))
    risky, below = earned - cash, min(d + earned, 0.0)
    change, change_of_square, variance = risky - m, risky * risky - s, max(s - m * m, constants.least_variance)
    of_ratio = weight * constants.sharpe / variance**1.5
    of_variance = -1.5 * of_ratio * (s * change - 0.5 * m * change_of_square) / variance
    of_variance = of_variance if s - m * m >= constants.least_variance else 0.0
    of_change = of_ratio * s + constants.eta * of_state[0]
    of_change_of_square = -0.5 * of_ratio * m + constants.eta * of_state[1]
    of_tail = weight * constants.cvar if constants.cvar_target >= earned else 0.0
    of_earned = weight + of_change + 2.0 * risky * of_change_of_square + of_tail
    fallen = weight * constants.drawdown if d >= below else 0.0
    of_below = of_state[2] + fallen * math.exp(below) if d + earned <= 0.0 else 0.0
    of_state[0] += -0.5 * of_ratio * change_of_square - of_change - 2.0 * m * of_variance
    of_state[1] += of_ratio * change - of_change_of_square + of_variance
    of_state[2] = of_below - fallen * math.exp(d)
    return of_earned + of_below if gross >= LEAST_GROWTH else 0.0


@compiled_function(**OPTIONS)
def _trade_slopes(rate: float, mu: float, of_mu: float, of_turnover: float, of_new: FloatArray, work: Work) -> None:
    """Fill the gradients for what is held and aimed at; that of the root is the implicit function theorem's."""
    b, t, last, slope, bought, cash = work.b, work.t, len(of_new) - 1, 1.0, 0.0, 1.0
    for i in range(last):
        slope += rate * np.sign(mu * t[i] - b[i]) * t[i]
        bought += t[i] - b[i]
        cash -= t[i]
    of_cash = of_new[last] if cash >= 0.0 else 0.0
    for i in range(last):
        traded = 0.5 * of_turnover * (np.sign(t[i] - b[i]) + np.sign(bought))
        paid = of_mu * rate * np.sign(mu * t[i] - b[i]) / slope
        work.of_t[i] = of_new[i] - of_cash + traded - mu * paid
        work.of_b[i] = paid - traded
    work.of_b[last], work.of_t[last] = 0.0, 0.0


@compiled_function(**OPTIONS)
def _drift_slopes(w: FloatArray, growth: FloatArray, held: FloatArray, of_held: FloatArray, of_w: FloatArray) -> None:
    total, mean = _dot(w, growth), _dot(of_held, held)
    for k in range(len(w)):
        of_w[k] = growth[k] / total * (of_held[k] - mean)


@compiled_function(**OPTIONS)
def _draw_slopes(constants: Constants, path: Path, slopes: Slopes, h: int, row: int, work: Work) -> Pair:
    """Gradients for the trade rate and the log scale; those for what is held and aimed at are added."""
    w, aim, a, noise = path.weights[h, row], path.aim[h, row], path.action[h, row], path.noise[h, row]
    of_w, of_aim, of_density, of_a = slopes.weights[row], slopes.aim[h, row], slopes.density[h, row], work.of_a
    rate, scale = path.numbers[h, row, 3], math.exp(path.numbers[h, row, 4])
    last, total, of_rate, of_scale, of_cash = len(noise), 0.0, 0.0, 0.0, 0.0
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
        if centre >= constants.least_weight:
            of_centre = of_a[k] / centre
            of_w[k] += (1.0 - rate) * of_centre
            of_aim[k] += rate * of_centre
            of_rate += (aim[k] - w[k]) * of_centre
    return of_rate, scale * of_scale - last * of_density


@compiled_function(**OPTIONS)
def _read_slopes(path: Path, slopes: Slopes, h: int, row: int, of_logit: float, of_scale: float, work: Work) -> None:
    """Fill the gradient for the facts; those for the layers are added."""
    member = row // (path.aim.shape[1] // len(path.head_bias))
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


@compiled_function(**OPTIONS)
def _head_slopes(constants: Constants, path: Path, h: int, row: int, of_rate: float, of_scale: float) -> Pair:
    """Gradients for logit and log scale, of which some may not pass: as in `open_rate` and `inward_clamp`."""
    logit, log_scale = path.numbers[h, row, 0], path.numbers[h, row, 1]
    rate = 1.0 / (1.0 + math.exp(-logit))
    of_rate = min(of_rate, 0.0) if rate < constants.least_rate else of_rate
    of_rate = 0.0 if path.weights[h, row, -1] > 1.0 - constants.least_weight else of_rate
    if log_scale > constants.highest_scale:
        of_scale = max(of_scale, 0.0)
    elif log_scale < constants.lowest_scale:
        of_scale = min(of_scale, 0.0)
    return of_rate * max(rate * (1.0 - rate), constants.least_slope), of_scale
