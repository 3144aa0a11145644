"""Program with a compiled training step in JAX."""

from __future__ import annotations

from typing import Any

from measure import need, rate, report, skip

jax, jnp = need("jax", "jax.numpy")
try:
    jax.devices("gpu")
except RuntimeError as error:
    skip(f"JAX sees no GPU: {error}")

keys = jax.random.split(jax.random.PRNGKey(0), 3)
weights = [jax.random.normal(keys[0], (512, 1024)) * 0.05, jax.random.normal(keys[1], (1024, 512)) * 0.05]
data = jax.random.normal(keys[2], (256, 512))


def loss_of(weights: Any, data: Any) -> Any:
    return jnp.mean((jnp.maximum(data @ weights[0], 0) @ weights[1] - data) ** 2)


@jax.jit
def train(weights: Any, data: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(weights, data)
    return loss, [w - 0.1 * g for w, g in zip(weights, gradients)]  # noqa: B905  (jit traces it once)


results = []
for _ in range(5):
    loss, weights = train(weights, data)
    results.append(float(loss))


def step() -> None:
    global weights
    _, weights = train(weights, data)


report(results, rate(step, lambda: jax.block_until_ready(weights)))
