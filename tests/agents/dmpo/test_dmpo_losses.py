"""The losses, against numpy and by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.dmpo import losses
from topology.agents.dmpo.losses import Bounds, Duals, make_duals, positive
from topology.agents.dmpo.networks import Gaussian

S, B, A = 6, 4, 3


def softmax(x, axis):
    weights = np.exp(x - x.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def log_mean_exp(x):
    top = x.max(axis=0)
    return top + np.log(np.mean(np.exp(x - top), axis=0))


# --- critic ----------------------------------------------------------------------------------------------------------


def project(probabilities, returns, atoms):
    """What lies at `returns` moved to the two atoms beside each, in parts by nearness."""
    step, projected = atoms[1] - atoms[0], np.zeros_like(probabilities)
    for probability, value in zip(probabilities, np.clip(returns, atoms[0], atoms[-1]), strict=True):
        position = (value - atoms[0]) / step
        low = min(int(position), len(atoms) - 2)
        projected[low] += probability * (low + 1 - position)
        projected[low + 1] += probability * (position - low)
    return projected


def test_the_critic_learns_the_projected_mixture():
    random = np.random.default_rng(0)
    atoms = np.linspace(-3.0, 1.0, 9)
    logits_tm1, logits_t = random.standard_normal((B, 9)), 2 * random.standard_normal((S, B, 9))
    r_t, discount_t = random.standard_normal(B), np.array([0.9, 0.0, 0.5, 0.99])
    expected = []
    for b in range(B):
        mixture = softmax(logits_t[:, b], axis=-1).mean(axis=0)
        target = project(mixture, r_t[b] + discount_t[b] * atoms, atoms)
        expected.append(-np.sum(target * np.log(softmax(logits_tm1[b], axis=-1))))
    arrays = (logits_tm1, r_t, discount_t, logits_t, atoms)
    names = ("logits_tm1", "r_t", "discount_t", "logits_t", "atoms")
    tensors = {name: jnp.float32(x) for name, x in zip(names, arrays, strict=True)}
    loss, gradients = jax.jit(jax.value_and_grad(lambda tensors: losses.critic_loss(**tensors)))(tensors)
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-5)
    assert not np.any(gradients["logits_t"])  # the target is one
    assert np.any(gradients["logits_tm1"])


def test_after_termination_only_the_reward_counts():
    atoms = jnp.linspace(-1.0, 1.0, 3)
    loss = losses.critic_loss(
        logits_tm1=jnp.array([[0.0, 0.0, 50.0]]),
        r_t=jnp.ones(1),
        discount_t=jnp.zeros(1),
        logits_t=jnp.array([[[9.0, 0.0, 0.0]]]),
        atoms=atoms,
    )
    assert float(loss) == pytest.approx(0.0, abs=1e-6)


# --- policy ----------------------------------------------------------------------------------------------------------


def example(seed=1):
    random = np.random.default_rng(seed)
    policy = Gaussian(0.2 * random.standard_normal((B, A)), 0.3 + random.random((B, A)))
    target = Gaussian(0.2 * random.standard_normal((B, A)), 0.3 + random.random((B, A)))
    actions = target.mean + target.stddev * random.standard_normal((S, B, A))
    duals = Duals(np.float32(1.5), np.float32(-0.5), random.standard_normal(A), random.standard_normal(A))
    return {
        "policy": policy,
        "target": target,
        "actions": actions,
        "values": 3 * random.standard_normal((S, B)),
        "duals": duals,
        "bounds": Bounds(0.1, 0.02, 0.003, 0.004),
    }


@functools.partial(jax.jit, static_argnames="bounds")
def evaluate(tensors, bounds):
    """The loss with its parts, and its gradients."""

    def loss(tensors):
        result = losses.policy_loss(**tensors, bounds=bounds)
        return result.loss, result

    (_, result), gradients = jax.value_and_grad(loss, has_aux=True)(tensors)
    return result, gradients


def found(arguments):
    tensors = {name: jax.tree.map(jnp.float32, x) for name, x in arguments.items() if name != "bounds"}
    return jax.device_get(evaluate(tensors, arguments["bounds"]))


def log_normal(x, mean, stddev):
    return np.sum(-0.5 * ((x - mean) / stddev) ** 2 - np.log(stddev) - 0.5 * np.log(2 * np.pi), axis=-1)


def kl_normal(mean, stddev, other_mean, other_stddev):
    return np.log(other_stddev / stddev) + (stddev**2 + (mean - other_mean) ** 2) / (2 * other_stddev**2) - 0.5


def reference(policy, target, actions, values, duals, bounds):
    """Written out, from the papers; the loss's value."""
    temperature, penalty_temperature, alpha_mean, alpha_stddev = (np.log1p(np.exp(dual)) for dual in duals)
    weights = softmax(values / temperature, axis=0)
    loss = np.mean(temperature * (bounds.improvement + log_mean_exp(values / temperature)))
    if bounds.penalty is not None:
        outside = np.sqrt(np.sum(np.maximum(np.abs(actions) - 1, 0) ** 2, axis=-1))
        weights = weights + softmax(-outside / penalty_temperature, axis=0)
        loss += np.mean(penalty_temperature * (bounds.penalty + log_mean_exp(-outside / penalty_temperature)))
    log_probs = log_normal(actions, policy.mean, target.stddev) + log_normal(actions, target.mean, policy.stddev)
    loss -= np.mean(np.sum(weights * log_probs, axis=0))
    kl_mean = kl_normal(target.mean, target.stddev, policy.mean, target.stddev)
    kl_stddev = kl_normal(target.mean, target.stddev, target.mean, policy.stddev)
    for alpha, kl, bound in ((alpha_mean, kl_mean, bounds.mean), (alpha_stddev, kl_stddev, bounds.stddev)):
        loss += np.mean(np.sum(alpha * kl + alpha * (bound - kl), axis=-1))
    return loss, kl_mean.mean(axis=0), kl_stddev.mean(axis=0)


@pytest.mark.parametrize("penalty", [0.004, None], ids=["penalized", "not"])
def test_the_policy_loss(penalty):
    arguments = example()
    arguments["bounds"] = arguments["bounds"]._replace(penalty=penalty)
    assert np.any(np.abs(arguments["actions"]) > 1)
    result, _ = found(arguments)
    for value, wanted in zip(result, reference(**arguments), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


def test_gradients_of_the_duals_are_how_far_the_bounds_are_missed():
    arguments = example()
    duals, bounds = arguments["duals"], arguments["bounds"]
    gradient = found(arguments)[1]["duals"]
    _, kl_mean, kl_stddev = reference(**arguments)
    slope = Duals(*(1 / (1 + np.exp(-np.asarray(dual))) for dual in duals))  # of the softplus
    np.testing.assert_allclose(gradient.alpha_mean, (bounds.mean - kl_mean) * slope.alpha_mean, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(
        gradient.alpha_stddev, (bounds.stddev - kl_stddev) * slope.alpha_stddev, rtol=1e-3, atol=1e-7
    )
    # The bound, less the divergence of the weights from uniform ones.
    weights = softmax(arguments["values"] / np.log1p(np.exp(duals.temperature)), axis=0)
    divergence = np.mean(np.sum(weights * np.log(weights * S), axis=0))
    assert float(gradient.temperature) == pytest.approx((bounds.improvement - divergence) * slope.temperature, rel=1e-3)


def test_gradients_of_the_policy_pull_to_good_samples_and_back_to_the_target():
    arguments = example()
    policy, target, actions, duals = (arguments[name] for name in ("policy", "target", "actions", "duals"))
    weights = softmax(arguments["values"] / np.log1p(np.exp(duals.temperature)), axis=0)
    outside = np.sqrt(np.sum(np.maximum(np.abs(actions) - 1, 0) ** 2, axis=-1))
    weights = (weights + softmax(-outside / np.log1p(np.exp(duals.penalty_temperature)), axis=0))[..., None]
    alpha = np.log1p(np.exp(duals.alpha_mean))
    pull = -np.sum(weights * (actions - policy.mean), axis=0) / target.stddev**2
    back = alpha * (policy.mean - target.mean) / target.stddev**2
    np.testing.assert_allclose(found(arguments)[1]["policy"].mean, (pull + back) / B, rtol=1e-3, atol=1e-5)


def test_values_have_no_gradient():
    assert not np.any(found(example())[1]["values"])


def test_duals_begin_where_they_are_told_to():
    duals = make_duals(temperature=10.0, alpha_mean=0.5, alpha_stddev=1000.0, action_size=A)
    np.testing.assert_allclose(positive(duals.temperature), 10.0, rtol=1e-5)
    np.testing.assert_allclose(positive(duals.penalty_temperature), 10.0, rtol=1e-5)
    np.testing.assert_allclose(positive(duals.alpha_mean), np.full(A, 0.5), rtol=1e-5)
    np.testing.assert_allclose(positive(duals.alpha_stddev), np.full(A, 1000.0), rtol=1e-5)
