"""Evidence about the audit's test of foreknowledge: scores of honest strategies, and the smallest leak that it flags.

Only training and validation are read: the test window is for a run's own report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.strategies.classical import named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.strategies.strategy import Information, Strategy
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.audited_foreknowledge import AuditedForeknowledge, OpenedFiles, decided_views
from finflow.training.audit.foreknowledge import Foreknowledge, RankScore, best_honest, views_of_portfolios
from finflow.training.audit.look_ahead import Finding
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from scripts.evidence.guard_faults import SMALL, synthetic_keys
from scripts.evidence.results import Variant, train_both
from scripts.evidence.tables import markdown_table

PREFIX, LEAKS = "foresight-", "foresight-leaks"
KINDS = ("lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable")
TRAINED = ("mean-reverting",)
"""Of them, those on which an agent is trained, too."""
NAMED = ("momentum", "time-series-momentum", "olmar", "pamr", "inverse-volatility", "buy-and-hold")
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
DECISIONS = (250, 1000)
DRAWS = 10
OTHERWISE = ("equal weight", "the asset that rose most yesterday")


class Extreme:
    """Yesterday's loser (reversal) or the winner of a year (momentum), chosen anew at every bar.

    Parameters
    ----------
    bars : int
        Of the return that it ranks.
    """

    def __init__(self, bars: int, sign: float) -> None:
        self.bars, self.sign = bars, sign
        self.name = f"{'reversal' if sign < 0 else 'momentum'} of {bars} bars, daily"

    def decide(self, information: Information) -> FloatArray:
        """All in one asset, (K,)."""
        past = information.prices[-1] / information.prices[-1 - self.bars]
        weights = np.zeros(len(information.portfolio))
        weights[int(np.nanargmax(self.sign * past))] = 1.0
        return weights


def foresight_variants() -> list[Variant]:
    """Honest strategies on every market, and leaks on the embedded one."""
    embedded = Variant(f"{PREFIX}embedded", (0,), SMALL, measure=measure_honest)
    planted = [
        Variant(f"{PREFIX}{kind}", (0,), {**(SMALL if kind in TRAINED else {}), **_keys(kind)}, measure=measure)
        for kind, measure in ((kind, measure_honest if kind in TRAINED else measure_rules) for kind in KINDS)
    ]
    return [embedded, *planted, Variant(LEAKS, (0,), measure=measure_leaks)]


def _keys(kind: str) -> dict[str, object]:
    """A synthetic market; the log-normal one has such moves that its prices end sooner."""
    return synthetic_keys(kind, 3000 if kind == "lognormal" else 6000)


def measure_honest(config: Config) -> dict[str, Any]:
    """Train a small agent, and score it with what `measure_rules` scores."""
    trainer = train_both(config)
    policy = read_checkpoint(trainer.run_folder).agent.policy(trainer.device)
    return measure_rules(config, [AgentStrategy(policy, trainer.device)])


def measure_rules(config: Config, more: Sequence[Strategy] = ()) -> dict[str, Any]:
    """Score rules, the optimum where there is one, all features, and the signals that set the limit."""
    data = prepare(config)
    test = Foreknowledge(data.process.panel.close)
    made: list[Strategy] = [*_rules(data), *more]
    if config.market.source == "synthetic":
        made.insert(0, optimum_of(config.market, config.env).policy)
    rows = {}
    for strategy in made:
        decided = decided_views(data.process, data.split.validation, strategy)
        rows[strategy.name] = _largest(test.scores(*decided, every=True), len(decided[1]))
    return {
        "rows": rows,
        "features": [finding.verdict for finding in _features(data)],
        "honest": {str(bars): _honest(test, bars) for bars in (1, 5, 21)},
    }


def _rules(data: TrainingData) -> Iterator[Strategy]:
    yield from (Extreme(1, -1.0), Extreme(5, -1.0), Extreme(252, 1.0))
    yield from (named_strategy(name, data.config.evaluation) for name in NAMED)


def _features(data: TrainingData) -> Iterator[Finding]:
    panel = data.process.panel
    return AuditedForeknowledge(AuditSubjects(panel, data.config, data.split), OpenedFiles()).of_features()


def _honest(test: Foreknowledge, bars: int) -> dict[str, float]:
    """The best score of honest signals among assets and over time, on the next so many bars."""
    known = np.arange(len(test.close) - bars)
    found = {name: best_honest(test.close, known, test.outcome(known, 0, bars, whole)) for name, whole in _SIDES}
    return {name: round(value, 4) for name, value in found.items()}


_SIDES = (("assets", False), ("time", True))


def _largest(scores: Iterator[RankScore], decisions: int) -> dict[str, Any]:
    """The score over all decisions, and the one in a block, that come nearest to their limits."""
    found, kept = list(scores), {}
    for name in ("whole", "block"):
        own = [one for one in found if (len(one.rows) == decisions) == (name == "whole")]
        worst = max(own, key=lambda one: (one.share, abs(one.value) - 4.0 * one.spread), default=None)
        if worst is not None:
            value, spread, limit = worst.value, worst.spread, worst.limit
            figures = {"value": value, "spread": spread, "limit": limit, "share": worst.share}
            kept[name] = {"view": worst.view, **{key: round(figure, 4) for key, figure in figures.items()}}
    return {"decisions": decisions, **kept}


def measure_leaks(config: Config) -> dict[str, Any]:
    """Flag strategies that foretell the bar that they are paid for at a share of their decisions, and not otherwise."""
    data = prepare(config)
    test, process = Foreknowledge(data.process.panel.close), data.process
    bars = np.asarray(process.decision_bars(data.split.validation), dtype=np.int64)
    flagged = {}
    for otherwise in OTHERWISE:
        for count in DECISIONS:
            known = bars[:count] - process.lag
            for share in SHARES:
                hits = sum(_is_flagged(test, known, share, otherwise, process.lag, draw) for draw in range(DRAWS))
                flagged[f"{otherwise}|{count}|{share}"] = hits
    return {"flagged": flagged, "draws": DRAWS}


def _is_flagged(test: Foreknowledge, known: IntArray, share: float, otherwise: str, lag: int, draw: int) -> bool:
    close, rng = test.close, np.random.default_rng([draw, 17])
    winners = np.nan_to_num(close[known + lag + 1] / close[known + lag]).argmax(axis=1)
    foretells = rng.random(len(known)) < share
    targets = np.zeros((len(known), close.shape[1] + 1))
    if otherwise == OTHERWISE[0]:
        targets[:, :-1] = 1.0 / close.shape[1]
    else:
        targets[np.arange(len(known)), np.nan_to_num(close[known] / close[known - 1]).argmax(axis=1)] = 1.0
    targets[foretells] = np.eye(close.shape[1] + 1)[winners[foretells]]
    held = np.vstack([targets[:1], targets[:-1]])
    return any(True for _ in test.scores(views_of_portfolios(targets, held), known, lag))


def honest_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: the score of each strategy that comes nearest to its limit, by market."""
    rows: list[list[object]] = []
    for result in results:
        for name, row in result["rows"].items():
            cells = [_cell(row.get(part)) for part in ("whole", "block")]
            shares = [row[part]["share"] for part in ("whole", "block") if part in row]
            flagged = "**yes**" if max(shares, default=0.0) > 1.0 else "no"
            rows.append([result["variant"].removeprefix(PREFIX), name, row["decisions"], *cells, flagged])
        flagged = "**yes**" if set(result["features"]) != {"clean"} else "no"
        rows.append([result["variant"].removeprefix(PREFIX), "all features", "", "", "", flagged])
    return markdown_table(("market", "strategy", "decisions", "all decisions", "nearest block", "flagged"), rows)


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "no view"
    return f"{found['view']}: {found['value']:+.2f}, 4 × {found['spread']:.2f} by chance, limit {found['limit']:.2f}"


def signal_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: the best score of honest signals on each market."""
    rows = [
        [result["variant"].removeprefix(PREFIX)]
        + [f"{result['honest'][bars][side]:.3f}" for side, _ in _SIDES for bars in ("1", "5", "21")]
        for result in results
    ]
    heads = [f"{side}, {bars} bar{'s' * (bars > 1)}" for side in ("assets", "over time") for bars in (1, 5, 21)]
    return markdown_table(("market", *heads), rows)


def leak_table(result: Mapping[str, Any]) -> str:
    """A Markdown table: how often a leak is flagged, by the share of decisions that foretell."""
    rows = [
        [otherwise, count, *(f"{result['flagged'][f'{otherwise}|{count}|{share}']}" for share in SHARES)]
        for otherwise in OTHERWISE
        for count in DECISIONS
    ]
    return markdown_table(("otherwise", "decisions", *(f"{100.0 * share:.0f} %" for share in SHARES)), rows)


def foresight_page(results: Sequence[Mapping[str, Any]]) -> str:
    """Tables of the page; the leaks come last in the results."""
    *honest, leaks = results
    tables = {
        "Signals that set the limit": signal_table(honest),
        "Honest strategies": honest_table(honest),
        "Leaks": leak_table(leaks),
    }
    made = f"\nCode {', '.join(sorted({result['code'] for result in results}))}.\n"
    return "\n".join(f"## {heading}\n\n{content}" for heading, content in tables.items()) + made
