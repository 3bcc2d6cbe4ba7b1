"""Make the evidence that takes long, and the tables in docs: `make evidence`. Resumes where it stopped.

`python -m scripts.evidence offline` makes the table of the offline methods alone, `runs` that of whole trainings,
`ablation` that of what the agent's parts are worth, `crises` that of its gate in bad weeks, `planted` that of what
offline learning finds in made-up markets, `hand-over` that of where the online phase takes over, `optimality` that of
whole trainings in such markets (with
`--sb3-python PATH` beside Stable-Baselines3's SAC and sb3-contrib's TQC), `pendulum` that of online learning on a task
that others have solved, `durability` those about kills, faults of the disk and files made to mislead, `guard` that of
faults injected into trainings, `nulls` that of the verdict where nothing can be won (`--retrain 0` leaves out the
demo's trainings there), `tune` that of the search, `generalisation` that of the devices against memorising (with
`--markets`: also of the chosen one on markets that it was not chosen on, which reads their test windows).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finflow.cli.exit_status import run_safely
from finflow.config import Config
from finflow.evaluation.analysis.expert_traits import STATES
from finflow.files import write_atomically
from finflow.provenance import code_hash
from scripts.evidence.ablation import ablation_table, ablation_variants
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
from scripts.evidence.optimality import GOAL, TIMES, optimality_table, optimality_variants, peers_on
from scripts.evidence.other_markets import (
    earlier_readings,
    market_table,
    market_variants,
    reading_table,
    reading_variants,
)
from scripts.evidence.planted_signals import planted_table, planted_variants
from scripts.evidence.tuning_evidence import FRESH, TRIALS, tuning_table, tuning_variants
from scripts.evidence.variants import Variant, classical_results, run_missing, table

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "evidence"
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
OFFLINE_HEAD = f"""# Evidence about the offline phase

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. Families: each of the
six variants moves {100 * FamilyRule.rate:.0f} % of the way to its aim a day; mean, and least to greatest. Methods: the
last policy after {EPOCHS} epochs (the default is 50); mean over seeds, and half the width of its 95 % interval. Reward
and fitted Q value ([offline](../reference/offline.md)) are in basis points a decision.

"""
HEAD = """# Evidence

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. Hand-over: IQL alone,
as B-Cell takes over. End: after all online updates. Best: the checkpoint that the run would judge, which was chosen on
this very window and so looks better here than it is. Over several seeds: mean, and least to greatest.

"""
ABLATION_HEAD = f"""# Evidence about the parts of the agent

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

The embedded market, validation window (2012 to 2015), net of costs, on the ledger of training. All trainings are
reduced alike: {", ".join(f"`{key}` {value}" for key, value in REDUCED.items() if key != "evaluation.protocol.folds")}.
The last policy of each, so that no checkpoint was chosen by this window; some defaults were, when it was looked at
before. IQL alone is the same training as B-Cell, at the hand-over. Mean over seeds, and half the width of its 95 %
interval: of seeds, on one window, so that it says nothing about other years. One head: `bcell.one_head`. Without CQL:
`bcell.cql_alpha` 0. Without holding experts to their families: `bcell.expert_cloning` 0. In bfloat16:
`bcell.mixed_precision`. From scratch: `train.offline_training_epochs` 0, so that networks begin at random and Cal-QL
has no fitted value to bound by (`bcell.calibration` none); it has fewer updates.

"""
CRISES_HEAD = f"""# Evidence about the gate in crises

<!-- Made by scripts/evidence (`python -m scripts.evidence crises --seeds N`): change nothing here. -->

Whom the gate follows on the embedded market, by the crisis score that the agent is told at each decision: calm under
{STATES["calm"][1]:g}, crisis from {STATES["crisis"][0]:g} on. Share of each expert in the aim, and of cash, in percent;
mean over seeds, and half the width of its 95 % interval. The last policies of trainings with the defaults, in the
reduced size of [generalisation](generalisation.md). The score's states are fitted on the training window.

"""
NULLS_HEAD = """# Evidence about the verdict

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/nulls.json: change nothing here. -->

How often the verdict says that a strategy beats equal weight, and how often each of its three witnesses says so
([verdict](../reference/verdict.md)). The embedded market's test window (2016 to 2022, 1759 days), net of the default
costs at
the default lag, asset labels permuted independently at each date: nothing can beat equal weight there but by luck. At
most 4 of 200 may be a yes. Rules refit every 63 days. The agent is the demo's, trained once on the embedded market and
frozen. "First half" always holds the first ten of the twenty assets.
The last four columns are against equal weight that is restored every day; a yes takes patient equal weight, too. That
was added to the rule after 107 of these very markets had been looked at, on 14 of which inverse volatility, which
trades less, was a yes without it. 4 of 200 are 2 %, with a 95 % interval from 0.8 to 5.0 %.

"""
GUARD_HEAD = f"""# Evidence about the guard

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

Faults injected into online update {FAULT_AT} of small trainings (the demo's networks, embedded market), with the guard
and without it. Value: mean reward of a decision on the validation window, net, in basis points, of the last policy;
mean over seeds. Detected: updates from the fault to the guard's first event, the latest over seeds. Near: seeds that
end within one standard deviation (over the undisturbed seeds) of the same seed undisturbed. Where the guard rolls back,
it does so to the same snapshot whatever the fault was: those rows are one experiment of recovery, and several of
detection. A fault whose row without the guard is near in every seed does no harm here that the guard could prevent.

"""


GENERALISATION_HEAD = f"""# Evidence about generalisation

<!-- Made by scripts/evidence (`python -m scripts.evidence generalisation --seeds N [--markets]`): change nothing
here. -->

What each device of [worlds](../reference/worlds.md) is worth, alone and together, by walk-forward within the training
and validation
windows of the embedded market ([protocols](../guide/protocols.md)), purged; the test window is not read. Trainings are
reduced alike:
{", ".join(f"`{key}` {value}" for key, value in REDUCED.items())}.
Training: Sharpe ratio of the judged checkpoint in the fold's training window. Judged: in the fold's own window, which
it never saw, net. Score: mean of the Sharpe ratio over that of equal weight in the same window, less {MULTIPLE:g}
standard error, of folds as wholes or of single trainings, whichever is larger; the last four after three seeds were
given up, and stand behind the others. Ensemble: capital in equal shares with the seeds, every day. KL: from the
pretrained policy, nats per free dimension. DSR: of the return over equal weight, seeds averaged, deflated by all
configurations of the table. Equal weight is restored every day here and pays for it; who trades less is ahead of it by
that alone, which moves all scores and no ranks. The keys of each row: `CONFIGURATIONS` in
scripts/evidence/generalisation.py.

"""
READING_HEAD = """
## Its one reading of the test window

The chosen configuration in full size, seed 0, trained on the embedded market; its best checkpoint by validation, on the
test window (2016 to 2022), net. Nothing was chosen by these numbers.

"""
MARKETS_HEAD = """
## Markets that it was not chosen on

The chosen configuration in the reduced size, on each market's test window, read once for each seed. Halves: ten of the
twenty stocks, drawn at random. Optimality: score against the optimum of a made-up market
([synthetic](../reference/synthetic.md));
exchangeable has no edge, so there nothing should be traded. Suited: with the state shown, and the learning values of
[optimality](optimality.md), which are for such markets; the chosen devices on top of them, in place of an anchor that
lets go (constant-drift with `guard.rollback.kl_threshold` 100: under the usual 0.1 the guard stopped it). The best
checkpoint by validation may be one of the offline phase.

"""
HAND_OVER_HEAD = f"""# Evidence about the hand-over

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

From the offline to the online phase. Each seed is pretrained once; from that checkpoint it is fine-tuned in full, and
for the first fifth again with one device left out: Cal-QL's calibration, the warm-up (transitions collected first,
then critics alone), offline transitions in every batch, or the anchor to the pretrained policy and the slow rise of the
policy's rate (the embedded market's configuration has of those what the defaults have). At least {LOOKS - 1} looks in
that fifth, on the validation window, net; then every twentieth part of it to the end. Worth: the Sharpe ratio of
the embedded market, the score ([synthetic](../reference/synthetic.md)) of made-up ones, a sample for each seed, whose
state is shown
([optimality](optimality.md)). Limit of a fall: 0.1 a year, or a tenth of the distance to the optimum. Gap closed: share
of the distance that IQL left. Embedded: the defaults, reduced as in [generalisation](generalisation.md); made-up:
`MARKETS` in
scripts/evidence/hand_over.py.

"""
OPTIMALITY_HEAD = f"""# Evidence about nearness to the optimum

<!-- Made by scripts/evidence (`python -m scripts.evidence optimality --seeds N [--sb3-python PATH]`): change nothing
here. -->

Whole trainings, offline and online, on made-up markets ([synthetic](../reference/synthetic.md)), one sample of the
market a seed, none of
which had a part in choosing the values (`optimality_variants` in scripts/evidence/optimality.py). Score on four
years of validation: 1 is the optimal policy, 0 the better of equal weight and holding. Best look: the highest score at
any look. Seconds are of the processor's time, looks left out; to {GOAL}: until that score was first seen. Turnover and
largest mean weight: of the last policy, in the second half of the window. In the exchangeable market nothing can be
scored, and nothing should be traded; in the constant-drift market all should be in one asset. Beside the features, the
learner is shown what the law expects of each asset, given the past (scripts/evidence/known_state.py): the features
alone let through a part of that. By features: without it. There a network that is fitted to the law's belief itself on
the training window, with the optimal rule upon it, scores 0.91 to 0.92 (regime) and 0.82 to 0.87 (mean-reverting) on
one sample. Peers, where there are any: Stable-Baselines3's SAC and sb3-contrib's TQC with their own settings on the
same environment and observations for {TIMES:g} times what ours took to {GOAL} (in all, where it never came there), by
the better of two mappings onto the simplex (scripts/peers/sb3_market.py).

"""
HINT = "Made with: python -m venv peers && peers/bin/pip install -c constraints.txt -e . sb3-contrib"
PENDULUM_HEAD = f"""# Evidence about the online update on a task that others have solved

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

Pendulum-v1 by `BCell.update_sac`, with plain networks of 64 for a Box task (`scripts/evidence/box_sac.py`), CQL off,
one update a
step, {PENDULUM_STEPS:,} steps. Mean return of {PENDULUM_EPISODES} held-out episodes by the centre of the policy, every
{WATCHED_EVERY:,} steps; {PENDULUM_GOAL:.0f} is what is usually asked of SAC here. Seconds are of one processor, for
learning alone.

"""


PLANTED_SEEDS = 3
PLANTED_HEAD = """# Evidence about planted signals

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

The offline phase alone on made-up markets ([synthetic](../reference/synthetic.md)) of the kinds' own parameters, but
for a persistence of
0.8 in the mean-reverting and a defensive ratio of 0.5 in the regime market; log return as the objective, default costs;
networks of 64, 8 epochs over 1500 episodes, gamma 0.9, decaying critics (`LEARNING` in
scripts/evidence/planted_signals.py; `OWN`, what a market has of its own), one sample of the market a seed, none of
which had a part in choosing these values. Score on four years of validation: 1 is the optimal policy, 0 the better of
equal weight and holding; mean over seeds with its 95 % interval. Policy: `bcell.iql_extraction`
([offline](../reference/offline.md)). Best
family: of the five that it learned from, each the mean of its six variants; beaten: samples on which the policy scores
more. Best variant: of all thirty, chosen in hindsight.

"""
TUNING_HEAD = f"""# Evidence about the search

<!-- Made by scripts/evidence (`make evidence`) from docs/evidence/results/*.json: change nothing here. -->

Searches of {TRIALS} trials of the demo's configuration on made-up markets ([synthetic](../reference/synthetic.md),
regime with a defensive
ratio of 0.5), one sample of the market a pair; objective: the Sharpe ratio of the validation window, one training a
trial; searched is what `tune.space` searches by default but for the weights of the objective, with sizes about the
demo's and a temperature from 0.01 (`SEARCH` in scripts/evidence/tuning_evidence.py). Market and sizes were chosen
while looking at the sample of the first pair. The best of each search is trained anew with {FRESH} seeds that no search
has seen, and scored on the test window: 1 is the optimal policy, 0 the better of equal weight and holding. Mean over
pairs, and half the width of its 95 % interval.

"""


def main(arguments: Sequence[str]) -> None:
    """Make what is missing, then write the pages."""
    pages = {
        "ablation": _ablation,
        "crises": _crises,
        "durability": _durability,
        "generalisation": _generalisation,
        "guard": _guard,
        "hand-over": _hand_over,
        "nulls": _nulls,
        "offline": _offline,
        "optimality": _optimality,
        "pendulum": _pendulum,
        "planted": _planted,
        "runs": _runs,
        "tune": _tune,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["all", *pages], default="all")
    parser.add_argument("--retrain", type=int, default=20, metavar="N", help="nulls: demo trainings on N null markets")
    parser.add_argument("--seeds", type=_count, default=5, help="seeds of the guard's trainings and others that say so")
    parser.add_argument("--markets", action="store_true", help="generalisation: read the test windows of other markets")
    parser.add_argument(
        "--sb3-python", type=_interpreter, metavar="PATH", help=f"optimality: peers beside ours. {HINT}"
    )
    given = parser.parse_args(arguments)
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
    page = ABLATION_HEAD + ablation_table(results, classical_results(Config())) + _made(results)
    write_atomically(PAGES / "ablation.md", page)


def _crises(given: argparse.Namespace) -> None:
    """Gate weights of trained agents in crises."""
    results = run_missing(crises_variants(given.seeds), KEPT, RUNS)
    write_atomically(PAGES / "crises.md", CRISES_HEAD + crises_table(results) + _made(results))


def _durability(given: argparse.Namespace) -> None:
    """Trainings that are killed, meet faults of the disk, or read damaged files."""
    result = made_once(KEPT / "durability.json", RUNS / "durability")
    write_atomically(PAGES / "durability.md", durability_page(result))


def _generalisation(given: argparse.Namespace) -> None:
    """Contribution of each regulariser by walk-forward, and the chosen configuration on other markets."""
    results = run_missing(walk_forward_variants(given.seeds), KEPT, RUNS)
    reading: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    if given.markets:
        others = run_missing(market_variants(chosen_overrides(results), given.seeds, RUNS, REDUCED), KEPT, RUNS)
        reading = run_missing(reading_variants(chosen_overrides(results)), KEPT, RUNS)
    write_generalisation(results, reading, others)


def write_generalisation(
    results: list[dict[str, Any]], reading: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    """The page about generalisation, readings of earlier defaults among it."""
    page = GENERALISATION_HEAD + ranking_table(results) + "\n" + account(results)
    if reading:
        earlier = [json.loads(path.read_text()) for path in sorted(KEPT.glob("generalisation-earlier-reading-*.json"))]
        page += READING_HEAD + reading_table(reading[0]) + earlier_readings(earlier)
    if others:
        page += MARKETS_HEAD + market_table(others)
    write_atomically(PAGES / "generalisation.md", page + _made([*results, *reading, *others]))


def _hand_over(given: argparse.Namespace) -> None:
    """Validation value across the hand-over to the online phase, with and without its safeguards."""
    results = run_missing(hand_over_variants(given.seeds), KEPT, RUNS)
    page = HAND_OVER_HEAD + hand_over_table(results) + _made(results)
    write_atomically(PAGES / "hand-over.md", page)


def _guard(given: argparse.Namespace) -> None:
    """Faults injected into trainings, with the guard and without."""
    results = run_missing(guard_variants(given.seeds), KEPT, RUNS)
    write_atomically(PAGES / "guard.md", GUARD_HEAD + guard_table(results) + _made(results))


def _offline(given: argparse.Namespace) -> None:
    """The offline methods beside the families that they learn from."""
    results = run_missing(OFFLINE, KEPT, RUNS)
    page = OFFLINE_HEAD + offline_table(results, family_results(Config())) + _made(results)
    write_atomically(PAGES / "offline.md", page)


def _optimality(given: argparse.Namespace) -> None:
    """Scores against the known optimum and training time; of peers too, where they are installed."""
    variants = optimality_variants(given.seeds)
    results = run_missing(variants, KEPT, RUNS)
    peers: list[dict[str, Any]] = []
    if given.sb3_python is not None:
        for variant, own in zip(variants, results, strict=True):
            config = variant.config(own["seed"], RUNS)
            peers += peers_on(own, config, given.sb3_python, ROOT / "scripts" / "peers" / "sb3_market.py", KEPT)
    page = OPTIMALITY_HEAD + optimality_table(results, peers) + _made(results)
    write_atomically(PAGES / "optimality.md", page)


def _pendulum(given: argparse.Namespace) -> None:
    """Online learning on a Box task."""
    results = run_missing(pendulum_variants(given.seeds), KEPT, RUNS)
    page = PENDULUM_HEAD + pendulum_table(results) + _made(results)
    write_atomically(PAGES / "pendulum.md", page)


def _planted(given: argparse.Namespace) -> None:
    """Scores of offline learning on markets whose optimum is known."""
    results = run_missing(planted_variants(PLANTED_SEEDS), KEPT, RUNS)
    write_atomically(PAGES / "planted.md", PLANTED_HEAD + planted_table(results) + _made(results))


def _runs(given: argparse.Namespace) -> None:
    """Whole trainings beside the classical strategies."""
    results = run_missing(VARIANTS, KEPT, RUNS)
    page = HEAD + table(results, classical_results(Config())) + _made(results)
    write_atomically(PAGES / "runs.md", page)


def _tune(given: argparse.Namespace) -> None:
    """Results of a search, compared with random trials and with no search."""
    results = run_missing(tuning_variants(ROOT / "configs" / "demo.yaml"), KEPT, RUNS)
    write_atomically(PAGES / "tuning.md", TUNING_HEAD + tuning_table(results) + _made(results))


def _nulls(given: argparse.Namespace) -> None:
    """The verdict where nothing can be won, and where an edge was planted."""
    study, demo = NullStudy(), ROOT / "configs" / "demo.yaml"
    rows = summarise_study(study_markets(study, frozen_agent(demo, RUNS / "frozen"), RUNS / "nulls.jsonl"))
    content = {"code": code_hash(), "samples": study.samples, "rows": rows}
    write_atomically(KEPT / "nulls.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    lines = retraining_lines(retrain_missing(demo, given.retrain, KEPT, RUNS / "nulls"))
    made = f"\nCode {code_hash()}; {study.samples} resamples a verdict, mean block 21 days.\n"
    write_atomically(PAGES / "nulls.md", NULLS_HEAD + study_table(rows) + lines + made)


def _made(results: Sequence[Mapping[str, Any]]) -> str:
    """Provenance of a table."""
    seconds = [sum(result["seconds"].values()) for result in results]
    codes = ", ".join(sorted({result["code"] for result in results}))
    return f"\nCode {codes}; {len(results)} trainings of {min(seconds):.0f} to {max(seconds):.0f} s each.\n"


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
