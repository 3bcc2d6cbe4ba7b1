"""finflow: portfolio-trading agents trained offline-to-online, and an honest answer to whether they are worth trading.

The names below are loaded when they are first used, so that ``import finflow`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finflow.agent.learners.bcell import BCell
    from finflow.config import Config, load_config
    from finflow.env.portfolio_env import PortfolioEnv
    from finflow.env.vector_env import PortfolioVectorEnv
    from finflow.errors import FinflowError
    from finflow.guard.rollback import RollbackManager
    from finflow.guard.stability import StabilityMonitor
    from finflow.training.make_env import make_env
    from finflow.training.trainer import FinFlowTrainer

__all__ = [
    "BCell",
    "Config",
    "FinFlowTrainer",
    "FinflowError",
    "PortfolioEnv",
    "PortfolioVectorEnv",
    "RollbackManager",
    "StabilityMonitor",
    "load_config",
    "make_env",
]

_HOMES = {
    "BCell": "finflow.agent.learners.bcell",
    "Config": "finflow.config",
    "FinFlowTrainer": "finflow.training.trainer",
    "FinflowError": "finflow.errors",
    "PortfolioEnv": "finflow.env.portfolio_env",
    "PortfolioVectorEnv": "finflow.env.vector_env",
    "RollbackManager": "finflow.guard.rollback",
    "StabilityMonitor": "finflow.guard.stability",
    "load_config": "finflow.config",
    "make_env": "finflow.training.make_env",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'finflow' has no attribute {name!r}")
