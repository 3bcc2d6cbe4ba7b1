"""finflow: portfolio-trading agents trained offline-to-online, and an honest answer to whether they are worth trading.

The names below are loaded when they are first used, so that ``import finflow`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finflow.agent.batch import ReplayBuffer as ReplayBuffer
    from finflow.agent.learners.bcell import BCell as BCell
    from finflow.agent.on_policy.on_policy_settings import (
        PPO_PRESETS as PPO_PRESETS,
        EntropyScheduleConfig as EntropyScheduleConfig,
        EntropyScheduler as EntropyScheduler,
    )
    from finflow.config import Config as Config, RollbackConfig as RollbackConfig, load_config as load_config
    from finflow.env.rewards.ranking_reward import create_reward_function as create_reward_function
    from finflow.env.vector_env import PortfolioEnv as PortfolioEnv, PortfolioVectorEnv as PortfolioVectorEnv
    from finflow.errors import FinflowError as FinflowError
    from finflow.guard.checkpoint_manager import CheckpointManager as CheckpointManager
    from finflow.guard.checkpoint_settings import (
        CheckpointConfig as CheckpointConfig,
        CheckpointMetrics as CheckpointMetrics,
    )
    from finflow.guard.rollback import RollbackManager as RollbackManager
    from finflow.guard.saved_values import load_checkpoint as load_checkpoint, save_checkpoint as save_checkpoint
    from finflow.guard.stability import StabilityMonitor as StabilityMonitor
    from finflow.training.data.reward_normalizer import (
        RewardNormalizer as RewardNormalizer,
        RewardNormalizerConfig as RewardNormalizerConfig,
    )
    from finflow.training.data.training_data import make_env as make_env
    from finflow.training.on_policy.advanced_trainer import (
        AdvancedPPOTrainer as AdvancedPPOTrainer,
        train_advanced_ppo as train_advanced_ppo,
    )
    from finflow.training.trainer import FinFlowTrainer as FinFlowTrainer

_HOMES = {
    "agent.batch": ("ReplayBuffer",),
    "agent.learners.bcell": ("BCell",),
    "agent.on_policy.on_policy_settings": ("PPO_PRESETS", "EntropyScheduleConfig", "EntropyScheduler"),
    "config": ("Config", "RollbackConfig", "load_config"),
    "env.rewards.ranking_reward": ("create_reward_function",),
    "env.vector_env": ("PortfolioEnv", "PortfolioVectorEnv"),
    "errors": ("FinflowError",),
    "guard.checkpoint_manager": ("CheckpointManager",),
    "guard.checkpoint_settings": ("CheckpointConfig", "CheckpointMetrics"),
    "guard.rollback": ("RollbackManager",),
    "guard.saved_values": ("load_checkpoint", "save_checkpoint"),
    "guard.stability": ("StabilityMonitor",),
    "training.data.reward_normalizer": ("RewardNormalizer", "RewardNormalizerConfig"),
    "training.data.training_data": ("make_env",),
    "training.on_policy.advanced_trainer": ("AdvancedPPOTrainer", "train_advanced_ppo"),
    "training.trainer": ("FinFlowTrainer",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name == "__version__":
        return import_module("finflow.provenance").package_version()
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"finflow.{home}"), name)
    raise AttributeError(f"module 'finflow' has no attribute {name!r}")
