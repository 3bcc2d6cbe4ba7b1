"""Scores are paid at the ends of segments and of episodes, in the same sum, whatever rollouts they are spread over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from finflow.config import PreferenceConfig
from finflow.errors import ConfigError
from finflow.guard.checkpoint_folder import capture, restore
from finflow.tensor_file import read_tensors
from finflow.training.on_policy.on_policy_market import SegmentRewards
from tests.training.test_reward_hacking import LOOKS, OFFLINE, RETURN, likes
from tests.training.whole_trainings import Make, Stop, check_same_files, latest, train_through

__all__ = ["likes"]
#: Two portfolios, of which the second's episode ends with its third decision.
SCORES = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [5.0, 50.0], [6.0, 60.0]])
ENDED = torch.zeros_like(SCORES)
ENDED[2, 1] = 1.0


def by_segment(segment: int) -> SegmentRewards:
    return SegmentRewards(PreferenceConfig(paid="segment", segment=segment), 2, torch.device("cpu"))


def test_the_sum_is_paid_at_the_end_of_a_segment_and_of_an_episode() -> None:
    expected = [[0.0, 0.0], [3.0, 30.0], [0.0, 30.0], [7.0, 0.0], [0.0, 90.0], [11.0, 0.0]]
    assert by_segment(2).assign(SCORES, ENDED).tolist() == expected


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_rollouts_may_cut_a_segment_and_a_resume_goes_on_within_it(cut: int) -> None:
    first, second = by_segment(3), by_segment(3)
    parts = [first.assign(SCORES[:cut], ENDED[:cut])]
    restore(second, *capture(first))
    parts.append(second.assign(SCORES[cut:], ENDED[cut:]))
    assert torch.equal(torch.cat(parts), by_segment(3).assign(SCORES, ENDED))


def test_a_training_paid_by_the_segment_resumes_to_the_same_bits(
    tiny: Make, likes: Callable[[int], Path], stop_training: Stop
) -> None:
    keys = {"objectives__preference__paid": "segment", "objectives__preference__segment": 8}
    keys |= {"train__online_episodes": 25, "online__rollout": 96, "train__validation_updates": 100}
    config = tiny(**LOOKS | keys, objectives__preference__model=likes(RETURN))
    whole = train_through(config)
    half = stop_training(config, OFFLINE + 2)
    assert int(read_tensors(latest(half))[0]["on_policy/pay/age"].max()) > 0
    again = train_through(config, resume=half.run_folder)
    check_same_files(again, whole)


def test_what_cannot_be_paid_by_the_segment_is_one_line(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"paid = segment needs objectives\.reward = preference"):
        tiny(objectives__preference__paid="segment")
    learned = {"objectives__reward": "preference", "objectives__preference__model": "model.safetensors"}
    with pytest.raises(ConfigError, match=r"needs online\.algorithm = ppo"):
        tiny(objectives__preference__paid="segment", online__algorithm="sac", **learned)
