import numpy as np
import pytest

from topology.agents.core.exploration import epsilon_ladder


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [0.4]),
        (2, [0.00065536, 0.4]),
        (4, [0.00065536, 0.005559, 0.047156, 0.4]),
    ],
)
def test_the_ladder_is_that_of_the_paper(count, expected):
    np.testing.assert_allclose(epsilon_ladder(count), expected, rtol=1e-3)


def test_the_ladder_is_the_formula():
    np.testing.assert_allclose(epsilon_ladder(8), [0.4 ** (1 + 7 * i / 7) for i in range(7, -1, -1)])


def test_no_actor_is_refused():
    with pytest.raises(ValueError, match="at least 1 actor, got 0"):
        epsilon_ladder(0)
