"""Convolutions as matrix products give what a convolution gives, and so do their gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.convolution import Convolution, ImageTorso


def as_kernel(weights, kernel, stride, channels):
    """The weights of a `Convolution` as a kernel of `nn.Conv`."""
    taps = kernel // stride
    blocks = weights.reshape(stride, stride, channels, taps, taps, -1)  # within a block, then which block
    return blocks.transpose(3, 0, 4, 1, 2, 5).reshape(kernel, kernel, channels, -1)


@pytest.mark.parametrize(("kernel", "stride", "side"), [(8, 4, 12), (8, 4, 15), (3, 1, 5)])
def test_result_and_gradients_are_those_of_a_convolution(kernel, stride, side):
    ours = Convolution(5, kernel, stride)
    theirs = nn.Conv(5, (kernel, kernel), (stride, stride), padding="VALID")
    images = np.random.default_rng(0).standard_normal((2, side, side + 1, 3), np.float32)
    weights = np.random.default_rng(1).standard_normal((stride**2 * 3, (kernel // stride) ** 2 * 5), np.float32)
    params = {"kernel": 0.1 * weights, "bias": np.arange(5, dtype=np.float32)}

    def loss_of_ours(params, images):
        return jnp.sum(jnp.sin(ours.apply({"params": params}, images)))

    def loss_of_theirs(params, images):
        kernel_of_it = as_kernel(params["kernel"], kernel, stride, 3)
        return jnp.sum(jnp.sin(theirs.apply({"params": {**params, "kernel": kernel_of_it}}, images)))

    mine = jax.jit(jax.value_and_grad(loss_of_ours, (0, 1)))(params, images)
    other = jax.jit(jax.value_and_grad(loss_of_theirs, (0, 1)))(params, images)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), mine, other)


def test_weights_begin_with_the_variance_of_a_convolution():
    images = np.zeros((1, 16, 16, 8), np.float32)
    ours = jax.jit(Convolution(64, 8, 4).init)(jax.random.key(0), images)["params"]["kernel"]
    assert float(np.var(ours)) == pytest.approx(1 / (8 * 8 * 8), rel=0.05)


def test_a_kernel_that_is_no_multiple_of_its_stride_is_refused():
    with pytest.raises(ValueError, match="multiple of the stride"):
        Convolution(1, 3, 2).init(jax.random.key(0), np.zeros((1, 9, 9, 1)))


@pytest.mark.parametrize(("side", "features"), [(84, 7 * 7 * 64), (36, 64), (10, 64)])
def test_images_of_any_size_have_features(side, features):
    images = jax.ShapeDtypeStruct((2, side, side, 4), np.uint8)
    torso = ImageTorso()
    params = jax.eval_shape(torso.init, jax.random.key(0), images)
    found = jax.eval_shape(torso.apply, params, images)
    assert (found.shape, found.dtype) == ((2, features), np.float32)
