"""The errors and priorities of R2D2 against numbers worked out step by step in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.r2d2.losses import masked_mean, n_step_errors, sequence_priority

T, B, A = 7, 3, 4


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x):
    """By bisection, so that it knows no formula but h."""
    low, high = np.full_like(x, -1e4), np.full_like(x, 1e4)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = np.where(h(middle) < x, middle, low), np.where(h(middle) < x, high, middle)
    return (low + high) / 2


def make(seed=0):
    """Random sequences: the first goes on, the second terminates after 4 actions, the third is cut off after 5."""
    random = np.random.default_rng(seed)
    mask = np.ones((T + 1, B))
    reward, discount = random.standard_normal((T, B)) * 3, np.full((T, B), 0.9)
    discount[3, 1] = 0.0
    for column, actions in ((1, 4), (2, 5)):
        mask[actions:, column] = 0
        reward[actions:, column] = discount[actions:, column] = 0
    return {
        "q_tm1": random.standard_normal((T, B, A)),
        "a_tm1": random.integers(A, size=(T, B)),
        "r_t": reward,
        "discount_t": discount,
        "q_t_value": random.standard_normal((T, B, A)) * 2,
        "q_t_selector": random.standard_normal((T, B, A)),
        "continues_t": mask[1:],
    }


def reference(n_step, *, q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector, continues_t):
    errors = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            total, factor, step = 0.0, 1.0, t
            while True:
                total += factor * r_t[step, b]
                factor *= discount_t[step, b]
                if step == min(t + n_step, T) - 1 or not continues_t[step, b]:
                    break
                step += 1
            best = np.argmax(q_t_selector[step, b])
            total += factor * h_inverse(q_t_value[step, b])[best]
            errors[t, b] = h(total) - q_tm1[t, b, a_tm1[t, b]]
    return errors


@pytest.mark.parametrize("n_step", [1, 3, 5, 20])
def test_targets_end_where_the_sequence_or_the_episode_ends(n_step):
    arguments = make()
    floats = {name: jnp.asarray(value, value.dtype.name.replace("64", "32")) for name, value in arguments.items()}
    # The inverse of h loses some digits in single precision.
    np.testing.assert_allclose(
        n_step_errors(**floats, n_step=n_step), reference(n_step, **arguments), atol=2e-3, rtol=1e-3
    )


def test_the_gradient_goes_through_the_values_of_the_actions_taken_only():
    arguments = {name: jnp.asarray(value, value.dtype.name.replace("64", "32")) for name, value in make(seed=1).items()}

    def total(q_tm1, q_t_value, q_t_selector):
        changed = {**arguments, "q_tm1": q_tm1, "q_t_value": q_t_value, "q_t_selector": q_t_selector}
        return jnp.sum(n_step_errors(**changed, n_step=3))

    names = ("q_tm1", "q_t_value", "q_t_selector")
    gradients = jax.grad(total, argnums=(0, 1, 2))(*(arguments[name] for name in names))
    np.testing.assert_array_equal(gradients[0], -np.eye(A)[np.asarray(arguments["a_tm1"])])
    assert not np.any(gradients[1])
    assert not np.any(gradients[2])


def test_the_priority_is_nine_tenths_the_largest_error_and_one_tenth_the_mean():
    td_error = jnp.array([[1.0, -3.0], [-2.0, 1.0], [50.0, 2.0]])
    mask = jnp.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(sequence_priority(td_error, mask, 0.9), [0.9 * 2 + 0.15, 0.9 * 3 + 0.2], rtol=1e-6)
    np.testing.assert_allclose(sequence_priority(td_error, mask, 0.0), [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(sequence_priority(td_error, mask, 1.0), [2.0, 3.0], rtol=1e-6)


def test_the_mean_of_nothing_is_nothing():
    np.testing.assert_array_equal(masked_mean(jnp.ones((3, 2)), jnp.zeros((3, 2))), [0.0, 0.0])
