"""Configuration: which of four levels wins, what a mistake says, and that files and hashes can be relied on."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from finflow import FinFlowTrainer, make_env
from finflow.config import (
    Config,
    as_config,
    changed_config,
    config_hash,
    describe_schema,
    dump_config,
    flatten,
    load_config,
)
from finflow.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(overrides: dict[str, object], environ: dict[str, str] | None = None, path: Path | None = None) -> str:
    """The one line that a mistake is answered with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, environ or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the four levels


def test_each_level_yields_to_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "bcell: {gamma: 1.5, tau: 0.1, cql_alpha: 7}\n")  # a replaced mistake is no error
    environ = {"FINFLOW_BCELL__GAMMA": "0.92", "FINFLOW_BCELL__TAU": "0.2"}
    config = load_config(path, {"bcell.gamma": "0.93"}, environ).bcell
    assert (config.gamma, config.tau, config.cql_alpha, config.critic_lr) == (0.93, 0.2, 7.0, 1e-3)
    monkeypatch.setenv("FINFLOW_TRAIN__SEED", "7")
    assert load_config().train.seed == 7


def test_a_nested_section_can_be_set_from_every_level(tmp_path: Path) -> None:
    path = written(tmp_path, "train:\n  entropy_schedule:\n    kind: cosine\n")
    config = load_config(
        path, {"train.entropy_schedule.steps": "50"}, {"FINFLOW_TRAIN__ENTROPY_SCHEDULE__INITIAL": "0.5"}
    )
    schedule = config.train.entropy_schedule
    assert (schedule.kind, schedule.steps, schedule.initial, schedule.final) == ("cosine", 50, 0.5, 0.001)
    whole = load_config(None, {"bcell": "{gamma: 0.9}"}, {"FINFLOW_BCELL__TAU": "0.3"}).bcell
    assert (whole.gamma, whole.tau) == (0.9, 0.3)


@pytest.mark.parametrize("text", ["", "# nothing\nmarket:\nbcell: {}\n"])
def test_empty_files_and_empty_sections_leave_the_defaults(text: str, tmp_path: Path) -> None:
    assert load_config(written(tmp_path, text), {}, {"BCELL__GAMMA": "7", "finflow_x": "1"}) == Config()


# --- values


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("bcell.actor_lr", "1e-4", 1e-4),
        ("bcell.memory_capacity", "50_000", 50_000),
        ("market.tickers", "ON NO Y", ("ON", "NO", "Y")),
        ("market.tickers", "[ON, NO, Y, AAPL]", ("ON", "NO", "Y", "AAPL")),
        ("market.tickers", "AAPL,MSFT, JPM", ("AAPL", "MSFT", "JPM")),
        ("market.tickers", "7203.T", ("7203.T",)),
        ("market.tickers", "null", None),
        ("market.benchmark", "'ON'", "ON"),
        ("market.path", "2020", Path("2020")),
        ("market.start", "1995-06-30", dt.date(1995, 6, 30)),
        ("train.save_best", "false", False),
    ],
)
def test_text_is_read_as_the_key_needs(key: str, text: str, value: object) -> None:
    assert attrgetter(key)(load_config(None, {key: text}, {})) == value


# --- mistakes: the key, the value, where it was given, what is allowed


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"bcell.gamma": "1.5"}, ["bcell.gamma = 1.5", "above 0 and below 1"]),
        ({"bcell.gamma": "'0.9'"}, ["bcell.gamma = '0.9'", "a number"]),
        ({"bcell.gamma": "true"}, ["bcell.gamma = true", "a number"]),
        ({"bcell.gamma": ".nan"}, ["bcell.gamma = .nan", "a number"]),
        ({"bcell.alpha_init": ".inf"}, ["bcell.alpha_init = .inf", "above 0"]),
        ({"bcell.hidden_dim": "1e99"}, ["bcell.hidden_dim", "at most 8192"]),
        ({"bcell.cql_alpha": "9" * 400}, ["bcell.cql_alpha = 999", "a number"]),
        ({"train.n_envs": "0"}, ["train.n_envs = 0", "at least 1"]),
        ({"train.n_envs": "2.5"}, ["train.n_envs = 2.5", "a whole number"]),
        ({"train.seed": True}, ["train.seed = true", "a whole number"]),
        ({"train.save_best": "1"}, ["train.save_best = 1", "true or false"]),
        ({"env.fill": "mid"}, ["env.fill = 'mid'", "one of close, open"]),
        ({"objectives.cvar_target": "0.02"}, ["objectives.cvar_target = 0.02", "at most 0"]),
        ({"market.train_end": "2011-02-31"}, ["market.train_end = '2011-02-31'", "a date"]),
        ({"market.start": "[1990"}, ["market.start = '[1990'", "a date"]),
        ({"market.tickers": "[1, 2]"}, ["market.tickers = [1, 2]", "a list of names"]),
        ({"train.entropy_schedule.kind": "steep"}, ["linear, cosine, exponential"]),
        ({"train.entropy_schedule": "steep"}, ["train.entropy_schedule = 'steep'", "train.entropy_schedule.kind"]),
        ({"bcell": "[a"}, ["bcell = '[a'", "not valid YAML"]),
        ({"market.test_end": "2010-01-01"}, ["market.test_end = 2010-01-01", "market.validation_end = 2015-12-31"]),
        ({"market.start": "2012-01-01"}, ["market.train_end = 2011-12-31", "after market.start"]),
        ({"market.tickers": "[]"}, ["market.tickers = []", "at least one asset"]),
        ({"market.tickers": "[A, B, A]"}, ["market.tickers", "A more than once"]),
        ({"market.tickers": "['']"}, ["market.tickers", "empty name"]),
        ({"market.source": "csv"}, ["market.path = null", "market.source = csv"]),
        ({"market.source": "yfinance"}, ["market.tickers = null", "market.source = yfinance"]),
        (
            {"bcell.n_quantiles": 2, "bcell.dropped_quantiles": 2},
            ["bcell.dropped_quantiles = 2", "bcell.n_quantiles = 2"],
        ),
        ({"train.entropy_schedule.final": 1.0}, ["train.entropy_schedule.final = 1.0", "initial = 0.01"]),
        ({"bcell.risk_measure": "cvar", "online.algorithm": "ppo"}, ["bcell.risk_measure = cvar"]),
        ({"tune.objective": "sharp"}, ["did you mean sharpe?"]),
        ({"tune.objective": "sharpe,sharpe"}, ["none of them twice"]),
        ({"tune.objective": []}, ["one objective at least"]),
        ({"online.reference": "pretrained"}, ["online.reference = pretrained needs an on-policy online.algorithm"]),
    ],
)
def test_an_impossible_value_and_keys_that_contradict_each_other_are_named(
    overrides: dict[str, object], words: list[str]
) -> None:
    message = complaint(overrides)
    for word in [*words, "overrides"]:
        assert word in message


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("bcell.gama", "bcell.gamma"),
        ("gamma", "bcell.gamma"),
        ("BCELL.GAMMA", "bcell.gamma"),
        ("bcel", "bcell"),
        ("train.entropy_schedule.kinds", "train.entropy_schedule.kind"),
        ("env.fill.price", "env.fill"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(wrong: str, nearest: str) -> None:
    assert re.search(
        rf"unknown key {re.escape(wrong)} .*nearest valid key is {re.escape(nearest)}$", complaint({wrong: 1})
    )


def test_a_mistake_in_a_file_is_placed_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, "market:\n  source: embedded\nbcell:\n  gamma: 1.5\n")
    assert f"bcell.gamma = 1.5 ({path}, line 4)" in complaint({}, path=path)
    path = written(tmp_path, "market:\n  source: embedded\n  sauce: 3\n")
    assert f"unknown key market.sauce ({path}, line 3)" in complaint({}, path=path)
    path = written(tmp_path, "\nbcell: 3\n")
    assert f"bcell = 3 ({path}, line 2)" in complaint({}, path=path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FINFLOW_BCELL_GAMMA", "FINFLOW_BCELL__GAMMA"),
        ("FINFLOW_GAMMA", "FINFLOW_BCELL__GAMMA"),
        ("FINFLOW_BCELL__GAMMA", "bcell.gamma = 1.5 (environment variable FINFLOW_BCELL__GAMMA)"),
    ],
)
def test_a_mistake_in_the_environment_is_named_with_the_right_variable(name: str, words: str) -> None:
    message = complaint({}, {name: "1.5"})
    assert name in message
    assert words in message


def test_of_several_mistakes_the_first_is_told_and_the_others_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "bcell: {gama: 1, tau: 3}\ntrain: {seed: x}\n")
    message = complaint({"env.fill": "mid"}, path=path)
    assert message.startswith("unknown key bcell.gama")
    assert message.endswith("(and 3 more mistakes)")
    assert complaint({"bcell.tau": 3, "train.seed": -1}).endswith("(and 1 more mistake)")


NUMBERS = 'reads such names as numbers without quotes: write ["005930", "TRUE"]'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tickers: [005930, 000660]", NUMBERS),
        ("tickers:\n  - ON\n  - 000660", NUMBERS),
        ("tickers: [ON, TRUE]", "reads such names as true or false without quotes: write ["),
        ("tickers: [AAPL, NULL]", "as null without quotes"),
        ("tickers: 2011-01-02", 'as dates without quotes: write "005930"'),
        ("benchmark: 000300", 'a name or null; YAML reads such names as numbers without quotes: write "005930"'),
    ],
)
def test_names_without_quotes_are_told_apart_from_what_yaml_makes_of_them(text: str, said: str, tmp_path: Path) -> None:
    message = complaint({}, path=written(tmp_path, f"market:\n  {text}\n"))
    assert "mine.yaml, line 2" in message
    assert said in message


def test_a_name_that_is_set_alone_stays_text_and_a_list_is_shown_with_quotes_for_the_shell() -> None:
    for text in ("005930,000660", "TRUE ON", '["005930", "TRUE"]'):
        assert load_config(None, {"market.tickers": text}, {}).market.tickers == tuple(re.findall(r"\w+", text))
    with pytest.raises(ConfigError, match=re.escape('write --set market.tickers=\'["005930", "TRUE"]\'')):
        load_config(None, {"market.tickers": "[005930, 000660]"}, {}, origin="command line")


QUOTES = "write paths in single quotes, or with / instead of \\"


@pytest.mark.parametrize(
    ("path", "escape"), [(r"C:\temp\new", "t"), (r"C:\new", "n"), (r"\\a\best", "b"), (r"C:\0", "0"), (r"D:\Lab", "L")]
)
def test_a_path_in_double_quotes_whose_backslashes_yaml_reads_is_refused(
    path: str, escape: str, tmp_path: Path
) -> None:
    keys = [key for key, allowed, *_ in describe_schema() if "a path" in allowed]
    assert {"market.path", "market.cash_rate", "online.reference", "output.logs_dir"} < {*keys}
    for key in [*keys, "offline.decisions"]:
        section, *inner, name = key.split(".")
        line = "".join(f"{part}: {{" for part in inner) + f'{name}: "{path}"' + "}" * len(inner)
        message = complaint({}, path=written(tmp_path, f"{section}:\n  {line}\n"))
        assert message.startswith(f"{key} = ")
        assert f"YAML reads \\{escape} in double quotes as one character: {QUOTES}" in message
        with pytest.raises(ConfigError, match=re.escape(QUOTES)):
            changed_config(Config(), {key: yaml.safe_load(f'"{path}"')})


@pytest.mark.parametrize("path", [r"C:\Users\me\p.csv", r"D:\data\x.csv", r"C:\xin"])
def test_a_path_in_double_quotes_that_is_no_yaml_says_how_to_write_it(path: str, tmp_path: Path) -> None:
    message = complaint({}, path=written(tmp_path, f'market:\n  path: "{path}"\n'))
    assert "line 2: not valid YAML: " in message
    assert f"\\ begins an escape in double quotes: {QUOTES}" in message
    assert load_config(written(tmp_path, f"market:\n  path: '{path}'\n"), {}, {}).market.path == Path(path)


# --- files that cannot be read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bcell:\n  gamma: [0.9\n", "line 3: not valid YAML: "),
        ("bcell:\n\tgamma: 0.9\n", "line 2: not valid YAML: "),
        ("market:\n  source: csv\n  source: parquet\n", "line 3: not valid YAML: "),
        ("a: 1\nb: !!python/object:os.system x\n", "line 2: not valid YAML: "),
        ("a: 1\n--- \nb: 1\n", "line 2: not valid YAML: "),
        ("a: 1\nb: \x07\n", "line 2: not valid YAML: "),
        ("- a\n- b\n", "line 1: must hold sections"),
        ("3\n", "line 1: must hold sections"),
    ],
)
def test_malformed_yaml_and_a_file_without_sections_are_named_with_the_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = written(tmp_path, text)
    assert complaint({}, path=path).startswith(f"{path}, {said}")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("bcell.gamma", "!!float x"),
        ("market.train_end", "!!timestamp x"),
        ("train.save_best", "!!bool x"),
        ("train.seed", "!!int x"),
    ],
)
def test_text_under_the_tag_of_another_type_is_one_line(key: str, text: str, tmp_path: Path) -> None:
    assert complaint({key: text}).startswith(f"{key} = ")
    section, name = key.split(".")
    path = written(tmp_path, f"{section}:\n  {name}: {text}\n")
    assert str(path) in complaint({}, path=path)


def test_a_missing_file_a_folder_and_a_binary_file_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert complaint({}, path=missing) == f"configuration file {missing} does not exist"
    assert str(tmp_path) in complaint({}, path=tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "not UTF-8" in complaint({}, path=binary)
    deep = written(tmp_path, "[" * 5_000)
    assert str(deep) in complaint({}, path=deep)


# --- writing and identifying


@settings(max_examples=30)
@given(
    gamma=st.floats(1e-9, 1 - 1e-9),
    capital=st.floats(1e-300, 1e300),
    tickers=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4, unique=True),
    start=st.dates(dt.date(1900, 1, 1), dt.date(2011, 1, 1)),
)
def test_what_is_written_reads_back_equal(
    gamma: float, capital: float, tickers: list[str], start: dt.date, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = Config.model_validate(
        {
            "market": {"tickers": tickers, "start": start, "path": "a b/c: d"},
            "env": {"initial_capital": capital},
            "bcell": {"gamma": gamma},
        }
    )
    assert load_config(written(tmp_path_factory.mktemp("written"), dump_config(config)), {}, {}) == config


@pytest.mark.parametrize("ticker", ["ON", "1e5", "é\x85", "null", "~", "2011-01-01", "0700", "=", "-", "a: b"])
def test_tickers_that_look_like_something_else_survive_the_file(tmp_path: Path, ticker: str) -> None:
    config = Config.model_validate({"market": {"tickers": [ticker, "AAPL"]}})
    assert load_config(written(tmp_path, dump_config(config)), {}, {}) == config


def test_the_hash_is_that_of_the_values_wherever_they_came_from(tmp_path: Path) -> None:
    config = load_config(None, {"bcell.gamma": "0.9"}, {})
    assert config_hash(config) == config_hash(load_config(None, {}, {"FINFLOW_BCELL__GAMMA": "0.90"}))
    assert config_hash(config) == config_hash(load_config(written(tmp_path, dump_config(config)), {}, {}))
    code = "from finflow.config import Config, config_hash; print(config_hash(Config()))"
    environ = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(CONFIGS.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == config_hash(Config())


NOT_DECIDING = {
    *("market.cache_dir", "market.use_cache", "market.extend_cache"),
    *("train.save_latest", "train.max_checkpoints", "train.profile", "train.seeds"),
    "objectives.workers",
}
OTHER: dict[str, object] = {
    "market.align": "intersection",
    "market.bars_per_year": 365,
    **{"market.path": "prices.csv", "market.tickers": ["AAPL"]},
    **{"market.benchmark": "SPX", "market.start": "1995-01-01", "market.test_end": "2020-01-01"},
    **{"features.extra": ["mine:value@growth"], "offline.decisions": ["mine.csv"]},
    **{"evaluation.protocol.purge": 10, "trading.retrain.window": 500},
    **{"objectives.reward": "ranking", "objectives.rewards": [{"name": "ranking", "weight": 2.0}]},
    **{"preferences.judge.rules": ["loss <= 0.1"], "preferences.judge.strategies": ["equal-weight", "olmar"]},
    **{"train.entropy_schedule.steps": 500, "train.target_entropy_schedule.steps": 500},
    **{"bcell.anchor.final": 0.5, "bcell.anchor.updates": 500},
    **{"online.epochs": 4, "online.minibatch": 32},
    **{"tune.objective": ["calmar", "dsr"], "tune.name": "mine", "tune.storage": "journal:trials.log"},
    **{"tune.space": {"bcell.gamma": {"low": 0.9, "high": 0.99}}, "output.readings": "elsewhere.jsonl"},
    **{f"market.synthetic.{name}": 0.01 for name in ("drift", "edge")},
    **{f"market.synthetic.{name}": 0.2 for name in ("volatility", "correlation", "persistence")},
    "market.synthetic.defensive_ratio": 0.5,
}
"""Another value of the keys whose default gives none."""
LEARNED = {"objectives.reward": "preference", "objectives.preference.model": "model.safetensors"}
NEEDED: dict[str, dict[str, object]] = {
    "market.synthetic.": {"market.synthetic.kind": "regime"},  # which has every parameter
    "market.source": {"market.tickers": ["AAPL"]},
    "market.dividends": {"market.source": "csv", "market.path": "prices.csv"},
    "online.reference": {"online.algorithm": "ppo"},
    "objectives.preference.paid": {**LEARNED, "online.algorithm": "ppo"},
}
"""What the keys need that cannot be given alone."""


def another(key: str, value: object, allowed: str) -> object:
    """A value of a key that is allowed and not the default."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 if value else 1
    if isinstance(value, float):
        return value / 2 if value else 0.01
    if isinstance(value, dt.date):
        return value - dt.timedelta(days=1)
    if isinstance(value, Path):
        return "elsewhere"
    return next(choice for choice in allowed.removeprefix("one of ").split(", ") if choice != value)


@pytest.mark.parametrize(("key", "allowed"), [row[:2] for row in describe_schema()])
def test_the_hash_changes_with_every_key_that_decides_results(key: str, allowed: str) -> None:
    shared = NEEDED.get("market.synthetic." if key.startswith("market.synthetic.") else key, {})
    base = load_config(None, shared, {})
    value = another(key, attrgetter(key)(base), allowed)
    changed = load_config(None, {**shared, key: value}, {})
    assert changed != base
    assert (config_hash(changed) == config_hash(base)) == (
        key in NOT_DECIDING or key.startswith(("output.", "trading.", "tune.", "preferences."))
    )


def test_epochs_that_never_happen_decide_nothing() -> None:
    """On-policy learning has no blocks, one block is none, and none is pretrained longer than the agent itself."""

    def hashes(**keys: object) -> set[str]:
        given = {key.replace("__", "."): value for key, value in keys.items()}
        return {
            config_hash(load_config(None, {**given, "out_of_fold.pretraining_epochs": epochs}, {})) for epochs in (3, 4)
        }

    assert len(hashes()) == 2
    assert len(hashes(train__offline_training_epochs=3)) == 1
    assert len(hashes(online__algorithm="ppo")) == 1
    assert len(hashes(offline__method="none")) == 1
    assert len(hashes(out_of_fold__blocks=1)) == 1


# --- what ships


def test_the_default_file_lists_every_key_with_its_default() -> None:
    path = CONFIGS / "default.yaml"
    assert load_config(path, {}, {}) == Config()
    rows = list(describe_schema())
    assert list(flatten(yaml.safe_load(path.read_text("utf-8")))) == [key for key, *_ in rows]
    assert all(allowed and description for _, allowed, _, description in rows)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_that_ships_loads(path: Path) -> None:
    load_config(path, {}, {})


@pytest.mark.parametrize(("name", "values"), [("volatile", (1.0, 10.0, 10.0, 0.5)), ("calm", (0.5, 5.0, 5.0, 0.1))])
def test_a_preset_changes_only_what_was_promised(name: str, values: tuple[float, ...]) -> None:
    names = ("bcell.alpha_init", "bcell.cql_alpha", "objectives.lambda_cvar", "objectives.lambda_turn")
    promised = dict(zip(names, values, strict=True))
    assert load_config(CONFIGS / f"{name}.yaml", {}, {}) == load_config(None, promised, {})


# --- what a study searches


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"bcell.gama": {"low": 0.9, "high": 0.99}}, "unknown key bcell.gama in tune.space (overrides): the nearest"),
        ({"bcell.gamma": {"low": 0.9, "high": 1.5}}, "bcell.gamma = 1.5 in tune.space (overrides): must be a number"),
        ({"bcell.hidden_dim": {"low": 8.5, "high": 64}}, "bcell.hidden_dim = 8.5 in tune.space"),
        ({"market.cash_rate": {"low": 0.0, "high": 0.1}}, "market.cash_rate in tune.space (overrides) cannot be"),
        ({"train.seed": {"low": 0, "high": 9}}, "train.seed in tune.space (overrides) cannot be searched"),
        ({"bcell.gamma": {"low": 0.9}}, "bcell.gamma in tune.space (overrides): low and high are needed"),
        ({"bcell.gamma": {"low": 0.99, "high": 0.9}}, "low = 0.99 is above high = 0.9"),
        ({"bcell.tau": {"low": 0.0, "high": 0.1, "log": True}}, "log needs low above 0"),
        ({"bcell.tau": {"low": 0.1, "high": 0.2, "choices": [1]}}, "choices stand alone"),
        ({"bcell.tau": {"hihg": 0.1}}, "bcell.tau.hihg in tune.space"),
        ({}, "there is nothing to search"),
    ],
)
def test_a_mistake_in_the_space_is_named_with_its_key(space: dict[str, object], words: str) -> None:
    assert words in complaint({"tune.space": space})


def test_a_space_in_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = written(
        tmp_path, "tune: {space: {bcell.tau: {low: 1e-3, high: 0.1, log: true}, train.best_by: {choices: [sharpe]}}}"
    )
    config = load_config(path, {}, {})
    assert load_config(written(tmp_path, dump_config(config)), {}, {}) == config
    assert config.tune.space is not None
    assert (config.tune.space["bcell.tau"].log, config.tune.space["train.best_by"].choices) == (True, ("sharpe",))


def test_a_key_of_a_configuration_says_how_it_is_changed() -> None:
    config = Config()
    for section, key in ((config.bcell, "bcell.gamma"), (config.guard.rollback, "guard.rollback.save_interval")):
        with pytest.raises(ConfigError, match=re.escape(f"{key} cannot be changed in a configuration: make another")):
            setattr(section, key.rpartition(".")[2], 0.5)
    assert config == Config()


def test_a_path_stands_for_the_configuration_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "train: {seed: 3}\nmarket: {source: synthetic}\n")
    assert as_config(path) == as_config(str(path)) == as_config(load_config(path))
    with pytest.raises(ConfigError, match="a Config or the path of a YAML file, not dict"):
        as_config({"train.seed": 3})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not int"):
        FinFlowTrainer(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not list"):
        make_env([])  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        FinFlowTrainer("none.yaml")
    assert make_env(str(path)).action_space.shape == (load_config(path).market.synthetic.assets + 1,)


def test_a_configuration_with_other_values_is_checked_like_any_other() -> None:
    changed = changed_config(Config(), {"bcell.gamma": 0.5, "train.best_by": "sharpe"})
    assert (changed.bcell.gamma, changed.train.best_by) == (0.5, "sharpe")
    assert changed_config(changed, {"bcell.gamma": 0.99, "train.best_by": "value"}) == Config()
    with pytest.raises(ConfigError, match=r"dropped_quantiles = 2 must be below bcell\.n_quantiles = 2"):
        changed_config(changed_config(Config(), {"bcell.dropped_quantiles": 2}), {"bcell.n_quantiles": 2})
