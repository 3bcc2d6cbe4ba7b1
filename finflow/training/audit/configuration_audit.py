"""The audit of a configuration: no part of it, from the source of the prices to the agent, knows what comes later.

The whole market is probed at a few bars, and short pieces of it bar by bar: docs/reference/audit.md, Method. A piece
holds just the history that the features need, so that a probe takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from finflow.config import Config
from finflow.errors import MarketError, refuse
from finflow.market.features.feature_set import compute_features, user_feature
from finflow.market.panel import MarketPanel, Split, split_panel
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import NAMED, named_strategy
from finflow.strategies.strategy import Strategy
from finflow.training.audit.audit_subjects import AuditSubjects
from finflow.training.audit.audited_foreknowledge import AuditedForeknowledge, OpenedFiles
from finflow.training.audit.look_ahead import BEYOND_LIMIT, LEAK, Finding, Probe, audit, join_findings, unprimed
from finflow.training.audit.shocked_panels import CUT, REPEAT, SHOCKS
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import choose_device
from finflow.training.judging.agent_strategy import AgentStrategy, load_agents
from finflow.training.judging.evaluations import strategy_identity
from finflow.training.judging.held_out import ledger_of, mark_leak

_EVERYWHERE = (CUT, "replaced")
_FEWEST_ROWS = 63


def audit_configuration(
    config: Config, strategies: Sequence[str] = (), agent: Path | None = None
) -> tuple[Finding, ...]:
    """Audit the configured data, features, environment, strategies and behaviour data, and an agent if given.

    ``strategies``: of a user's own, by import path, beside every named one. ``agent``: a checkpoint file or run folder.

    Raises FinflowError if the configuration cannot be used at all.
    """
    torch.set_num_threads(config.train.threads)
    panel = load_panel(config.market)
    split_panel(panel, config.market)  # refuses windows that are empty
    # The windows as the configured dates have them, whatever the splits make of them.
    dates = (config.market.train_end, config.market.validation_end, config.market.test_end)
    split = Split(*(panel.n_bars if day is None else int((panel.dates <= np.datetime64(day)).sum()) for day in dates))
    panel = panel.until(split.test_end)
    # A probe may cut the panel before the date that the test window ends on.
    market = config.market.model_copy(update={"test_end": None})
    config = config.model_copy(update={"market": market})
    subjects, opened = AuditSubjects(panel, config, split), OpenedFiles()
    for path in config.features.extra:
        opened.watch(f"feature {path.partition('@')[0]}", user_feature, path)
    named = {f"strategy {name}": partial(named_strategy, name, config.evaluation) for name in NAMED}
    own: dict[str, Callable[[], Strategy]] = {
        title: partial(opened.watch, title, named_strategy, name, config.evaluation)
        for name in strategies
        if (title := f"strategy {name}") not in named
    }
    for make in own.values():
        make()  # a name that is not known is the user's mistake, not a finding
    if agent is not None:
        device = choose_device(config.train.device)
        policy = read_checkpoint(agent).agent.policy(device)
        policy.eval()
        own["agent"] = lambda: AgentStrategy(policy, device, acting=config.acting)
    components = [*subjects.of_market(), *subjects.of_decisions(named | own)]
    lag, seed = config.env.execution_lag, config.train.seed
    # Before anything is asked here: the first answer of all may be what is remembered.
    first = unprimed(panel, components, (split.train_end - 1, split.test_end - lag - 3), seed)
    foreknowledge = AuditedForeknowledge(subjects, opened)
    findings = [*foreknowledge.of_features(), *foreknowledge.of_strategies(own)]
    first_bar = compute_features(panel, split.train_end).first_bar
    found = [*audit(panel, components, probes_of(split, first_bar, lag, seed), seed, first)]
    for piece, around, close in pieces_of(panel, config, split, first_bar + _FEWEST_ROWS):
        quick = [one for one in (*around.of_market(), *around.of_decisions(own)) if one.quick]
        found += audit(piece, quick, close, seed)
    return join_findings([*found, *findings, *foreknowledge.of_opened()])


def mark_leaks(config: Config, findings: Sequence[Finding], names: Sequence[str], path: Path | None) -> list[str]:
    """Record in the ledger which of a user's strategies, and whether the agent, look ahead by an audit.

    Returns lines that say so.
    """
    panel, marked = load_panel(config.market), dict[str, tuple[str, str]]()
    for finding in (one for one in findings if one.verdict in (LEAK, BEYOND_LIMIT)):
        name = finding.component.removeprefix("strategy ")
        if name in names:
            identity = strategy_identity(named_strategy(name, config.evaluation))
        elif finding.component == "agent" and path is not None:
            identity = load_agents([path], {}).identity
        else:
            continue
        marked.setdefault(name, (identity, finding.where))
    for name, (identity, where) in marked.items():
        mark_leak(config, panel, identity, name, where)
    return [f"{name} is marked as a leak in {ledger_of(config)}: its results deflate nothing" for name in marked]


def probes_of(split: Split, first_bar: int, lag: int, seed: int) -> tuple[Probe, ...]:
    """Bars after which the future is changed, and how.

    The ends of training and validation, near the end of the data, and bars between that are drawn; each with two kinds
    of shock that find most and two more in turn. The same panel again, which must change nothing, comes first.
    """
    rng = np.random.default_rng([seed, 7])
    first = first_bar + _FEWEST_ROWS
    latest = split.test_end - lag - 3
    bars = {split.train_end - 1, split.validation_end - 1, latest}
    spans = ((first, split.train_end - 2), (split.train_end, split.validation_end - 2), (split.validation_end, latest))
    bars |= {int(rng.integers(start, stop)) for start, stop in spans if stop > start}
    usable = sorted(bar for bar in bars if first <= bar <= latest)
    refuse(not usable, f"the windows are too short for an audit: no bar between {first} and {latest}", MarketError)
    others = [kind for kind in SHOCKS if kind not in (REPEAT, *_EVERYWHERE)]
    probes = [Probe(bar, REPEAT) for bar in {usable[0], split.train_end - 1, usable[-1]} if bar in usable]
    for turn, bar in enumerate(usable):
        kinds = (*_EVERYWHERE, others[2 * turn % len(others)], others[(2 * turn + 1) % len(others)])
        probes += [Probe(bar, kind) for kind in kinds]
    return tuple(probes)


_MONTH = 23
"""Bars in a row: no month has more."""
_HISTORIES = (330, 900)
"""Bars before a piece's first probe; where features need more than the one, the next, and then all there are."""
_AFTER = 30
_LEVEL = 7
"""Every so many bars the level of all prices jumps, for the fills."""


def pieces_of(
    panel: MarketPanel, config: Config, split: Split, first: int
) -> Iterator[tuple[MarketPanel, AuditSubjects, list[Probe]]]:
    """Pieces of the market around the bars of `single_bars`, their parts, and the probes to put them to.

    Those for which no piece has history enough are left out.
    """
    lag = config.env.execution_lag
    for lasts in single_bars(panel, split, first, lag, config.train.seed):
        for history in (*_HISTORIES, panel.n_bars):
            start = max(lasts.start - history, 0)
            fit = lasts.start - start
            piece = panel.between(start, min(lasts.stop + _AFTER, panel.n_bars))
            with suppress(MarketError):  # it is too short for the features
                compute_features(piece, fit, config.features)
                subjects = AuditSubjects(piece, config, Split(fit, fit + 1, piece.n_bars), near=True)
                probes = [Probe(fit + row, kind) for row in range(len(lasts)) for kind in _EVERYWHERE]
                yield piece, subjects, probes + [Probe(fit + row, "crash") for row in range(0, len(lasts), _LEVEL)]
                break


def single_bars(panel: MarketPanel, split: Split, first: int, lag: int, seed: int) -> list[range]:
    """A month in each window, drawn, and single days that stand out in training and in the test."""
    rng = np.random.default_rng([seed, 23])
    ends = (first, split.train_end, split.validation_end, split.test_end - lag - 2)
    windows = [range(max(start, first), stop) for start, stop in pairwise(ends)]
    chosen = []
    for window in windows:
        begin = int(rng.integers(window.start, window.stop - _MONTH + 1)) if len(window) > _MONTH else window.start
        if window:
            chosen.append(range(begin, min(begin + _MONTH, window.stop)))
    days = _notable_days(panel, windows[0]) | _notable_days(panel, windows[2])
    return chosen + [range(day, day + 1) for day in sorted(days) if not any(day in run for run in chosen)]


def _notable_days(panel: MarketPanel, window: range) -> set[int]:
    """Days of a window on which a leak of few days may show."""
    if len(window) < 2:
        return set()
    bars = np.array(window)
    with np.errstate(invalid="ignore"):
        moves = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    known = np.isfinite(moves)
    market = np.where(known, moves, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    size = np.convolve(market * market, np.ones(21))[: len(market)][bars]
    months = panel.dates.astype("datetime64[Y]")
    ahead = market[np.minimum(bars + 1, panel.n_bars - 1)]
    days = {int(bars[pick]) for pick in (size.argmax(), size.argmin(), ahead.argmax(), ahead.argmin())}
    days.add(int(bars[:-1][np.diff(panel.dates)[bars[:-1]].argmax()]))
    turns = np.flatnonzero(months[bars[:-1] + 1] != months[bars[:-1]])
    days |= {int(bars[turns[-1]])} if turns.size else set()
    changes = np.flatnonzero((panel.listed[bars[:-1] + 1] != panel.listed[bars[:-1]]).any(axis=1))
    return days | {int(bars[change]) for change in changes[:2]}
