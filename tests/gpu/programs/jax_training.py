"""Program with a compiled training step in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

try:
    jax.devices("gpu")
except RuntimeError as error:
    raise ImportError(f"JAX finds no GPU: {error}") from None

PIECE = 64 << 20  # bytes

keys = jax.random.split(jax.random.PRNGKey(0), 3)
weights = [jax.random.normal(keys[0], (512, 1024)) * 0.05, jax.random.normal(keys[1], (1024, 512)) * 0.05]
data = jax.random.normal(keys[2], (256, 512))
ballast = [jnp.zeros(1)]


def loss_of(weights: Any, data: Any) -> Any:
    return jnp.mean((jnp.maximum(data @ weights[0], 0) @ weights[1] - data) ** 2)


@jax.jit
def train(weights: Any, data: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(weights, data)
    return loss, [w - 0.1 * g for w, g in zip(weights, gradients)]  # noqa: B905  (jit traces it once)


def hold(size: int) -> None:
    """Allocate additional memory, so that two programs do not fit together.

    JAX may need as much memory again to reduce an array, so the arrays are small.
    """
    global ballast
    ballast = [jax.block_until_ready(jnp.ones(PIECE // 4, dtype=jnp.float32)) for _ in range(size // PIECE)]


def step() -> float:
    global weights
    loss, weights = train(weights, data)
    return float(loss)


def ballast_extremes() -> list[float]:
    return [float(min(array.min() for array in ballast)), float(max(array.max() for array in ballast))]
