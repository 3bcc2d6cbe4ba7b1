"""Measurements that take long, and the pages of docs/evidence from them: `make evidence`. Resumes where it stopped.

`python -m scripts.evidence PAGE` makes one page alone; ``--stale`` lists and marks those that other code made:

=================== ================================================================================================
``ablation``        trainings without single parts of the agent
``anytime``         error rate and power of the sequential test of paper trading
``crises``          gate weights by the crisis score
``durability``      kills, faults of the disk, damaged and manipulated files
``exercises``       what single settings of PPO and TRPO do on CartPole-v1
``foresight``       the audit's test of foreknowledge: honest strategies, and the smallest leak that it flags
``fuzzing``         files of every kind, changed at random; ``--fuzz-cases N``, ``--fuzz-seconds S``
``generalisation``  regularisers by walk-forward; with ``--markets`` also on other markets, whose test windows it reads
``guard``           faults injected into trainings
``hand-over``       the transition from the offline to the online phase
``kills``           an account at a broker whose process is killed again and again; ``--kills N``
``listings``        learning with and without listings on the same prices
``nulls``           error rate and power of the verdict; ``--retrain 0`` leaves out the demo's trainings
``offline``         the offline methods
``offline-updates`` the number of offline updates, judged by walk-forward
``on-policy-tasks`` on-policy learning on CartPole-v1 and Pendulum-v1; ``--sb3-python PATH`` adds a peer
``on-policy-markets`` PPO, TRPO and SAC on planted markets and the embedded one; the variance of gradients
``optimality``      whole trainings against a known optimum; ``--sb3-python PATH`` adds SAC and TQC of other libraries
``pendulum``        the online update on Pendulum-v1
``planted``         offline learning on synthetic markets
``preferences``     reward models of synthetic judges, and agents that learn from them
``ranking``         agents that learn from a ranking, and experts that learn to rank
``replication``     published tables beside finflow's figures; `python -m scripts.replicate NAME --save` makes them
``rollouts``        learning from exact rollouts on planted and null markets
``runs``            whole trainings on the embedded market
``thresholds``      false alarms of the modes and presets of a rollback
``transfer``        agents on assets that they were not trained on
``tune``            the search
``walk-forward-nulls`` error rate and power of the verdict over all judged years of a walk-forward
=================== ================================================================================================
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from finflow.cli.exit_status import run_safely
from finflow.config import Config
from finflow.evaluation.analysis.expert_traits import STATES
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence import broker_kills_page
from scripts.evidence.ablation import SIZE as ABLATION_SIZE
from scripts.evidence.ablation import ablation_table, ablation_variants
from scripts.evidence.anytime import FIRST_LOOK, anytime_page
from scripts.evidence.box_tasks import (
    PENDULUM_EPISODES,
    PENDULUM_GOAL,
    PENDULUM_STEPS,
    WATCHED_EVERY,
    pendulum_table,
    pendulum_variants,
)
from scripts.evidence.crises import crises_table, crises_variants
from scripts.evidence.durability_page import durability_page, made_once
from scripts.evidence.foresight import DRAWS, foresight_page, foresight_variants
from scripts.evidence.fuzz_files import CASES, fuzz_missing
from scripts.evidence.fuzz_page import fuzz_table
from scripts.evidence.generalisation import (
    MULTIPLE,
    REDUCED,
    account,
    chosen_overrides,
    ranking_table,
    walk_forward_variants,
)
from scripts.evidence.guard_faults import FAULT_AT, guard_table, guard_variants
from scripts.evidence.hand_over import LOOKS, hand_over_table, hand_over_variants
from scripts.evidence.listings import (
    BOUND,
    EARLIEST,
    LATEST,
    listings_table,
    listings_variants,
    share_words,
)
from scripts.evidence.null_markets import (
    NullStudy,
    frozen_agent,
    retrain_missing,
    retraining_lines,
    study_markets,
    study_table,
    summarise_study,
)
from scripts.evidence.offline_methods import METHODS, FamilyRule, family_results, offline_table
from scripts.evidence.offline_updates import SIZE as OFFLINE_SIZE
from scripts.evidence.offline_updates import offline_updates_table, offline_updates_variants
from scripts.evidence.on_policy_exercises import (
    DECISIONS,
    EXERCISES,
    PPO,
    exercise_table,
    exercise_variants,
    objective_drawing,
)
from scripts.evidence.on_policy_markets import (
    SIZE,
    gradient_table,
    gradient_variants,
    group_variants,
    market_trainings_table,
    market_trainings_variants,
)
from scripts.evidence.on_policy_tasks import EPISODES, on_policy_table, on_policy_variants, peers_of
from scripts.evidence.optimality import GOAL, TIMES, optimality_table, optimality_variants, peers_on
from scripts.evidence.other_markets import (
    earlier_readings,
    market_table,
    market_variants,
    reading_table,
    reading_variants,
)
from scripts.evidence.planted_signals import planted_table, planted_variants
from scripts.evidence.preferences import GOALS, SHORTER, preference_table, preference_variants, seeds_line
from scripts.evidence.rankings import GOAL as RANKING_GOAL
from scripts.evidence.rankings import TRAINED, ranking_variants, rankings_table
from scripts.evidence.rollout_controls import (
    control_table,
    control_variants,
    later_years_table,
    later_years_variants,
    momentum_table,
)
from scripts.evidence.rollouts import rollout_table, rollout_variants
from scripts.evidence.stale_pages import mark_pages, marked
from scripts.evidence.thresholds import threshold_table, threshold_variants
from scripts.evidence.transfer import transfer_table, transfer_variants
from scripts.evidence.tuning_evidence import FRESH, TRIALS, tuning_table, tuning_variants
from scripts.evidence.variants import Variant, classical_results, run_missing, table
from scripts.evidence.walk_forward_nulls import walk_forward_page
from scripts.replicate.page import replication_page

ROOT = Path(__file__).resolve().parents[2]
PAGES, TEXTS = ROOT / "docs" / "evidence", Path(__file__).parent / "pages"
KEPT, RUNS = PAGES / "results", ROOT / "data" / "evidence"
VARIANTS = (Variant("default", seeds=(0, 1, 2)),)
EPOCHS = 6  # of the offline methods: an eighth of the default, so that fifteen trainings take minutes
OFFLINE = tuple(
    Variant(
        f"offline-{method}",
        seeds=(0, 1, 2, 3, 4),
        overrides={"offline.method": method, "train.offline_training_epochs": EPOCHS},
        offline_only=True,
    )
    for method in METHODS
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


def main(arguments: Sequence[str]) -> None:
    """Make what is missing, then write the pages."""
    pages = {
        "ablation": _ablation,
        "anytime": _anytime,
        "crises": _crises,
        "durability": _durability,
        "foresight": _foresight,
        "fuzzing": _fuzzing,
        "generalisation": _generalisation,
        "guard": _guard,
        "hand-over": _hand_over,
        "kills": _kills,
        "listings": _listings,
        "nulls": _nulls,
        "offline": _offline,
        "offline-updates": _offline_updates,
        "exercises": _exercises,
        "on-policy-tasks": _on_policy_tasks,
        "on-policy-markets": _on_policy_markets,
        "optimality": _optimality,
        "pendulum": _pendulum,
        "planted": _planted,
        "preferences": _preferences,
        "ranking": _ranking,
        "replication": _replication,
        "rollouts": _rollouts,
        "runs": _runs,
        "thresholds": _thresholds,
        "transfer": _transfer,
        "tune": _tune,
        "walk-forward-nulls": _walk_forward_nulls,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", *pages], default="all")
    parser.add_argument("--retrain", type=int, default=20, metavar="N", help="nulls: demo trainings on N null markets")
    parser.add_argument("--seeds", type=_count, default=5, help="seeds of the guard's trainings and others that say so")
    parser.add_argument("--kills", type=_count, default=50, metavar="N", help="kills: of the process")
    parser.add_argument("--markets", action="store_true", help="generalisation: read the test windows of other markets")
    parser.add_argument(
        "--sb3-python", type=_interpreter, metavar="PATH", help=f"optimality, on-policy-tasks: peers too. {HINT}"
    )
    parser.add_argument("--fuzz-cases", type=_count, default=CASES, metavar="N", help="fuzzing: of each kind of file")
    parser.add_argument("--fuzz-seconds", type=_count, default=10**6, metavar="S", help="fuzzing: stop after S seconds")
    parser.add_argument("--stale", action="store_true", help="mark and list the pages that other code made; no more")
    given = parser.parse_args(arguments)
    if given.stale:
        print("\n".join(mark_pages(PAGES)) or "the present code made every page")
        return
    for name, make in pages.items():
        if given.what in ("all", name):
            make(given)


def _count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def _interpreter(text: str) -> Path:
    """A Python that is there: looked for now, and not after hours."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no {text}; name the interpreter that has the peers")
    return Path(text)


def _ablation(given: argparse.Namespace) -> None:
    """Contribution of each part of the agent."""
    results = run_missing(ablation_variants(given.seeds), KEPT, RUNS)
    _write("ablation", ablation_table(results), results, size=_listed(ABLATION_SIZE))


def _anytime(given: argparse.Namespace) -> None:
    """Error rate and power of the sequential test of paper trading under a look every day."""
    _write("anytime", anytime_page(KEPT / "anytime.json"), first_look=FIRST_LOOK)


def _crises(given: argparse.Namespace) -> None:
    """Gate weights of trained agents in crises."""
    results = run_missing(crises_variants(given.seeds), KEPT, RUNS)
    calm, crisis = f"{STATES['calm'][1]:g}", f"{STATES['crisis'][0]:g}"
    _write("crises", crises_table(results), results, calm=calm, crisis=crisis)


def _durability(given: argparse.Namespace) -> None:
    """Trainings that are killed, meet faults of the disk, or read damaged files."""
    result = made_once(KEPT / "durability.json", RUNS / "durability")
    _write("durability", durability_page(result))


def _foresight(given: argparse.Namespace) -> None:
    """Scores of honest strategies in the audit's test of foreknowledge, and of leaks by their size."""
    results = run_missing(foresight_variants(), KEPT, RUNS)
    _write("foresight", foresight_page(results), draws=DRAWS)


def _fuzzing(given: argparse.Namespace) -> None:
    """Files of every kind, changed at random and opened."""
    _write("fuzzing", fuzz_table(fuzz_missing(KEPT, RUNS / "fuzzing", given.fuzz_cases, given.fuzz_seconds)))


def _generalisation(given: argparse.Namespace) -> None:
    """Contribution of each regulariser by walk-forward, and the chosen configuration on other markets."""
    results = run_missing(walk_forward_variants(given.seeds), KEPT, RUNS)
    reading: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    page = ranking_table(results) + "\n" + account(results)
    if given.markets:
        others = run_missing(market_variants(chosen_overrides(results), given.seeds, RUNS, REDUCED), KEPT, RUNS)
        reading = run_missing(reading_variants(chosen_overrides(results)), KEPT, RUNS)
        earlier = [json.loads(path.read_text()) for path in sorted(KEPT.glob("generalisation-earlier-reading-*.json"))]
        page += _text("reading") + reading_table(reading[0]) + earlier_readings(earlier)
        page += _text("markets") + market_table(others)
    made = [*results, *reading, *others]
    _write("generalisation", page, made, reduced=_listed(REDUCED), multiple=f"{MULTIPLE:g}")


def _hand_over(given: argparse.Namespace) -> None:
    """Validation value across the hand-over to the online phase, with and without its safeguards."""
    results = run_missing(hand_over_variants(given.seeds), KEPT, RUNS)
    _write("hand-over", hand_over_table(results), results, looks=LOOKS - 1)


def _kills(given: argparse.Namespace) -> None:
    """An account at a broker, traded by a process that is killed again and again."""
    result = broker_kills_page.made_once(KEPT / "kills.json", RUNS / "kills", given.kills)
    _write("kills", broker_kills_page.kills_page(result), kills=len(result["kills"]))


def _listings(given: argparse.Namespace) -> None:
    """Loss of worth where assets list late and end early, beside the same market without listings."""
    results = run_missing(listings_variants(), KEPT, RUNS)
    facts = {"bound": BOUND, "late": share_words(LATEST), "early": share_words(EARLIEST)}
    _write("listings", listings_table(results), results, **facts)


def _guard(given: argparse.Namespace) -> None:
    """Faults injected into trainings, with the guard and without."""
    results = run_missing(guard_variants(given.seeds), KEPT, RUNS)
    _write("guard", guard_table(results), results, fault_at=FAULT_AT)


def _offline(given: argparse.Namespace) -> None:
    """The offline methods, compared with the families that they learn from."""
    results = run_missing(OFFLINE, KEPT, RUNS)
    found = offline_table(results, family_results(Config()))
    _write("offline", found, results, rate=f"{100 * FamilyRule.rate:.0f}", epochs=EPOCHS)


def _offline_updates(given: argparse.Namespace) -> None:
    """Numbers of offline updates, judged on later years."""
    results = run_missing(offline_updates_variants(given.seeds), KEPT, RUNS)
    _write("offline-updates", offline_updates_table(results), results, size=_listed(OFFLINE_SIZE))


def _exercises(given: argparse.Namespace) -> None:
    """Effects of single settings of PPO and TRPO, and a drawing of the clipped objective."""
    results = run_missing(exercise_variants(EXERCISE_SEEDS), KEPT, RUNS)
    tables = "\n".join(f"## {HEADINGS[name]}\n\n{exercise_table(name, results)}" for name in EXERCISES)
    facts = {"decisions": f"{DECISIONS:,}", "seeds": EXERCISE_SEEDS, "settings": PPO.describe()}
    _write("exercises", tables, results, episodes=EPISODES, final=5 * EPISODES, **facts)
    write_atomically(PAGES.parent / "reference" / "clipped-objective.svg", objective_drawing())


def _on_policy_tasks(given: argparse.Namespace) -> None:
    """On-policy learning on solved tasks; of Stable-Baselines3 too, where it is installed."""
    results = run_missing(on_policy_variants(given.seeds), KEPT, RUNS)
    peers = [] if given.sb3_python is None else peers_of(given.sb3_python, given.seeds, KEPT)
    _write("on-policy-tasks", on_policy_table(results, peers), results, episodes=EPISODES, final=5 * EPISODES)


def _on_policy_markets(given: argparse.Namespace) -> None:
    """On-policy learning and soft actor-critic on markets, and the gradients of both kinds of advantages."""
    results = run_missing([*market_trainings_variants(), *group_variants()], KEPT, RUNS)
    gradients = run_missing(gradient_variants(), KEPT, RUNS)
    page = market_trainings_table(results) + _text("gradients") + gradient_table(gradients)
    _write("on-policy-markets", page, [*results, *gradients], size=_listed(SIZE))


def _optimality(given: argparse.Namespace) -> None:
    """Scores against the known optimum and training time; of peers too, where they are installed."""
    variants = optimality_variants(given.seeds)
    results = run_missing(variants, KEPT, RUNS)
    peers: list[dict[str, Any]] = []
    if given.sb3_python is not None:
        for variant, own in zip(variants, results, strict=True):
            config = variant.config(own["seed"], RUNS)
            peers += peers_on(own, config, given.sb3_python, ROOT / "scripts" / "peers" / "sb3_market.py", KEPT)
    _write("optimality", optimality_table(results, peers), results, goal=GOAL, times=f"{TIMES:g}")


def _pendulum(given: argparse.Namespace) -> None:
    """Online learning on a Box task."""
    results = run_missing(pendulum_variants(given.seeds), KEPT, RUNS)
    facts = {"steps": f"{PENDULUM_STEPS:,}", "every": f"{WATCHED_EVERY:,}", "goal": f"{PENDULUM_GOAL:.0f}"}
    _write("pendulum", pendulum_table(results), results, episodes=PENDULUM_EPISODES, **facts)


def _planted(given: argparse.Namespace) -> None:
    """Scores of offline learning on markets whose optimum is known."""
    results = run_missing(planted_variants(PLANTED_SEEDS), KEPT, RUNS)
    _write("planted", planted_table(results), results)


def _preferences(given: argparse.Namespace) -> None:
    """Reward models of synthetic judges, and agents that learn from them beside those that learn from the truth."""
    results = run_missing(preference_variants(given.seeds), KEPT, RUNS)
    facts = {name: f"{value:g}" for name, value in GOALS.items()}
    facts |= {"size": _listed(SHORTER), "seeds": seeds_line(results)}
    _write("preferences", preference_table(results), results, **facts)


def _ranking(given: argparse.Namespace) -> None:
    """Agents that learn from a ranking where one is planted, and experts that learn to rank."""
    results = run_missing(ranking_variants(given.seeds), KEPT, RUNS)
    _write("ranking", rankings_table(results), results, goal=f"{RANKING_GOAL:g}", size=_listed(TRAINED))


def _replication(given: argparse.Namespace) -> None:
    """Published tables computed anew, as far as their figures were kept."""
    _write("replication", replication_page(KEPT))


def _rollouts(given: argparse.Namespace) -> None:
    """Scores and evidence out of fold of learning from exact rollouts, beside controls and on later years."""
    results = run_missing(rollout_variants(PLANTED_SEEDS), KEPT, RUNS)
    results += [json.loads(path.read_text()) for path in sorted(KEPT.glob("rollouts-nyse-*.json"))]  # no prices here
    controls = run_missing(control_variants(PLANTED_SEEDS), KEPT, RUNS)
    later = run_missing(later_years_variants(given.seeds), KEPT, RUNS)
    tables = [rollout_table(results), control_table(controls, results), momentum_table(controls)]
    page = "\n".join([*tables, later_years_table(later)])
    _write("rollouts", page, [*results, *controls, *later])


def _runs(given: argparse.Namespace) -> None:
    """Whole trainings, compared with the classical strategies."""
    results = run_missing(VARIANTS, KEPT, RUNS)
    _write("runs", table(results, classical_results(Config())), results)


def _thresholds(given: argparse.Namespace) -> None:
    """False alarms of the modes and presets of a rollback."""
    results = run_missing(threshold_variants(given.seeds), KEPT, RUNS)
    _write("thresholds", threshold_table(results), results)


def _transfer(given: argparse.Namespace) -> None:
    """Agents on assets that they were not trained on, beside agents trained on those assets."""
    results = run_missing(transfer_variants(), KEPT, RUNS)
    _write("transfer", transfer_table(results), results)


def _tune(given: argparse.Namespace) -> None:
    """Results of a search, compared with random trials and with no search."""
    results = run_missing(tuning_variants(ROOT / "configs" / "demo.yaml"), KEPT, RUNS)
    _write("tuning", tuning_table(results), results, trials=TRIALS, fresh=FRESH)


def _nulls(given: argparse.Namespace) -> None:
    """Error rate of the verdict in markets without an edge, and its power where one is planted."""
    study, demo = NullStudy(), ROOT / "configs" / "demo.yaml"
    rows = summarise_study(study_markets(study, frozen_agent(demo, RUNS / "frozen"), RUNS / "nulls.jsonl"))
    content = {"code": code_hash(), "samples": study.samples, "rows": rows}
    write_atomically(KEPT / "nulls.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    lines = retraining_lines(retrain_missing(demo, given.retrain, KEPT, RUNS / "nulls"))
    made = f"\nCode {code_hash()}; {study.samples} resamples a verdict, mean block 21 days.\n"
    _write("nulls", study_table(rows) + lines + made)


def _walk_forward_nulls(given: argparse.Namespace) -> None:
    """Error rate of the verdict over all judged years of a walk-forward, and its power where an edge is planted."""
    page = walk_forward_page(KEPT / "walk-forward-nulls.json", RUNS / "walk-forward-nulls.jsonl")
    _write("walk-forward-nulls", page)


def _write(name: str, content: str, results: Sequence[Mapping[str, Any]] = (), **facts: object) -> None:
    """Write a page: its text, its tables, and the provenance of the results."""
    text = _text(name, **facts) + content + (_made(results) if results else "")
    write_atomically(PAGES / f"{name}.md", marked(text, code_hash()))


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
    return f"\nCode {codes}; {len(results)} trainings of {min(seconds):.0f} to {max(seconds):.0f} s each.\n"


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
