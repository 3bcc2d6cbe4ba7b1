"""Facts of checkpoints of older formats, brought to the present one; and facts of any format, checked.

A SHA-256 tells that a file is as it was written, not that it was finflow that wrote it: so every fact that the rest of
the program reads is typed and bounded here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from finflow.agent.learners.bcell import PREFIX, with_members
from finflow.config import LENSES
from finflow.errors import CheckpointError
from finflow.tensor_file import VERSION
from finflow.training.phase_names import ONLINE

Facts = dict[str, Any]
POLICY, PRIOR = "bcell/policy/", "bcell/prior/"
Count = Annotated[int, Field(ge=0, le=10**12)]
Text = Annotated[str, Field(max_length=200)]


def _from_1(facts: Facts) -> Facts:
    """Format 1 knew no schedules of their own (the entropy coefficient followed the online updates), no reward
    normalisation, no guard, and of the runtime only torch's version; its replay had no room beside the ring."""
    counters = facts["training"]["counters"]
    taken = {"taken": counters["phase_update"] if counters["phase"] == ONLINE else 0}
    added = {
        "entropy_schedule": taken,
        "target_entropy_schedule": dict(taken),
        "reward_normalizer": None,
        "watch": None,
    }
    if isinstance(world := facts["training"].get("world"), dict):
        added["world"] = {**world, "first": None}
    older = {name: value for name, value in facts.items() if name != "torch"}
    return {**older, "training": {**facts["training"], **added}, "runtime": {"torch": str(facts.get("torch"))}}


def with_prior(path: Path, tensors: dict[str, Tensor], facts: Facts) -> tuple[dict[str, Tensor], Facts]:
    """A checkpoint of the online phase whose agent does not remember the policy as it was pretrained: the policy as it
    stands takes that place, and how far it moves is measured from there. Where the agent's blend was decided on before
    the policies of the blocks belonged to it, its own policy stands in for them."""
    training = {**dict.fromkeys(("rollouts", "on_policy", "reference", "constraint")), **facts["training"]}
    for name in ("learner", "bcell"):  # a phase that began before sigma_A was measured ends in the units it began with
        if isinstance(training.get(name), dict):
            training[name] = {"advantage_scale": 1.0, **training[name]}
    facts = {**facts, "training": training}
    agent = training.get("bcell")
    if isinstance(agent, dict) and "blend" in agent and "members" not in agent:
        try:
            count = int(facts["bcell"]["rollouts"]["blocks"])
        except (LookupError, TypeError, ValueError):
            raise CheckpointError(f"{path} does not say how its agent is configured; use another one") from None
        tensors = with_members(tensors, PREFIX, count if count > 1 else 0)
        agent = {**agent, "members": None}
        facts = {**facts, "training": {**facts["training"], "bcell": agent}}
    if not isinstance(agent, dict) or "prior" in agent:
        return tensors, facts
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(POLICY)}
    added = {PRIOR + name.removeprefix(POLICY): tensor.clone() for name, tensor in own.items()}
    training = {**facts["training"], "bcell": {**agent, "prior": agent.get("policy")}}
    return {**tensors, **added}, {**facts, "training": training}


#: Version -> what brings its facts to the next one.
MIGRATIONS: dict[int, Callable[[Facts], Facts]] = {1: _from_1}


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Counters(_Checked):
    phase: Literal["offline", "online"]
    update: Count
    phase_update: Count
    vector_step: Count
    best_score: float | None
    best_update: Count | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.phase_update > self.update or (self.best_update or 0) > self.update:
            raise ValueError("they count more updates than there were")
        if (self.best_score is None) != (self.best_update is None):
            raise ValueError("the best score and its update belong together")
        return self


class _Training(_Checked):
    counters: _Counters


class _Shape(_Checked):
    n_asset_features: Annotated[int, Field(ge=1, le=10_000)]
    n_market_features: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Annotated[int, Field(ge=1, le=8192)]
    lenses: Annotated[list[list[Count]], Field(min_length=1, max_length=len(LENSES))]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.lenses) not in (1, len(LENSES)):
            raise ValueError("an agent has five experts, or one head")
        if any(not lens or max(lens) >= self.n_asset_features for lens in self.lenses):
            raise ValueError("a lens reads features that there are not")
        return self


class _Features(_Checked):
    assets: list[Text]
    market: list[Text]


class _Log(_Checked):
    metrics: Count = Field(alias="metrics.jsonl", default=0)
    events: Count = Field(alias="events.jsonl", default=0)
    step: Annotated[int, Field(ge=-1, le=10**12)] = -1


class _Facts(_Checked):
    training: _Training
    config: Annotated[str, Field(max_length=100_000)]
    config_hash: Text
    market: Text
    shape: _Shape
    features: _Features | None = None
    log: _Log
    runtime: dict[Text, Text]


def checked_facts(path: Path, version: int, facts: Facts) -> Facts:
    """A checkpoint's facts in the present format.

    Parameters
    ----------
    path : Path
        For messages.
    version : int
        Of the file's format.
    facts : dict

    Raises
    ------
    CheckpointError
        If they are not those of a training.
    """
    missing = [name for name in ("training", "config", "shape", "market", "log") if name not in facts]
    if missing:
        raise CheckpointError(
            f"{path} is not a checkpoint of a training, it has no {missing[0]}; give a run folder or a file in its "
            "models folder"
        )
    try:
        for older in range(version, VERSION):
            facts = MIGRATIONS[older](facts)
        _Facts.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:80]
        raise CheckpointError(_refusal(path, f"{place or 'it'}: {first['msg']}")) from None
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(_refusal(path, f"{type(error).__name__}: {error}")) from None
    return facts


def _refusal(path: Path, why: str) -> str:
    short = " ".join(why.split())[:160]
    return f"{path} is not a checkpoint of finflow ({short}); use another checkpoint of the run"
