"""jax.nn and jax.scipy.special."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy import special

from tests.oracles.functions.case import case
from tests.oracles.functions.elementwise import each

FLOATS = ("f32", "bf16", "f16", "f64")
each("nn.relu nn.relu6 nn.sigmoid nn.softplus nn.silu nn.swish nn.mish nn.log_sigmoid nn.elu nn.celu nn.selu", FLOATS, domains=("",))
each("nn.gelu", FLOATS, domains=("",), compare="norm")
each("nn.leaky_relu nn.hard_sigmoid nn.hard_silu nn.hard_swish nn.hard_tanh nn.soft_sign nn.squareplus nn.tanh nn.identity", FLOATS, domains=("",))
each("nn.sparse_plus nn.sparse_sigmoid", FLOATS, domains=("",))
each("nn.log1mexp", FLOATS, domains=("pos",))
case("nn.gelu", lambda x: jax.nn.gelu(x, approximate=False), "f32[8,128]", "bf16[33]", "f64[10]", compare="norm")
case("nn.glu", None, "f32[5,8]", "bf16[10]")
case("nn.softmax", None, "f32[8,128]", "bf16[5,7]", "f32[257]", "f16[33]", "f64[10]")
case("nn.log_softmax", None, "f32[8,128]", "bf16[5,7]", "f32[257]", "f64[10]")
case("nn.logsumexp", None, "f32[8,128]", "f32[257]", "f64[10]", "bf16[5,7]")
case("nn.logmeanexp", None, "f32[8,128]", "f64[10]")
case("nn.standardize", None, "f32[8,128]", "f32[5,7]", compare="norm", ulps=16)
case("nn.one_hot", lambda i: jax.nn.one_hot(i, 7), "i32[10]:<7", "i32[5,7]:<9", "u8[3]:<7")
case("nn.dot_product_attention", lambda q, k, v: jax.nn.dot_product_attention(q, k, v), "f32[1,8,2,16] f32[1,8,2,16] f32[1,8,2,16]", compare="norm", ulps=64)

S = "special."
each("special.erf special.erfc special.expit special.entr special.gammaln", FLOATS, domains=("",), wide=1 << 14)
each("special.ndtr special.log_ndtr", ("f32", "f64"), domains=("",))
each("special.erfinv", FLOATS, domains=("unit",))
each("special.ndtri", ("f32", "f64"), domains=("prob",), wide=1 << 14)
each("special.logit", FLOATS, domains=("prob",))
each("special.digamma special.gamma special.loggamma special.gammasgn special.factorial", ("f32", "f64"), domains=("",), wide=1 << 14)
each("special.i0 special.i0e special.i1 special.i1e", ("f32", "f64", "bf16"), domains=("",))
each("special.exp1 special.expi special.spence", ("f32", "f64"), domains=("pos",), wide=1 << 14)
each("special.dawsn special.erfcx special.sici special.wofz", ("f32", "f64"), domains=("",), wide=1 << 14)
each("special.xlogy special.xlog1py special.rel_entr special.kl_div", FLOATS, 2, ("pos", "pos"), wide=1 << 14)
each("special.boxcox special.boxcox1p", ("f32", "f64"), 2, ("pos", "unit"), wide=1 << 14)
each("special.beta special.betaln special.gammainc special.gammaincc special.poch special.comb", ("f32", "f64"), 2, ("pos", "pos"), wide=1 << 14)
each("special.zeta", ("f32", "f64"), 2, ("ge1", "pos"), wide=1 << 14)
each("special.betainc", ("f32", "f64"), 3, ("pos", "pos", "prob"), wide=1 << 14)
each("special.owens_t", ("f32",), 2, ("", ""))
case("special.polygamma", None, "i32[33]:<5 f32[33]:pos", "i32[5,7]:<5 f64[5,7]:pos", wide=1 << 14)
case("special.multigammaln", lambda x: special.multigammaln(x + 3, 3), "f32[33]:pos", wide=1 << 14)
case("special.logsumexp", None, "f32[8,128]", "f32[257]")
case("special.softmax", None, "f32[8,128]")
case("special.log_softmax", None, "f32[8,128]")
case("special.expn", lambda x: special.expn(2, x), "f32[33]:pos")
case("special.bernoulli", lambda x: x + special.bernoulli(6), "f32[7]", compare="norm")
case("special.bessel_jn", lambda x: special.bessel_jn(x, v=2), "f32[33]:pos", compare="norm", ulps=64)
case("special.fresnel", None, "f32[33]", compare="norm", ulps=16)
case("special.hyp1f1", lambda x: special.hyp1f1(1.5, 2.5, x), "f32[5]:pos")
case("special.hyp2f1", lambda x: special.hyp2f1(0.5, 1.5, 2.5, x), "f32[5]:prob")
case("special.sph_harm_y", lambda t: special.sph_harm_y(jnp.array([2]), jnp.array([1]), t, t, n_max=2), "f32[5]:prob", compare="norm")
