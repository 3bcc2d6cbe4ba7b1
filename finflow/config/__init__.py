"""Configuration: one typed schema, how it is read, and how it is identified."""

from finflow.config.agent_section import ActingConfig, AnchorConfig, AveragingConfig, BCellConfig, MirroredConfig
from finflow.config.environment_section import (
    CostsConfig,
    EnvConfig,
    ObjectivesConfig,
    PreferenceConfig,
    RankingConfig,
)
from finflow.config.evaluation_section import (
    OBJECTIVES,
    RANKING_OBJECTIVES,
    EvaluationConfig,
    ProtocolConfig,
    SearchedConfig,
    TaxConfig,
    TuneConfig,
)
from finflow.config.loading import (
    ENVIRONMENT_PREFIX,
    SPACE,
    changed_config,
    config_hash,
    dump_config,
    dump_run,
    flatten,
    hyperparameters,
    leaves,
    load_config,
    replace_values,
    values_by_key,
)
from finflow.config.market_section import LENSES, FeaturesConfig, MarketConfig, SyntheticConfig
from finflow.config.online_section import OnlineConfig
from finflow.config.schema import Config, OutputConfig, changed_keys, describe_schema, holds_whole_numbers
from finflow.config.trading_section import AlpacaConfig, RetrainConfig
from finflow.config.training_section import (
    EntropyScheduleConfig,
    RewardNormalizationConfig,
    RollbackConfig,
    StabilityConfig,
    TargetEntropyScheduleConfig,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "LENSES",
    "OBJECTIVES",
    "RANKING_OBJECTIVES",
    "SPACE",
    "ActingConfig",
    "AlpacaConfig",
    "AnchorConfig",
    "AveragingConfig",
    "BCellConfig",
    "Config",
    "CostsConfig",
    "EntropyScheduleConfig",
    "EnvConfig",
    "EvaluationConfig",
    "FeaturesConfig",
    "MarketConfig",
    "MirroredConfig",
    "ObjectivesConfig",
    "OnlineConfig",
    "OutputConfig",
    "PreferenceConfig",
    "ProtocolConfig",
    "RankingConfig",
    "RetrainConfig",
    "RewardNormalizationConfig",
    "RollbackConfig",
    "SearchedConfig",
    "StabilityConfig",
    "SyntheticConfig",
    "TargetEntropyScheduleConfig",
    "TaxConfig",
    "TuneConfig",
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
    "replace_values",
    "values_by_key",
]
