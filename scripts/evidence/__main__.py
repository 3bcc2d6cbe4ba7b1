"""Measurements that take long, and the pages of docs/evidence from them: `make evidence`. Resumes where it stopped.

`python -m scripts.evidence PAGE` makes one page alone; ``--stale`` lists and marks those that other code made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from finflow.cli.exit_status import run_safely
from finflow.config import Config
from finflow.evaluation.analysis.expert_traits import STATES
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence import (
    ablation,
    anytime,
    box_tasks,
    broker_kills_page,
    coefficients,
    crises,
    durability_page,
    foresight,
    fuzz_files,
    generalisation,
    guard_faults,
    hand_over,
    listings,
    mutation,
    null_markets,
    offline_methods,
    offline_updates,
    on_policy_markets,
    on_policy_tasks,
    optimality,
    other_markets,
    planted_signals,
    preferences,
    rankings,
    rollout_controls,
    rollout_peers,
    rollouts,
    thresholds,
    transfer,
    tuning_evidence,
    walk_forward_nulls,
)
from scripts.evidence import on_policy_exercises as exercises
from scripts.evidence.results import write_result
from scripts.evidence.stale_pages import Deciding, mark_pages, marked
from scripts.evidence.variants import OFFLINE_ALONE, Variant, classical_results, run_missing, table
from scripts.replicate.page import replication_page

ROOT = Path(__file__).resolve().parents[2]
FOLDER, TEXTS = ROOT / "docs" / "evidence", Path(__file__).parent / "pages"
KEPT, RUNS = FOLDER / "results", ROOT / "data" / "evidence"
SB3_MARKET = ROOT / "scripts" / "peers" / "sb3_market.py"
DEMO = ROOT / "configs" / "demo.yaml"
VARIANTS = (Variant("default", seeds=(0, 1, 2)),)
EPOCHS = 6  # of the offline methods: an eighth of the default's limit, so that fifteen trainings take minutes
OFFLINE = tuple(
    Variant(
        f"offline-{method}",
        seeds=(0, 1, 2, 3, 4),
        overrides={
            **OFFLINE_ALONE,
            "offline.method": method,
            "train.offline_training_epochs": EPOCHS,
            "offline.patience": 0,
        },
        offline_only=True,
    )
    for method in offline_methods.METHODS
)
HINT = "Made with: python -m venv peers && peers/bin/pip install -c constraints.txt -e . sb3-contrib"
PLANTED_SEEDS = 3
EXERCISE_SEEDS = 2
HEADINGS = {
    "lambda": "Lambda of the advantages",
    "clip": "Clipping or a penalty",
    "environments": "Number of environments",
    "trust-region": "PPO and TRPO",
}
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
    parser.add_argument("--retrain", type=int, default=20, metavar="N", help="nulls: demo trainings on N null markets")
    parser.add_argument("--seeds", type=_count, default=3, help="seeds of most trainings")
    parser.add_argument("--kills", type=_count, default=50, metavar="N", help="kills: of the process")
    parser.add_argument("--mutants", type=_count, default=mutation.MUTANTS, metavar="N", help="mutation: of the sample")
    parser.add_argument("--markets", action="store_true", help="generalisation: read the test windows of other markets")
    parser.add_argument(
        "--sb3-python",
        type=_interpreter,
        metavar="PATH",
        help=f"optimality, on-policy-tasks, rollouts: peers too. {HINT}",
    )
    parser.add_argument(
        "--nyse", type=_prices, metavar="CSV", help="rollouts: prices of NYSE(O) too, by scripts/convert_relatives.py"
    )
    parser.add_argument(
        "--fuzz-cases", type=_count, default=fuzz_files.CASES, metavar="N", help="fuzzing: of each kind"
    )
    parser.add_argument("--fuzz-seconds", type=_count, default=10**6, metavar="S", help="fuzzing: stop after S seconds")
    parser.add_argument("--stale", action="store_true", help="mark and list the pages that other code made; no more")
    given = parser.parse_args(arguments)
    if given.stale:
        print("\n".join(mark_pages(FOLDER)) or "the present code made every page")
        return
    # with another program on the second core, two threads of small operations wait for each other
    torch.set_num_threads(1)
    for name, make in PAGES.items():
        if given.what in ("all", name):
            make(given)


def _count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def _interpreter(text: str) -> Path:
    """A Python that is there: looked for now, and not after hours."""
    return _present(text, "name the interpreter that has the peers")


def _prices(text: str) -> Path:
    """A file of prices that is there."""
    return _present(text, "python scripts/convert_relatives.py writes such a file")


def _present(text: str, advice: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no {text}; {advice}")
    return Path(text)


@registered
def make_ablation(given: argparse.Namespace) -> None:
    """Contribution of each part of the agent."""
    _page("ablation", ablation.ablation_variants(given.seeds), ablation.ablation_table, size=_listed(ablation.SIZE))


@registered
def make_anytime(given: argparse.Namespace) -> None:
    """Error rate and power of the sequential test of paper trading under a look every day."""
    _write("anytime", anytime.anytime_page(KEPT / "anytime.json"), first_look=anytime.FIRST_LOOK)


@registered
def make_crises(given: argparse.Namespace) -> None:
    """Gate weights of trained agents in crises."""
    calm, crisis = f"{STATES['calm'][1]:g}", f"{STATES['crisis'][0]:g}"
    _page("crises", crises.crises_variants(given.seeds), crises.crises_table, calm=calm, crisis=crisis)


@registered
def make_durability(given: argparse.Namespace) -> None:
    """Trainings that are killed, meet faults of the disk, or read damaged files."""
    result = durability_page.made_once(KEPT / "durability.json", RUNS / "durability")
    _write("durability", durability_page.durability_page(result))


@registered
def make_foresight(given: argparse.Namespace) -> None:
    """Scores of honest strategies in the audit's test of foreknowledge, and of leaks by their size."""
    results = run_missing(foresight.foresight_variants(), KEPT, RUNS)
    _write("foresight", foresight.foresight_page(results), draws=foresight.DRAWS)


@registered
def make_fuzzing(given: argparse.Namespace) -> None:
    """Files of every kind, changed at random and opened."""
    results = fuzz_files.fuzz_missing(KEPT, RUNS / "fuzzing", given.fuzz_cases, given.fuzz_seconds)
    _write("fuzzing", fuzz_files.fuzz_table(results))


@registered
def make_generalisation(given: argparse.Namespace) -> None:
    """Contribution of each regulariser by walk-forward, and the chosen configuration on other markets."""
    results = run_missing(generalisation.walk_forward_variants(given.seeds), KEPT, RUNS)
    reading: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    page = generalisation.ranking_table(results) + "\n" + generalisation.account(results)
    if given.markets:
        keys = generalisation.chosen_overrides(results)
        others = run_missing(other_markets.market_variants(keys, given.seeds, RUNS, generalisation.REDUCED), KEPT, RUNS)
        reading = run_missing(other_markets.reading_variants(keys), KEPT, RUNS)
        earlier = [json.loads(path.read_text()) for path in sorted(KEPT.glob("generalisation-earlier-reading-*.json"))]
        page += _text("reading") + other_markets.reading_table(reading[0]) + other_markets.earlier_readings(earlier)
        page += _text("markets") + other_markets.market_table(others)
    made = [*results, *reading, *others]
    facts = {"reduced": _listed(generalisation.REDUCED), "multiple": f"{generalisation.MULTIPLE:g}"}
    _write("generalisation", page, made, **facts)


@registered
def make_hand_over(given: argparse.Namespace) -> None:
    """Validation value across the hand-over to the online phase, with and without its safeguards."""
    _page("hand-over", hand_over.hand_over_variants(given.seeds), hand_over.hand_over_table, looks=hand_over.LOOKS - 1)


@registered
def make_kills(given: argparse.Namespace) -> None:
    """An account at a broker, traded by a process that is killed again and again."""
    result = broker_kills_page.made_once(KEPT / "kills.json", RUNS / "kills", given.kills)
    _write("kills", broker_kills_page.kills_page(result), kills=len(result["kills"]))


@registered
def make_listings(given: argparse.Namespace) -> None:
    """Loss of performance where assets list late and end early, against the same market without listings."""
    late, early = (listings.share_words(shares) for shares in (listings.LATEST, listings.EARLIEST))
    facts = {"bound": listings.BOUND, "late": late, "early": early}
    _page("listings", listings.listings_variants(), listings.listings_table, **facts)


@registered
def make_guard(given: argparse.Namespace) -> None:
    """Faults injected into trainings, with the guard and without."""
    _page("guard", guard_faults.guard_variants(given.seeds), guard_faults.guard_table, fault_at=guard_faults.FAULT_AT)


@registered
def make_offline(given: argparse.Namespace) -> None:
    """The offline methods, compared with the families that they learn from."""
    results = run_missing(OFFLINE, KEPT, RUNS)
    found = offline_methods.offline_table(results, offline_methods.family_results(Config()))
    _write("offline", found, results, rate=f"{100 * offline_methods.FamilyRule.rate:.0f}", epochs=EPOCHS)


@registered
def make_offline_updates(given: argparse.Namespace) -> None:
    """Numbers of offline updates, judged on later years."""
    variants, size = offline_updates.offline_updates_variants(given.seeds), _listed(offline_updates.SIZE)
    _page("offline-updates", variants, offline_updates.offline_updates_table, size=size)


@registered
def make_exercises(given: argparse.Namespace) -> None:
    """Effects of single settings of PPO and TRPO, and a drawing of the clipped objective."""
    results = run_missing(exercises.exercise_variants(EXERCISE_SEEDS), KEPT, RUNS)
    sections = [f"## {HEADINGS[name]}\n\n{exercises.exercise_table(name, results)}" for name in exercises.EXERCISES]
    facts = {"decisions": f"{exercises.DECISIONS:,}", "seeds": EXERCISE_SEEDS, "settings": exercises.PPO.describe()}
    _write("exercises", "\n".join(sections), results, **TASK_FACTS, **facts)
    write_atomically(FOLDER.parent / "reference" / "clipped-objective.svg", exercises.objective_drawing())


@registered
def make_on_policy_tasks(given: argparse.Namespace) -> None:
    """On-policy learning on solved tasks; of Stable-Baselines3 too, where it is installed."""
    results = run_missing(on_policy_tasks.on_policy_variants(given.seeds), KEPT, RUNS)
    if given.sb3_python is not None:
        on_policy_tasks.train_peers(given.sb3_python, given.seeds, KEPT)
    peers = on_policy_tasks.kept_peers(KEPT)
    _write("on-policy-tasks", on_policy_tasks.on_policy_table(results, peers), results, **TASK_FACTS)


@registered
def make_mutation(given: argparse.Namespace) -> None:
    """Share of small faults in ledger, environment, statistics and guard that tests notice."""
    page = mutation.mutation_page(ROOT, KEPT / "mutation.json", RUNS / "mutation", given.mutants)
    _write("mutation", page, mutants=given.mutants)


@registered
def make_on_policy_markets(given: argparse.Namespace) -> None:
    """On-policy learning and soft actor-critic on markets, and the gradients of both kinds of advantages."""
    variants = [*on_policy_markets.market_trainings_variants(), *on_policy_markets.group_variants()]
    results = run_missing(variants, KEPT, RUNS)
    gradients = run_missing(on_policy_markets.gradient_variants(), KEPT, RUNS)
    tables = on_policy_markets.market_trainings_table(results), on_policy_markets.gradient_table(gradients)
    _write(
        "on-policy-markets",
        _text("gradients").join(tables),
        [*results, *gradients],
        size=_listed(on_policy_markets.SIZE),
    )


@registered
def make_optimality(given: argparse.Namespace) -> None:
    """Scores against the known optimum and training time; of peers too, where they are installed."""
    variants = optimality.optimality_variants(given.seeds)
    results = run_missing(variants, KEPT, RUNS)
    if given.sb3_python is not None:
        for variant, own in zip(variants, results, strict=True):
            config = variant.config(own["seed"], RUNS)
            program = (str(given.sb3_python), str(SB3_MARKET))
            optimality.peers_on(own, config, program, KEPT, optimality.limit_of(own))
    peers = optimality.kept_peers(KEPT)
    facts = {"goal": optimality.GOAL, "times": f"{optimality.TIMES:g}"}
    _write("optimality", optimality.optimality_table(results, peers), results, **facts)


@registered
def make_pendulum(given: argparse.Namespace) -> None:
    """Online learning on a Box task."""
    facts = {"steps": f"{box_tasks.PENDULUM_STEPS:,}", "every": f"{box_tasks.WATCHED_EVERY:,}"}
    facts |= {"goal": f"{box_tasks.PENDULUM_GOAL:.0f}", "episodes": f"{box_tasks.PENDULUM_EPISODES}"}
    _page("pendulum", box_tasks.pendulum_variants(given.seeds), box_tasks.pendulum_table, **facts)


@registered
def make_planted(given: argparse.Namespace) -> None:
    """Scores of offline learning on markets whose optimum is known."""
    _page("planted", planted_signals.planted_variants(PLANTED_SEEDS), planted_signals.planted_table)


@registered
def make_preferences(given: argparse.Namespace) -> None:
    """Reward models of synthetic judges, and agents that learn from them or from the true reward."""
    results = run_missing(preferences.preference_variants(given.seeds), KEPT, RUNS)
    facts = {name: f"{value:g}" for name, value in preferences.GOALS.items()}
    facts |= {"size": _listed(preferences.SHORTER), "seeds": preferences.seeds_line(results)}
    _write("preferences", preferences.preference_table(results), results, **facts)


@registered
def make_ranking(given: argparse.Namespace) -> None:
    """Agents that learn from a ranking where one is planted, and experts that learn to rank."""
    facts = {"goal": f"{rankings.GOAL:g}", "size": _listed(rankings.TRAINED)}
    _page("ranking", rankings.ranking_variants(given.seeds), rankings.rankings_table, **facts)


@registered
def make_replication(given: argparse.Namespace) -> None:
    """Published tables computed anew, as far as their figures were kept."""
    _write("replication", replication_page(KEPT))


@registered
def make_rollouts(given: argparse.Namespace) -> None:
    """Scores and evidence out of fold of online learning, with controls and on later years."""
    results = run_missing(rollouts.rollout_variants(PLANTED_SEEDS), KEPT, RUNS)
    if given.nyse is not None:
        run_missing(rollouts.nyse_variants(given.nyse), KEPT, RUNS)
    nyse = [json.loads(path.read_text()) for path in sorted(KEPT.glob("rollouts-nyse-*.json"))]
    controls = run_missing(rollout_controls.control_variants(PLANTED_SEEDS), KEPT, RUNS)
    paired = run_missing(coefficients.coefficient_variants(), KEPT, RUNS)
    later = run_missing(rollout_controls.later_years_variants(given.seeds), KEPT, RUNS)
    if given.sb3_python is not None:
        rollout_peers.rollout_peers(results, (str(given.sb3_python), str(SB3_MARKET)), PLANTED_SEEDS, KEPT, RUNS)
    peers = optimality.kept_peers(KEPT, rollouts.PREFIX, (rollout_peers.MAPPING,))
    tables = [
        rollouts.rollout_table([*results, *nyse]),
        rollout_controls.seeding_table(controls),
        rollout_controls.control_table(controls, results),
        coefficients.coefficient_table(paired),
        rollout_peers.rollout_peers_table(results, peers),
        rollout_controls.momentum_table(controls),
        rollout_controls.later_years_table(later),
    ]
    _write(
        "rollouts",
        "\n" + "\n".join(tables),
        [*results, *controls, *paired, *later],
        times=f"{rollout_peers.TIMES:g}",
        seeds=coefficients.SEEDS,
    )


@registered
def make_runs(given: argparse.Namespace) -> None:
    """Whole trainings, compared with the classical strategies."""
    results = run_missing(VARIANTS, KEPT, RUNS)
    _write("runs", table(results, classical_results(Config())), results)


@registered
def make_thresholds(given: argparse.Namespace) -> None:
    """False alarms of the modes and presets of a rollback."""
    _page("thresholds", thresholds.threshold_variants(given.seeds), thresholds.threshold_table)


@registered
def make_transfer(given: argparse.Namespace) -> None:
    """Agents on assets that they were not trained on, against agents trained on those assets."""
    _page("transfer", transfer.transfer_variants(), transfer.transfer_table)


@registered
def make_tune(given: argparse.Namespace) -> None:
    """Results of a search, compared with random trials and with no search."""
    facts = {"trials": tuning_evidence.TRIALS, "fresh": tuning_evidence.FRESH}
    _page("tuning", tuning_evidence.tuning_variants(DEMO), tuning_evidence.tuning_table, **facts)


@registered
def make_nulls(given: argparse.Namespace) -> None:
    """Error rate of the verdict in markets without an edge, and its power where one is planted."""
    study, agent = null_markets.NullStudy(), null_markets.frozen_agent(DEMO, RUNS / "frozen")
    rows = null_markets.summarise_study(null_markets.study_markets(study, agent, RUNS / "nulls.jsonl"))
    write_result(KEPT / "nulls.json", {"code": code_hash(), "samples": study.samples, "rows": rows})
    lines = null_markets.retraining_lines(null_markets.retrain_missing(DEMO, given.retrain, KEPT, RUNS / "nulls"))
    made = f"\nCode {code_hash()}; {study.samples} resamples a verdict, mean block 21 days.\n"
    _write("nulls", null_markets.study_table(rows) + lines + made)


@registered
def make_walk_forward_nulls(given: argparse.Namespace) -> None:
    """Error rate of the verdict over all judged years of a walk-forward, and its power where an edge is planted."""
    page = walk_forward_nulls.walk_forward_page(KEPT / "walk-forward-nulls.json", RUNS / "walk-forward-nulls.jsonl")
    _write("walk-forward-nulls", page)


def _page(
    name: str, variants: Sequence[Variant], tabled: Callable[[list[dict[str, Any]]], str], **facts: object
) -> None:
    """Train what is missing of some variants, and write the page of their table."""
    results = run_missing(variants, KEPT, RUNS)
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
