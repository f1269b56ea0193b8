"""Settings of every agent: what cannot work is refused before anything runs."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from topology.agents.core.config import AgentConfig, CheckedConfig, ReplayConfig
from topology.agents.core.updates import falling_rate
from topology.agents.dmpo.config import DMPOConfig
from topology.agents.dqn.config import DQNConfig
from topology.agents.madqn.config import MADQNConfig
from topology.agents.r2d2.config import R2D2Config
from topology.errors import ProgramError


def faults(**settings):
    with pytest.raises(ProgramError) as error:
        AgentConfig(**settings)
    return "\n".join(error.value.faults)


def test_a_batch_must_divide_over_the_devices_of_the_learner():
    assert AgentConfig(batch_size=64, learner_devices=4).learner_devices == 4
    assert "learner_devices=3 does not divide batch_size=64" in faults(learner_devices=3)
    assert "learner_devices=0: at least 1" in faults(learner_devices=0)


def test_nodes_share_an_accelerator_only_when_each_is_given_its_part():
    text = faults(accelerator_roles=("learner", "actor"), num_actors=3)
    assert "gives 4 nodes an accelerator" in text
    assert "at most 0.25" in text
    AgentConfig(accelerator_roles=("learner", "actor"), num_actors=3, accelerator_memory_fraction=0.25)
    AgentConfig(accelerator_roles=("actor",), num_actors=1)
    AgentConfig(accelerator_roles=())
    assert "'gpu' is none of learner, evaluator, actor" in faults(accelerator_roles=("gpu",))
    assert "accelerator_memory_fraction=0: above 0" in faults(accelerator_memory_fraction=0)


@dataclass(frozen=True, kw_only=True)
class Settings(CheckedConfig):
    number: int = 1
    factor: float = 1.0
    word: str = "a"
    switch: bool = False
    sizes: tuple[int, ...] = (1,)
    limit: int | None = None
    mode: Literal["a", "b"] = "a"

    def faults(self):
        yield from self.below_one("number")


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("number", "4", "number='4': a whole number"),
        ("number", 4.0, "number=4.0: a whole number"),
        ("number", True, "number=True: a whole number"),
        ("number", None, "number=None: a whole number"),
        ("factor", "1", "factor='1': a finite number"),
        ("factor", math.nan, "factor=nan: a finite number"),
        ("factor", math.inf, "factor=inf: a finite number"),
        ("factor", 10**400, "factor=1000"),
        ("word", 3, "word=3: a text"),
        ("switch", 1, "switch=1: True or False"),
        ("sizes", 64, "sizes=64: a tuple of whole numbers; one of them is written (1,)"),
        ("sizes", [64], "sizes=[64]: a tuple of whole numbers"),
        ("sizes", (64, "64"), "sizes=(64, '64'): a tuple of whole numbers"),
        ("limit", 0.5, "limit=0.5: a whole number or None"),
    ],
)
def test_values_of_another_type_are_refused_before_they_are_compared(name, value, fault):
    with pytest.raises(ProgramError) as error:
        Settings(**{name: value})
    assert len(error.value.faults) == 1
    assert error.value.faults[0].startswith(fault)


def test_what_is_wrong_with_the_others_is_told_as_well():
    assert faults(num_actors=0, learner_devices="all", seed=-1) == (
        "learner_devices='all': a whole number or None\nnum_actors=0: at least 1\nseed=-1: at least 0"
    )

    @dataclass(frozen=True, kw_only=True)
    class Needed(Settings):
        place: str

    with pytest.raises(ProgramError) as error:
        Needed(place=3, number=0)
    assert error.value.faults == ("place=3: a text",)


def test_numbers_of_numpy_whole_floats_and_what_the_owner_checks_are_taken():
    made = Settings(number=np.int64(3), factor=2, sizes=(), limit=10**400, mode="c")
    assert (made.number, made.factor, made.limit) == (3, 2, 10**400)
    with pytest.raises(ProgramError, match="number=0: at least 1"):
        Settings(number=0)


def test_settings_whose_types_are_for_type_checkers_only_are_left_to_their_owner():
    @dataclass(frozen=True, kw_only=True)
    class Own(CheckedConfig):
        number: "Elsewhere" = 1  # noqa: F821

    assert Own(number="4").number == "4"


def test_what_no_machine_could_hold_is_refused():
    text = faults(num_actors=10**9, inference_servers=10**9, environments_per_actor=10**6)
    assert "num_actors=1000000000: at most 100,000" in text
    assert "environments_per_actor=1000000: at most 100,000" in text
    assert "at most 2,147,483,647" in faults(batch_size=10**12)
    assert "at most 1,000,000,000,000,000,000" in faults(max_actor_steps=10**400)
    with pytest.raises(ProgramError, match="max_replay_size=1000000000000: at most 2,147,483,647"):
        ReplayConfig(max_replay_size=10**12)
    assert "final_evaluation_timeout_s=1e+300: at most 1,000,000,000" in faults(final_evaluation_timeout_s=1e300)
    assert "inference_timeout_ms=1e+300: at most 1,000,000,000,000" in faults(inference_timeout_ms=1e300)
    AgentConfig(final_evaluation_timeout_s=1e9, cache_refresh_ms=10**11, cache_stale_ms=10**12)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DQNConfig, "target_update_period"),
        (R2D2Config, "target_update_period"),
        (MADQNConfig, "target_update_period"),
        (DMPOConfig, "target_policy_update_period"),
        (DMPOConfig, "target_critic_update_period"),
    ],
)
def test_a_period_is_as_long_as_a_learner_can_count(config, name):
    assert getattr(config(**{name: 2**31 - 1}), name) == 2**31 - 1
    with pytest.raises(ProgramError, match=f"{name}=2147483648: at most 2,147,483,647"):
        config(**{name: 2**31})


def test_a_run_that_would_end_before_the_first_update_is_refused():
    with pytest.raises(ProgramError, match=r"max_actor_steps=999 is below min_replay_size=1000: .* before the first"):
        ReplayConfig(max_actor_steps=999)
    assert ReplayConfig(max_actor_steps=1000).max_actor_steps == 1000


def test_seeds_restarts_and_evaluators_are_not_negative():
    assert "seed=-1: at least 0" in faults(seed=-1)
    assert "max_restarts=-1: at least 0" in faults(max_restarts=-1)
    assert "num_evaluators=-1: at least 0" in faults(num_evaluators=-1)
    assert "max_evaluation_steps=0: at least 1" in faults(max_evaluation_steps=0)
    assert AgentConfig(num_evaluators=0).num_final_evaluations == 0
    assert AgentConfig(num_evaluators=2, final_evaluation_episodes=0).num_final_evaluations == 0
    assert AgentConfig(num_evaluators=2).num_final_evaluations == 2


def test_a_rate_that_falls_over_more_updates_than_can_be_counted_falls_as_slowly_as_it_can():
    rate = falling_rate(1e-3, 1e-4, 10**18)
    assert float(rate(0)) == pytest.approx(1e-3)
    assert 5e-4 < float(rate(2**30)) < 6e-4
