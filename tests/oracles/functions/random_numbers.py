"""jax.random, from raw key data: JAX's own bits for bits, integers and uniform numbers; a few ulp of JAX's for what goes through functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from tests.oracles.functions.case import case

KEY = "u32[2]:key"


def drawn(function: str, call: Callable[..., Any], *more: str, compare: str = "xla", ulps: float = 16) -> None:
    """`call` takes a key, then arrays as in `more`."""
    for arguments in more or ("",):
        case(function, lambda k, *xs: call(random.wrap_key_data(k), *xs), f"{KEY} {arguments}".strip(), compare=compare, ulps=ulps)


for _shape in ((), (10,), (257,), (8, 128), (5, 7)):
    drawn("random.bits", lambda k, s=_shape: random.bits(k, s), compare="bits")
    drawn("random.uniform", lambda k, s=_shape: random.uniform(k, s), compare="bits")
    drawn("random.normal", lambda k, s=_shape: random.normal(k, s))
    drawn("random.randint", lambda k, s=_shape: random.randint(k, s, -5, 100), compare="bits")
    drawn("random.bernoulli", lambda k, s=_shape: random.bernoulli(k, 0.3, s), compare="bits")
for _bits in ("uint8", "uint16", "uint32"):
    drawn("random.bits", lambda k, d=_bits: random.bits(k, (33,), d), compare="bits")
for _type in ("bfloat16", "float16"):
    drawn("random.uniform", lambda k, d=_type: random.uniform(k, (33,), d), compare="bits")
    drawn("random.normal", lambda k, d=_type: random.normal(k, (33,), d))
for _type in ("int8", "uint8", "int16", "uint32"):
    drawn("random.randint", lambda k, d=_type: random.randint(k, (33,), 3, 100, d), compare="bits")
drawn("random.uniform", lambda k, x: random.uniform(k, (33,), "float64") + x, "f64[33]:zeros", compare="bits")
drawn("random.bits", lambda k, x: random.bits(k, (33,), "uint64") + x, "u64[33]:zeros", compare="bits")
drawn("random.normal", lambda k, x: random.normal(k, (33,), "float64") + x, "f64[33]:zeros")
# A scaled number is rounded once or twice, as XLA contracts the product and the sum or not.
drawn("random.uniform", lambda k: random.uniform(k, (5, 7), minval=2, maxval=9), ulps=1)
drawn("random.uniform", lambda k: random.uniform(k, (5, 7), minval=-4, maxval=4), compare="bits")
drawn("random.split", lambda k: random.key_data(random.split(k)), compare="bits")
drawn("random.split", lambda k: random.key_data(random.split(k, (3, 2))), compare="bits")
drawn("random.split", lambda k: random.uniform(random.split(k, 3)[1], (10,)), compare="bits")
drawn("random.fold_in", lambda k: random.key_data(random.fold_in(k, 7)), compare="bits")
drawn("random.fold_in", lambda k, i: random.bits(random.fold_in(k, i), (10,)), "i32[]", compare="bits")
drawn("random.key_data", lambda k: random.key_data(k), compare="bits")
drawn("random.clone", lambda k: random.key_data(random.clone(k)), compare="bits")
drawn("random.wrap_key_data", lambda k: random.bits(k, (3,)), compare="bits")
case("random.key", lambda s: random.bits(random.key(s), (9,)), "i32[]:pos", "u32[]:any", "i64[]:any", compare="bits")
case("random.PRNGKey", lambda s: random.uniform(random.PRNGKey(s), (9,)), "i32[]:pos", compare="bits")
case("random.PRNGKey", lambda k: random.uniform(k, (9,)), KEY, compare="bits")
case("random.split", lambda k: jax.vmap(lambda q: random.uniform(q, (5,)))(random.split(k, 4)), KEY, compare="bits")
case("lax.fori_loop", lambda k: jax.lax.fori_loop(0, 3, lambda i, q: random.split(q)[0], k), KEY, compare="bits")

drawn("random.truncated_normal", lambda k: random.truncated_normal(k, -1, 2, (33,)))
drawn("random.exponential", lambda k: random.exponential(k, (33,)))
drawn("random.gumbel", lambda k: random.gumbel(k, (33,)))
drawn("random.laplace", lambda k: random.laplace(k, (33,)))
drawn("random.logistic", lambda k: random.logistic(k, (33,)))
drawn("random.cauchy", lambda k: random.cauchy(k, (33,)), ulps=1 << 12)
drawn("random.pareto", lambda k: random.pareto(k, 2.0, (33,)))
drawn("random.weibull_min", lambda k: random.weibull_min(k, 1.0, 2.0, (33,)))
drawn("random.lognormal", lambda k: random.lognormal(k, shape=(33,)))
drawn("random.rayleigh", lambda k: random.rayleigh(k, 1.0, (33,)))
drawn("random.maxwell", lambda k: random.maxwell(k, (33,)))
drawn("random.double_sided_maxwell", lambda k: random.double_sided_maxwell(k, 0.0, 1.0, (33,)))
drawn("random.triangular", lambda k: random.triangular(k, 0.0, 0.5, 1.0, (33,)))
drawn("random.rademacher", lambda k: random.rademacher(k, (33,)), compare="bits")
drawn("random.categorical", lambda k, x: random.categorical(k, x), "f32[7]", "f32[5,7]", compare="bits")
drawn("random.permutation", lambda k, x: random.permutation(k, x), "f32[10]", "i32[33]", compare="bits")
drawn("random.permutation", lambda k: random.permutation(k, 10), compare="bits")
drawn("random.choice", lambda k, x: random.choice(k, x, (5,)), "f32[10]", compare="bits")
drawn("random.choice", lambda k, x: random.choice(k, x, (5,), replace=False), "f32[10]", compare="bits")
drawn("random.ball", lambda k: random.ball(k, 3, shape=(5,)))
drawn("random.gamma", lambda k: random.gamma(k, 2.5, (33,)))
drawn("random.gamma", lambda k, a: random.gamma(k, a), "f32[7]:pos")
drawn("random.loggamma", lambda k: random.loggamma(k, 2.5, (33,)))
drawn("random.beta", lambda k: random.beta(k, 2.0, 3.0, (9,)))
drawn("random.chisquare", lambda k: random.chisquare(k, 3.0, shape=(9,)))
drawn("random.dirichlet", lambda k, a: random.dirichlet(k, a), "f32[5]:pos")
drawn("random.f", lambda k: random.f(k, 3.0, 4.0, (9,)))
drawn("random.t", lambda k: random.t(k, 3.0, (9,)))
drawn("random.generalized_normal", lambda k: random.generalized_normal(k, 2.0, (9,)))
drawn("random.wald", lambda k: random.wald(k, 1.0, (9,)), ulps=1 << 8)
drawn("random.geometric", lambda k: random.geometric(k, 0.3, (33,)), compare="bits")
drawn("random.poisson", lambda k: random.poisson(k, 3.0, (9,)), compare="bits")
drawn("random.poisson", lambda k: random.poisson(k, 30.0, (9,)), compare="bits")
drawn("random.binomial", lambda k: random.binomial(k, 10.0, 0.3, (9,)), compare="bits")
drawn("random.multinomial", lambda k, p: random.multinomial(k, 10.0, p / jnp.sum(p)), "f32[4]:pos", compare="bits")
drawn("random.multivariate_normal", lambda k, c: random.multivariate_normal(k, jnp.zeros(4), c, (3,)), "f32[4,4]:spd", ulps=1 << 12)
drawn("random.orthogonal", lambda k: random.orthogonal(k, 4), ulps=1 << 12)
