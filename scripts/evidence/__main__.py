"""Measurements that take long, and the pages of docs/evidence from them: `make evidence`. Resumes where it stopped.

`python -m scripts.evidence PAGE` makes one page alone; ``--stale`` lists and marks those that other code made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from finflow.cli.exit_status import run_safely
from finflow.cli.options import positive_count
from finflow.config import Config
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence import (
    anytime,
    claims,
    durability_page,
    expert_heads,
    expert_market,
    foresight,
    guard_faults,
    later_years,
    null_markets,
    offline_methods,
    on_policy_tasks,
    optimality,
    positive_controls,
    preferences,
    preset_markets,
    rankings,
    rollout_controls,
    rollouts,
    transfer,
    tuning_evidence,
    walk_forward_nulls,
)
from scripts.evidence.results import OFFLINE_ALONE, Variant, kept_results, run_missing, write_result
from scripts.evidence.stale_pages import Deciding, mark_pages, marked
from scripts.replicate.comparison import replication_page

ROOT = Path(__file__).resolve().parents[2]
FOLDER, TEXTS = ROOT / "docs" / "evidence", Path(__file__).parent / "pages"
KEPT, RUNS = FOLDER / "results", ROOT / "data" / "evidence"
SB3_MARKET = ROOT / "scripts" / "peers" / "sb3_market.py"
DEMO = ROOT / "configs" / "demo.yaml"
EPOCHS = 6  # of the offline methods: an eighth of the default's limit, so that fifteen trainings take minutes
OFFLINE = tuple(
    Variant(
        f"offline-{method}",
        seeds=(0, 1, 2, 3),
        overrides={
            **OFFLINE_ALONE,
            "offline.method": method,
            "train.offline_training_epochs": EPOCHS,
            "offline.patience": 0,
        },
        measure=offline_methods.pretrain_and_measure,
    )
    for method in offline_methods.METHODS
)
HINT = "Made with: python -m venv peers && peers/bin/pip install -c constraints.txt -e . sb3-contrib"
PLANTED_SEEDS, CONTROL_SAMPLES, PEER_SAMPLES, LATER_SEEDS = 3, 2, 2, 1
TASK_FACTS = {"episodes": on_policy_tasks.EPISODES, "final": 5 * on_policy_tasks.EPISODES}

Make = Callable[[argparse.Namespace], None]
PAGES: dict[str, Make] = {}
"""Name of a page on the command line -> function that makes it."""


def registered(make: Make) -> Make:
    """Add a function that makes a page to `PAGES`."""
    PAGES[make.__name__.removeprefix("make_").replace("_", "-")] = make
    return make


def main(arguments: Sequence[str]) -> None:
    """Make what is missing, then write the pages."""
    shown = "\n".join(f"  {name:20}{make.__doc__}" for name, make in sorted(PAGES.items()))
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"pages:\n{shown}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["all", *PAGES], default="all", metavar="PAGE", help="one page")
    parser.add_argument("--seeds", type=positive_count, default=3, help="seeds of most trainings")
    parser.add_argument(
        "--kills", type=positive_count, default=50, metavar="N", help="durability: of an account's process"
    )
    parser.add_argument(
        "--sb3-python",
        type=_file_or("name the interpreter that has the peers"),
        metavar="PATH",
        help=f"optimality, tasks: peers too. {HINT}",
    )
    converted = "scripts/convert_relatives.py"
    parser.add_argument(
        "--nyse",
        type=_file_or(f"python {converted} writes such a file"),
        metavar="CSV",
        help=f"rollouts: prices of NYSE(O) too, by {converted}",
    )
    parser.add_argument("--stale", action="store_true", help="mark and list the pages that other code made; no more")
    given = parser.parse_args(arguments)
    if given.stale:
        print("\n".join(mark_pages(FOLDER)) or "the present code, or code of the same results, made every page")
        return
    # with another program on the second core, two threads of small operations wait for each other
    torch.set_num_threads(1)
    for name, make in PAGES.items():
        if given.what in ("all", name):
            make(given)


def _file_or(advice: str) -> Callable[[str], Path]:
    """Check of an option that a file is there: looked for now, and not after hours."""

    def present(text: str) -> Path:
        if not Path(text).is_file():
            raise argparse.ArgumentTypeError(f"there is no {text}; {advice}")
        return Path(text)

    return present


@registered
def make_foresight(given: argparse.Namespace) -> None:
    """Scores of honest strategies in the audit's test of foreknowledge, and of leaks by their size."""
    results = run_missing(foresight.foresight_variants(), _kept("foresight"), RUNS)
    _write("foresight", foresight.foresight_page(results), draws=foresight.DRAWS)


@registered
def make_guard(given: argparse.Namespace) -> None:
    """Faults injected into trainings, with the guard and without."""
    _page("guard", guard_faults.guard_variants(given.seeds), guard_faults.guard_table, fault_at=guard_faults.FAULT_AT)


@registered
def make_preferences(given: argparse.Namespace) -> None:
    """Reward models of synthetic judges, and agents that learn from them or from the true reward."""
    facts = {name: f"{value:g}" for name, value in preferences.GOALS.items()} | {"size": _listed(preferences.SHORTER)}
    _page("preferences", preferences.preference_variants(given.seeds), preferences.preference_table, **facts)


@registered
def make_presets(given: argparse.Namespace) -> None:
    """The presets for a volatile and a calm market, each beside the default on such a market."""
    size = _listed({**rollouts.SHORTER_OFFLINE, **rollouts.REDUCED})
    facts = {"stocks": 20, "test_years": preset_markets.TEST_YEARS, "samples": preset_markets.SAMPLES, "size": size}
    _page("presets", preset_markets.preset_variants(), preset_markets.preset_table, **facts)


@registered
def make_ranking(given: argparse.Namespace) -> None:
    """Agents that learn from a ranking where one is planted."""
    facts = {"goal": f"{rankings.GOAL:g}", "size": _listed(rankings.TRAINED)}
    _page("ranking", rankings.ranking_variants(given.seeds), rankings.rankings_table, **facts)


@registered
def make_experts(given: argparse.Namespace) -> None:
    """The five experts against one head, in a market in which their families lead in turn."""
    facts = {"assets": len(expert_market.ASSETS), "edge": f"{100 * expert_market.EDGE:g}"}
    _page("experts", expert_heads.expert_variants(given.seeds), expert_heads.expert_table, **facts)


@registered
def make_replication(given: argparse.Namespace) -> None:
    """Published tables computed anew, as far as their figures were kept."""
    _write("replication", replication_page(_kept("replication")))


@registered
def make_transfer(given: argparse.Namespace) -> None:
    """Agents on assets that they were not trained on, against agents trained on those assets."""
    _page("transfer", transfer.transfer_variants(), transfer.transfer_table)


@registered
def make_tuning(given: argparse.Namespace) -> None:
    """Results of a search, compared with random trials and with no search."""
    facts = {"trials": tuning_evidence.TRIALS, "fresh": tuning_evidence.FRESH}
    _page("tuning", tuning_evidence.tuning_variants(DEMO), tuning_evidence.tuning_table, **facts)


@registered
def make_durability(given: argparse.Namespace) -> None:
    """Trainings and accounts whose process is killed, faults of the disk, damaged files."""
    path = _kept("durability")
    result = durability_page.made_once(path, RUNS / "durability")
    kills = durability_page.kills_made_once(path, RUNS / "kills", given.kills)
    page = durability_page.durability_page(result) + "\n" + _text("kills", kills=len(kills["kills"]))
    _write("durability", page + durability_page.kills_page(kills))


@registered
def make_nulls(given: argparse.Namespace) -> None:
    """Error rate and power of the verdict, and of the sequential test of paper trading."""
    path = _kept("nulls")
    study, agent = null_markets.NullStudy(), null_markets.frozen_agent(DEMO, RUNS / "frozen")
    rows = null_markets.summarise_study(null_markets.study_markets(study, agent, RUNS / "nulls.jsonl"))
    write_result(path, "verdict", {"code": code_hash(), "samples": study.samples, "rows": rows})
    made = f"\nCode {code_hash()}; {study.samples} resamples a verdict, mean block 21 days.\n\n"
    joined = walk_forward_nulls.walk_forward_page(path, RUNS / "walk-forward-nulls.jsonl")
    made += _text("walk-forward-nulls") + joined + "\n"
    looks = _text("anytime", first_look=anytime.FIRST_LOOK) + anytime.anytime_page(path)
    _write("nulls", null_markets.study_table(rows) + made + looks)


@registered
def make_offline(given: argparse.Namespace) -> None:
    """The offline methods, compared with the families that they learn from."""
    results = run_missing(OFFLINE, _kept("offline"), RUNS)
    found = offline_methods.offline_table(results, offline_methods.family_results(Config()))
    _write("offline", found, results, rate=f"{100 * offline_methods.FamilyRule.rate:.0f}", epochs=EPOCHS)


@registered
def make_tasks(given: argparse.Namespace) -> None:
    """Learning on solved tasks that are no market, on-policy; peers where installed."""
    path = _kept("tasks")
    results = run_missing(on_policy_tasks.on_policy_variants(given.seeds), path, RUNS)
    if given.sb3_python is not None:
        on_policy_tasks.train_peers(given.sb3_python, given.seeds, path)
    tables = on_policy_tasks.on_policy_table(results, on_policy_tasks.kept_peers(path))
    _write("tasks", tables, results, **TASK_FACTS)


@registered
def make_optimality(given: argparse.Namespace) -> None:
    """Scores against the known optimum over the time of a training; of peers where installed."""
    path = _kept("optimality")
    variant = optimality.followed(rollouts.planted_variant(optimality.MARKET, PEER_SAMPLES))
    results = run_missing([variant], path, RUNS)
    if given.sb3_python is not None:
        for own in results:
            config = variant.config(own["seed"], RUNS)
            optimality.peers_on(own, config, (given.sb3_python, SB3_MARKET), path, optimality.limit_of(own))
    facts = {"goal": optimality.GOAL, "times": f"{optimality.TIMES:g}"}
    _write("optimality", optimality.optimality_table(results, optimality.kept_peers(path)), results, **facts)


@registered
def make_rollouts(given: argparse.Namespace) -> None:
    """Scores and evidence out of fold of online learning, with controls and on later years."""
    path = _kept("rollouts")
    results = run_missing(rollouts.rollout_variants(PLANTED_SEEDS), path, RUNS)
    if given.nyse is not None:
        run_missing(rollouts.nyse_variants(given.nyse), path, RUNS)
    nyse = [result for name, result in kept_results(path).items() if name.startswith("rollouts-nyse-")]
    controls = run_missing(rollout_controls.control_variants(CONTROL_SAMPLES), path, RUNS)
    later = run_missing(later_years.later_years_variants(LATER_SEEDS), path, RUNS)
    rules = positive_controls.measure_missing(positive_controls.controls(given.nyse), path)
    tables = [
        rollouts.rollout_table([*results, *nyse]),
        rollout_controls.control_table(controls),
        later_years.later_years_table(later),
        positive_controls.rule_table(rules),
    ]
    _write("rollouts", "\n" + "\n".join(tables), [*results, *nyse, *controls, *later])


@registered
def make_index(given: argparse.Namespace) -> None:
    """Every claim with its figure, and what is not shown; from kept results alone, after the other pages."""
    kept, present = claims.kept_pages(KEPT), code_hash()
    _write("index", claims.codes_line(kept, present), **claims.claims_facts(kept, FOLDER, present))


def _kept(page: str) -> Path:
    """The file of a page's results."""
    return KEPT / f"{page}.json"


def _page(
    name: str, variants: Sequence[Variant], tabled: Callable[[list[dict[str, Any]]], str], **facts: object
) -> None:
    """Train what is missing of some variants, and write the page of their table."""
    results = run_missing(variants, _kept(name), RUNS)
    _write(name, tabled(results), results, **facts)


def _write(name: str, content: str, results: Sequence[Mapping[str, Any]] = (), **facts: object) -> None:
    """Write a page: its text, its tables, and the provenance of the results."""
    present = Deciding.now()
    made = (_made(results) if results else "") + f"\nDefaults {present.defaults}.\n"
    write_atomically(FOLDER / f"{name}.md", marked(_text(name, **facts) + content + made, present))


def _text(name: str, **facts: object) -> str:
    """Text of a page before its tables, from scripts/evidence/pages."""
    environment = Environment(loader=FileSystemLoader(TEXTS), undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.get_template(f"{name}.md").render(facts)


def _listed(settings: Mapping[str, object]) -> str:
    """Keys and values in one sentence."""
    return ", ".join(f"`{key}` {value}" for key, value in settings.items())


def _made(results: Sequence[Mapping[str, Any]]) -> str:
    """Provenance of a table."""
    seconds = [sum(result["seconds"].values()) for result in results]
    codes = ", ".join(sorted({result["code"] for result in results}))
    span = f"{min(seconds):.0f} to {max(seconds):.0f} s each, {sum(seconds) / 60:.0f} minutes in all"
    return f"\nCode {codes}; {len(results)} trainings of {span}.\n"


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
