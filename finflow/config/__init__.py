"""Configuration: one typed schema, how it is read, and how it is identified."""

from finflow.config.agent_section import (
    ActingConfig as ActingConfig,
    AnchorConfig as AnchorConfig,
    AveragingConfig as AveragingConfig,
    BCellConfig as BCellConfig,
    MirroredConfig as MirroredConfig,
)
from finflow.config.environment_section import (
    CostsConfig as CostsConfig,
    EnvConfig as EnvConfig,
    ObjectivesConfig as ObjectivesConfig,
    PreferenceConfig as PreferenceConfig,
    RankingConfig as RankingConfig,
)
from finflow.config.evaluation_section import (
    OBJECTIVES as OBJECTIVES,
    RANKING_OBJECTIVES as RANKING_OBJECTIVES,
    EvaluationConfig as EvaluationConfig,
    ProtocolConfig as ProtocolConfig,
    SearchedConfig as SearchedConfig,
    TaxConfig as TaxConfig,
    TuneConfig as TuneConfig,
)
from finflow.config.loading import (
    ENVIRONMENT_PREFIX as ENVIRONMENT_PREFIX,
    SPACE as SPACE,
    changed_config as changed_config,
    config_hash as config_hash,
    dump_config as dump_config,
    dump_run as dump_run,
    flatten as flatten,
    hyperparameters as hyperparameters,
    load_config as load_config,
    replace_values as replace_values,
    values_by_key as values_by_key,
)
from finflow.config.market_section import (
    LENSES as LENSES,
    FeaturesConfig as FeaturesConfig,
    MarketConfig as MarketConfig,
    SyntheticConfig as SyntheticConfig,
)
from finflow.config.online_section import OnlineConfig as OnlineConfig
from finflow.config.schema import (
    Config as Config,
    OutputConfig as OutputConfig,
    changed_keys as changed_keys,
    describe_schema as describe_schema,
    holds_whole_numbers as holds_whole_numbers,
)
from finflow.config.trading_section import AlpacaConfig as AlpacaConfig, RetrainConfig as RetrainConfig
from finflow.config.training_section import (
    EntropyAnnealing as EntropyAnnealing,
    RewardNormalizationConfig as RewardNormalizationConfig,
    RollbackConfig as RollbackConfig,
    StabilityConfig as StabilityConfig,
    TargetEntropyAnnealing as TargetEntropyAnnealing,
)
