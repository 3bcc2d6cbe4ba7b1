"""finflow: portfolio-trading agents trained offline-to-online, and an honest answer to whether they are worth trading.

The names below are loaded when they are first used, so that ``import finflow`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finflow.agent.learners.bcell import BCell
    from finflow.agent.on_policy.schedules import EntropyScheduleConfig, EntropyScheduler
    from finflow.agent.replay_buffer import ReplayBuffer
    from finflow.config import Config, RollbackConfig, load_config
    from finflow.env.rewards.ranking_reward import create_reward_function
    from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
    from finflow.errors import FinflowError
    from finflow.guard.checkpoint_manager import CheckpointManager, CheckpointMetrics
    from finflow.guard.rollback import RollbackManager
    from finflow.guard.stability import StabilityMonitor
    from finflow.training.data.reward_normalizer import RewardNormalizer, RewardNormalizerConfig
    from finflow.training.make_env import make_env
    from finflow.training.on_policy.advanced_trainer import AdvancedPPOTrainer, train_advanced_ppo
    from finflow.training.trainer import FinFlowTrainer

__all__ = [
    "AdvancedPPOTrainer",
    "BCell",
    "CheckpointManager",
    "CheckpointMetrics",
    "Config",
    "EntropyScheduleConfig",
    "EntropyScheduler",
    "FinFlowTrainer",
    "FinflowError",
    "PortfolioEnv",
    "PortfolioVectorEnv",
    "ReplayBuffer",
    "RewardNormalizer",
    "RewardNormalizerConfig",
    "RollbackConfig",
    "RollbackManager",
    "StabilityMonitor",
    "create_reward_function",
    "load_config",
    "make_env",
    "train_advanced_ppo",
]

_HOMES = {
    "AdvancedPPOTrainer": "finflow.training.on_policy.advanced_trainer",
    "BCell": "finflow.agent.learners.bcell",
    "CheckpointManager": "finflow.guard.checkpoint_manager",
    "CheckpointMetrics": "finflow.guard.checkpoint_manager",
    "Config": "finflow.config",
    "EntropyScheduleConfig": "finflow.agent.on_policy.schedules",
    "EntropyScheduler": "finflow.agent.on_policy.schedules",
    "FinFlowTrainer": "finflow.training.trainer",
    "FinflowError": "finflow.errors",
    "PortfolioEnv": "finflow.env.vector_env",
    "PortfolioVectorEnv": "finflow.env.vector_env",
    "ReplayBuffer": "finflow.agent.replay_buffer",
    "RewardNormalizer": "finflow.training.data.reward_normalizer",
    "RewardNormalizerConfig": "finflow.training.data.reward_normalizer",
    "RollbackConfig": "finflow.config",
    "RollbackManager": "finflow.guard.rollback",
    "StabilityMonitor": "finflow.guard.stability",
    "create_reward_function": "finflow.env.rewards.ranking_reward",
    "load_config": "finflow.config",
    "make_env": "finflow.training.make_env",
    "train_advanced_ppo": "finflow.training.on_policy.advanced_trainer",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'finflow' has no attribute {name!r}")
