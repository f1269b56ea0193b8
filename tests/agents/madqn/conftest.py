"""Specs of teams, and sequences of their steps."""

import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.sequences import StepSequence
from topology.environments.specs import EnvironmentSpec


def _make_spec(actions, shapes=None, masked=()):
    """A spec of agents by their numbers of actions; those of `masked` have a mask."""
    views = {a: specs.Array((shapes or {}).get(a, (2,)), np.float32) for a in actions}
    masks = {a: specs.BoundedArray((n,), np.int8, 0, 1) for a, n in actions.items()}
    return EnvironmentSpec(
        observations={a: {"observation": v, "action_mask": masks[a]} if a in masked else v for a, v in views.items()},
        actions={a: specs.DiscreteArray(n) for a, n in actions.items()},
        rewards=dict.fromkeys(actions, specs.Array((), np.float32)),
        discounts=dict.fromkeys(actions, specs.Array((), np.float32)),
    )


def _make_sequences(spec, batch, length, *, seed=0, memory_size=None, mask=None):
    """Random steps `[batch, length, ...]` in the order in which the agents are given."""
    random = np.random.default_rng(seed)
    size = len(spec.actions)
    counts = [spec.actions[a].num_values for a in spec.actions]

    def draw(leaf):
        if isinstance(leaf, dict):
            legal = random.integers(2, size=(batch, length, *leaf["action_mask"].shape)).astype(np.int8)
            legal[..., 0] = 1
            return {"observation": draw(leaf["observation"]), "action_mask": legal}
        return random.standard_normal((batch, length, *leaf.shape)).astype(np.float32)

    return StepSequence(
        observation={a: draw(leaf) for a, leaf in spec.observations.items()},
        action=np.stack([random.integers(n, size=(batch, length)) for n in counts], axis=-1).astype(np.int32),
        reward=random.standard_normal((batch, length, size)).astype(np.float32),
        discount=np.full((batch, length, size), 0.9, np.float32),
        mask=np.ones((batch, length), np.float32) if mask is None else np.asarray(mask, np.float32),
        state=() if memory_size is None else random.standard_normal((batch, size, memory_size)).astype(np.float32),
    )


@pytest.fixture(scope="session")
def make_spec():
    return _make_spec


@pytest.fixture(scope="session")
def make_sequences():
    return _make_sequences
