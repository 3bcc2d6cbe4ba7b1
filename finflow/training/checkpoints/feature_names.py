"""Names of the features that an agent reads, as its file keeps them, and their comparison with those of a market."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from finflow.errors import CheckpointError
from finflow.market.features.feature_set import Features


def feature_names(features: Features) -> dict[str, list[str]]:
    """Names of the features, as a checkpoint keeps them."""
    return {"assets": list(features.asset_names), "market": list(features.market_names)}


def check_feature_names(path: Path, trained: Mapping[str, Sequence[str]] | None, features: Features) -> None:
    """An agent reads the features that it was trained on, by name and in their order; not all markets give the same.

    Parameters
    ----------
    path : Path
        Of the agent's file, for messages.
    trained : mapping or None
        What the file says of its features.
    features : Features
        Of the market.

    Raises
    ------
    CheckpointError
        If the file does not say its features, or a market's are others.
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
