"""V-trace and the loss, against sums written out in numpy, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.impala.losses import action_log_probability, impala_loss, masked_mean, vtrace

T, B, A = 9, 4, 3


def sequences(seed, *, ends=0.2):
    """Random sequences; where `mask` is 0 an episode has ended a row before, as `SequenceAdder` writes them."""
    random = np.random.default_rng(seed)
    mask = (random.random((T, B)) > ends).astype(np.float32)
    number = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    return {
        "logits": number(T, B, A),
        "values": number(T, B),
        "behaviour_logits": number(T, B, A),
        "actions": random.integers(A, size=(T, B)).astype(np.int32),
        "rewards": number(T, B) * mask,
        "discounts": (0.9 * random.integers(2, size=(T, B))).astype(np.float32) * mask,
        "mask": mask,
    }


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def of_action(table, actions):
    return np.take_along_axis(table, actions[..., None], axis=-1)[..., 0]


def ratios(data):
    log_pi, log_mu = log_softmax(data["logits"]), log_softmax(data["behaviour_logits"])
    return np.exp(of_action(log_pi - log_mu, data["actions"]))


def reference(data, max_ratio, max_policy_ratio, trace_decay):
    """Targets and advantages by the definition: a sum over all later steps, each with its product of traces."""
    v, r, g, mask = (data[name].astype(np.float64) for name in ("values", "rewards", "discounts", "mask"))
    ratio = ratios(data)
    last = T - 1
    targets = v.copy()
    for b in range(B):
        for s in range(last):
            traces = 1.0
            for t in range(s, last):
                if mask[t, b] == 0:
                    break
                error = min(max_ratio, ratio[t, b]) * (r[t, b] + g[t, b] * v[t + 1, b] - v[t, b])
                targets[s, b] += traces * error
                traces *= g[t, b] * trace_decay * min(1.0, ratio[t, b])
    following = trace_decay * targets[1:] + (1 - trace_decay) * v[1:]
    following[-1] = v[-1]
    advantages = np.minimum(max_policy_ratio, ratio[:-1]) * (r[:-1] + g[:-1] * following - v[:-1])
    return targets[:-1], advantages


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("max_ratio", "max_policy_ratio", "trace_decay"), [(1, 1, 1), (0.8, 1.5, 0.9), (3, 2, 0.5)])
def test_targets_and_advantages_are_those_of_the_definition(seed, max_ratio, max_policy_ratio, trace_decay):
    data = sequences(seed)
    result = vtrace(
        v_tm1=data["values"][:-1],
        v_t=data["values"][1:],
        r_t=data["rewards"][:-1],
        discount_t=data["discounts"][:-1],
        ratio_tm1=ratios(data)[:-1].astype(np.float32),
        mask_tm1=data["mask"][:-1],
        max_ratio=float(max_ratio),
        max_policy_ratio=float(max_policy_ratio),
        trace_decay=float(trace_decay),
    )
    targets, advantages = reference(data, max_ratio, max_policy_ratio, trace_decay)
    counts = data["mask"][:-1] > 0
    np.testing.assert_allclose(np.asarray(result.targets)[counts], targets[counts], atol=1e-4)
    np.testing.assert_allclose(np.asarray(result.advantages)[counts], advantages[counts], atol=1e-4)


def test_on_policy_the_target_is_the_discounted_return():
    data = sequences(0, ends=0.0) | {"discounts": np.full((T, B), 0.9, np.float32)}
    data["behaviour_logits"] = data["logits"]
    targets, _ = reference(data, 1.0, 1.0, 1.0)
    returns = data["values"][-1].astype(np.float64)
    for t in reversed(range(T - 1)):
        returns = data["rewards"][t] + 0.9 * returns
        np.testing.assert_allclose(targets[t], returns, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_sum_of_its_parts_written_out(seed):
    data = sequences(seed)
    result = impala_loss(**data, entropy_cost=0.03, baseline_cost=0.4)
    targets, advantages = reference(data, 1.0, 1.0, 1.0)
    mask, log_pi = data["mask"][:-1], log_softmax(data["logits"])[:-1]
    mean = lambda x: np.sum(x * mask) / np.sum(mask)  # noqa: E731
    policy = mean(-of_action(log_pi, data["actions"][:-1]) * advantages)
    baseline = mean(0.5 * (targets - data["values"][:-1]) ** 2)
    entropy = mean(-np.sum(np.exp(log_pi) * log_pi, axis=-1))
    np.testing.assert_allclose(
        [result.policy_loss, result.baseline_loss, result.entropy, result.ratio],
        [policy, baseline, entropy, mean(ratios(data)[:-1])],
        rtol=1e-4,
    )
    np.testing.assert_allclose(result.loss, policy + 0.4 * baseline - 0.03 * entropy, rtol=1e-4)


def gradient(data):
    def loss(logits, values):
        return impala_loss(**data | {"logits": logits, "values": values}, entropy_cost=0.03, baseline_cost=0.4).loss

    return jax.grad(loss, argnums=(0, 1))(jnp.asarray(data["logits"]), jnp.asarray(data["values"]))


def test_gradients_go_through_the_policy_and_the_values_alone():
    """Against derivatives written out: targets, advantages and ratios count as numbers."""
    data = sequences(1)
    logits, values = gradient(data)
    targets, advantages = reference(data, 1.0, 1.0, 1.0)
    mask, log_pi = data["mask"][:-1], log_softmax(data["logits"])[:-1]
    weight, pi = mask / np.sum(mask), np.exp(log_softmax(data["logits"])[:-1])
    np.testing.assert_allclose(values[:-1], 0.4 * weight * (data["values"][:-1] - targets), atol=1e-5)
    chosen = np.eye(A)[data["actions"][:-1]]
    policy = -(weight * advantages)[..., None] * (chosen - pi)
    entropy = -np.sum(pi * log_pi, axis=-1, keepdims=True)
    expected = policy + 0.03 * weight[..., None] * pi * (log_pi + entropy)
    np.testing.assert_allclose(logits[:-1], expected, atol=1e-5)
    assert not np.any(logits[-1])
    assert not np.any(values[-1])


def test_what_lies_in_rows_that_fill_a_sequence_does_not_matter():
    data = sequences(2, ends=0.0)
    data["mask"][5:] = data["rewards"][5:] = data["discounts"][5:] = 0.0
    data["discounts"][4] = 0.9  # cut off: the value of row 5 still counts
    others = {name: array.copy() for name, array in sequences(3, ends=0.0).items()}
    changed = {name: np.concatenate([data[name][:6], others[name][6:]]) for name in data}
    changed["mask"] = data["mask"]
    changed["logits"][5:], changed["behaviour_logits"][5:] = 0.0, -50.0 * np.eye(A)[0]  # ratios out of all bounds
    for one, other in zip(gradient(data), gradient(changed), strict=True):
        np.testing.assert_allclose(one[:5], other[:5], atol=1e-6)
        assert not np.any(other[5:])
    data["values"][5] += 1.0
    assert not np.allclose(gradient(data)[1][:5], gradient(changed)[1][:5])


def test_two_episodes_in_a_sequence_are_as_good_as_each_in_its_own():
    data = sequences(4, ends=0.0)
    for name in ("mask", "rewards", "discounts"):
        data[name][[4, 8]] = 0.0
    together = gradient(data)
    first = {name: np.concatenate([array[:5], 0 * array[5:]]) for name, array in data.items()}
    second = {name: np.concatenate([array[5:], 0 * array[:5]]) for name, array in data.items()}
    # Each part alone has its own number of steps to be divided by: 4 and 3.
    alone = [
        np.concatenate([4 / 7 * one[:5], 3 / 7 * other[:4]])
        for one, other in zip(gradient(first), gradient(second), strict=True)
    ]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_nothing_but_masked_rows_is_no_loss_and_no_gradient():
    data = sequences(5) | {"mask": np.zeros((T, B), np.float32)}
    assert impala_loss(**data, entropy_cost=0.03, baseline_cost=0.4).loss == 0
    assert not any(np.any(part) for part in gradient(data))


def test_small_parts():
    assert masked_mean(jnp.array([1.0, 3.0, 9.0]), jnp.array([1.0, 1.0, 0.0])) == 2.0
    log_probability = action_log_probability(jnp.log(jnp.array([[0.2, 0.8], [0.5, 0.5]])), jnp.array([1, 0]))
    np.testing.assert_allclose(log_probability, np.log([0.8, 0.5]), rtol=1e-6)
