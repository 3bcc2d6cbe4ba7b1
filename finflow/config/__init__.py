"""Configuration: one typed schema, how it is read, and how it is identified."""

from finflow.config.agent_section import AnchorConfig, AveragingConfig, BCellConfig
from finflow.config.environment_section import CostsConfig, EnvConfig, ObjectivesConfig, WorldsConfig
from finflow.config.evaluation_section import (
    OBJECTIVES,
    EvaluationConfig,
    ProtocolConfig,
    SearchedConfig,
    TaxConfig,
    TuneConfig,
    period_of,
)
from finflow.config.loading import (
    ENVIRONMENT_PREFIX,
    SEARCHABLE,
    SPACE,
    changed_config,
    config_hash,
    dump_config,
    dump_run,
    flatten,
    hyperparameters,
    leaves,
    load_config,
    present_keys,
)
from finflow.config.market_section import LENSES, FeaturesConfig, MarketConfig, SyntheticConfig
from finflow.config.online_section import OnlineConfig
from finflow.config.schema import Config, OutputConfig, changed_keys, describe_schema, holds_whole_numbers
from finflow.config.trading_section import TradingConfig
from finflow.config.training_section import (
    EntropyScheduleConfig,
    GuardConfig,
    OfflineConfig,
    RewardNormalizationConfig,
    RollbackConfig,
    StabilityConfig,
    TargetEntropyScheduleConfig,
    TrainConfig,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "LENSES",
    "OBJECTIVES",
    "SEARCHABLE",
    "SPACE",
    "AnchorConfig",
    "AveragingConfig",
    "BCellConfig",
    "Config",
    "CostsConfig",
    "EntropyScheduleConfig",
    "EnvConfig",
    "EvaluationConfig",
    "FeaturesConfig",
    "GuardConfig",
    "MarketConfig",
    "ObjectivesConfig",
    "OfflineConfig",
    "OnlineConfig",
    "OutputConfig",
    "ProtocolConfig",
    "RewardNormalizationConfig",
    "RollbackConfig",
    "SearchedConfig",
    "StabilityConfig",
    "SyntheticConfig",
    "TargetEntropyScheduleConfig",
    "TaxConfig",
    "TradingConfig",
    "TrainConfig",
    "TuneConfig",
    "WorldsConfig",
    "changed_config",
    "changed_keys",
    "config_hash",
    "describe_schema",
    "dump_config",
    "dump_run",
    "flatten",
    "holds_whole_numbers",
    "hyperparameters",
    "leaves",
    "load_config",
    "period_of",
    "present_keys",
]
