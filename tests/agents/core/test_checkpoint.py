import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.errors import ProgramError


def state(value):
    return {"w": jnp.full((3,), value), "n": (jnp.int32(value),)}


def test_the_newest_state_comes_back(tmp_path):
    keeper = Checkpointer(tmp_path / "learner", max_to_keep=2)
    assert keeper.restore(state(0)) is None
    for step in (1, 2, 3, 3):
        keeper.save(step, state(step))
    keeper.close()
    again = Checkpointer(tmp_path / "learner")
    restored = again.restore(state(0))
    np.testing.assert_array_equal(restored["w"], [3.0, 3.0, 3.0])
    assert int(restored["n"][0]) == 3
    again.close()
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["2", "3"]


def test_a_save_that_was_killed_half_way_is_not_seen(tmp_path):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, state(1))
    keeper.close()
    half = tmp_path / "2.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "junk").write_text("half")
    again = Checkpointer(tmp_path)
    assert int(again.restore(state(0))["n"][0]) == 1
    again.close()


@pytest.mark.parametrize(
    "other",
    [{"w": jnp.zeros((4,)), "n": (jnp.int32(0),)}, {"v": jnp.zeros((3,)), "n": (jnp.int32(0),)}],
    ids=["shape", "names"],
)
def test_the_state_of_another_network_is_refused(tmp_path, other):
    keeper = Checkpointer(tmp_path)
    keeper.save(1, state(1))
    with pytest.raises(ProgramError, match="give the run another directory"):
        keeper.restore(other)
    keeper.close()
