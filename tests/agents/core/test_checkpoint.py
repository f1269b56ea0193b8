from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.errors import LaunchError, ProgramError


class State(NamedTuple):
    weights: dict
    rest: tuple


def state(value):
    return State(
        {"w": jnp.full((3,), value, jnp.float32), "h": jnp.full((2,), value, jnp.bfloat16)}, (jnp.int32(value),)
    )


def test_the_newest_state_comes_back_with_its_types(tmp_path):
    keeper = Checkpointer(tmp_path / "learner")
    assert keeper.restore(state(0)) is None
    for step in (9, 10, 100, 100):
        keeper.save(step, state(step))
    restored = Checkpointer(tmp_path / "learner").restore(state(0))
    assert type(restored) is State
    np.testing.assert_array_equal(restored.weights["w"], [100.0, 100.0, 100.0])
    assert restored.weights["h"].dtype == jnp.bfloat16
    assert float(restored.weights["h"][1]) == 100.0
    assert int(restored.rest[0]) == 100
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["10.npz", "100.npz"]


def test_a_save_that_was_killed_half_way_is_not_seen(tmp_path):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, state(1))
    whole = (tmp_path / "1.npz").read_bytes()
    (tmp_path / ".new").write_bytes(whole[: len(whole) // 2])
    assert int(Checkpointer(tmp_path).restore(state(0)).rest[0]) == 1
    Checkpointer(tmp_path).save(2, state(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.npz", "2.npz"]


@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda whole: b"x" * 99])
def test_a_damaged_state_says_what_to_do(tmp_path, damage):
    keeper = Checkpointer(tmp_path)
    for step in (1, 2):
        keeper.save(step, state(step))
    path = tmp_path / "2.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ProgramError, match=r"2\.npz cannot be read: .* delete it to go on from an older state"):
        keeper.restore(state(0))
    path.unlink()
    assert int(keeper.restore(state(0)).rest[0]) == 1


def test_a_save_that_fails_leaves_what_is_there(tmp_path, monkeypatch):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, state(1))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LaunchError, match=r"No space left on device\. Make room"):
        keeper.save(2, state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["1.npz"]


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (state(0)._replace(rest=(jnp.zeros(4),)), r"rest.0: \(\) there, \(4,\) here"),
        (state(0)._replace(weights={"v": jnp.zeros(3)}), r"weights.v: nothing there, \(3,\) here"),
    ],
)
def test_the_state_of_another_network_is_refused(tmp_path, other, fault):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, state(1))
    with pytest.raises(ProgramError, match=fault):
        keeper.restore(other)


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Checkpointer(tmp_path, max_to_keep=0)
