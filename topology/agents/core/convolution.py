"""Convolutions that are matrix products, for processors.

On a processor XLA's convolutions take ten times as long in the loop of a compiled learner as outside of it. A matrix
product is fast in both. So a convolution is one product here: of all pixels with the weights of all taps, after which
the results of the taps are moved to where they belong and added up; or, where that makes the smaller array, of what
each place sees with the weights, which needs no more sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

__all__ = ["NATURE_LAYERS", "SMALL_LAYERS", "Convolution", "ImageTorso"]

NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Features, kernel and stride of the convolutions of Mnih et al., "Human-level control through deep reinforcement
learning", 2015."""
SMALL_LAYERS = ((16, 8, 4), (32, 4, 2))
"""Those of Mnih et al., "Playing Atari with Deep Reinforcement Learning", 2013."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _add_taps(taps: jax.Array, num_taps: int) -> jax.Array:
    """Adds up what the taps give for each place: `[N, H, W, m * m * F]` to `[N, H - m + 1, W - m + 1, F]`."""
    height, width = (side - num_taps + 1 for side in taps.shape[1:3])
    each = jnp.split(taps, num_taps**2, axis=-1)
    moved = (each[num_taps * i + j][:, i : i + height, j : j + width] for i in range(num_taps) for j in range(num_taps))
    return functools.reduce(jnp.add, moved)


def _forward(taps: jax.Array, num_taps: int) -> tuple[jax.Array, None]:
    return _add_taps(taps, num_taps), None


def _backward(num_taps: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    # Written out: the gradient of a sum of slices is a sum of `m * m` arrays that are nearly all zeros.
    last = num_taps - 1
    moved = [
        jnp.pad(gradient, ((0, 0), (i, last - i), (j, last - j), (0, 0)))
        for i in range(num_taps)
        for j in range(num_taps)
    ]
    return (jnp.concatenate(moved, axis=-1),)


_add_taps.defvjp(_forward, _backward)


class Convolution(nn.Module):
    """A convolution without padding: float32 `[N, H, W, C]` to `[N, (H - kernel) // stride + 1, ..., features]`.

    Attributes:
        features: channels of the result.
        kernel: height and width of what one place of the result sees; a multiple of `stride`.
        stride: pixels from one place to the next.
    """

    features: int
    kernel: int
    stride: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        count, height, width, channels = images.shape
        stride, taps = self.stride, self.kernel // self.stride
        if self.kernel % stride or min(height, width) < self.kernel:
            raise ValueError(
                f"a kernel of {self.kernel} must be a multiple of the stride, {stride}, and fit into the image, "
                f"{height} x {width}"
            )
        # Blocks of `stride` pixels a side become the channels of one: then the stride is 1.
        rows, columns = ((side - self.kernel) // stride + taps for side in (height, width))
        blocks = images[:, : rows * stride, : columns * stride].reshape(count, rows, stride, columns, stride * channels)
        pixels = blocks.swapaxes(2, 3).reshape(count, rows, columns, stride * stride * channels)
        inputs = pixels.shape[-1]
        # Of the variance that `nn.Conv` begins with: one over the inputs of a place.
        initial = nn.initializers.variance_scaling(1 / taps**2, "fan_in", "truncated_normal")
        weights = self.param("kernel", initial, (inputs, taps * taps * self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        height, width = rows - taps + 1, columns - taps + 1
        if rows * columns * self.features <= height * width * inputs:
            each = (pixels.reshape(-1, inputs) @ weights).reshape(count, rows, columns, -1)
            return _add_taps(each, taps) + bias
        seen = [pixels[:, i : i + height, j : j + width] for i in range(taps) for j in range(taps)]
        by_tap = weights.reshape(inputs, taps * taps, self.features).swapaxes(0, 1).reshape(-1, self.features)
        product = jnp.concatenate(seen, axis=-1).reshape(count * height * width, -1) @ by_tap
        return product.reshape(count, height, width, self.features) + bias


class ImageTorso(nn.Module):
    """Features of images: uint8 `[N, H, W, C]`, scaled to 0..1, to float32 `[N, features]`.

    An image too small for the convolutions gets a black margin at the right and the bottom.

    Attributes:
        layers: features, kernel and stride of each convolution.
    """

    layers: Sequence[tuple[int, int, int]] = NATURE_LAYERS

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        smallest = 1
        for _, kernel, stride in reversed(self.layers):
            smallest = (smallest - 1) * stride + kernel
        missing = [max(0, smallest - side) for side in images.shape[1:3]]
        hidden = jnp.pad(images, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0))).astype(jnp.float32) / 255.0
        for features, kernel, stride in self.layers:
            hidden = nn.relu(Convolution(features, kernel, stride)(hidden))
        return hidden.reshape(hidden.shape[0], -1)
