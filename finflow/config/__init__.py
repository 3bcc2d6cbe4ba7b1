"""Configuration: one typed schema, how it is read, and how it is identified."""

from finflow.config.evaluation_sections import (
    OBJECTIVES as OBJECTIVES,
    RANKING_OBJECTIVES as RANKING_OBJECTIVES,
    AlpacaConfig as AlpacaConfig,
    EvaluationConfig as EvaluationConfig,
    ProtocolConfig as ProtocolConfig,
    RetrainConfig as RetrainConfig,
    SearchedConfig as SearchedConfig,
    TaxConfig as TaxConfig,
    TuneConfig as TuneConfig,
)
from finflow.config.learning_sections import (
    ActingConfig as ActingConfig,
    AnchorConfig as AnchorConfig,
    AveragingConfig as AveragingConfig,
    BCellConfig as BCellConfig,
    EntropyAnnealing as EntropyAnnealing,
    MirroredConfig as MirroredConfig,
    OnlineConfig as OnlineConfig,
    RewardNormalizationConfig as RewardNormalizationConfig,
    RollbackConfig as RollbackConfig,
    StabilityConfig as StabilityConfig,
    TargetEntropyAnnealing as TargetEntropyAnnealing,
)
from finflow.config.loading import (
    ENVIRONMENT_PREFIX as ENVIRONMENT_PREFIX,
    SPACE as SPACE,
    as_config as as_config,
    changed_config as changed_config,
    changed_values as changed_values,
    config_hash as config_hash,
    dump_config as dump_config,
    dump_run as dump_run,
    flatten as flatten,
    hyperparameters as hyperparameters,
    load_config as load_config,
    replace_values as replace_values,
    values_by_key as values_by_key,
)
from finflow.config.market_sections import (
    LENSES as LENSES,
    CostsConfig as CostsConfig,
    EnvConfig as EnvConfig,
    FeaturesConfig as FeaturesConfig,
    MarketConfig as MarketConfig,
    ObjectivesConfig as ObjectivesConfig,
    PreferenceConfig as PreferenceConfig,
    RankingConfig as RankingConfig,
    SyntheticConfig as SyntheticConfig,
)
from finflow.config.schema import (
    Config as Config,
    OutputConfig as OutputConfig,
    describe_schema as describe_schema,
    holds_whole_numbers as holds_whole_numbers,
)
