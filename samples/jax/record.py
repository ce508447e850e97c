"""Pairs of programs of JAX, slow and fixed: each timed without a profiler, then recorded. python samples/jax/record.py OUT [NAME …]

OUT/NAME.{slow,fixed}.xplane.pb.gz and .trace.json.gz, OUT/manifest.json: rule, step times in ms (median of unprofiled runs), recorded with.
"""
import gzip, json, shutil, statistics, sys, tempfile, time  # noqa: E401, I001 (the recordings name the lines below)
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(0)
WARM, TIMED, RECORDED = 5, 30, 6


def mlp(width=4096, depth=8, dtype=jnp.bfloat16):
    return [jax.random.normal(jax.random.fold_in(KEY, i), (width, width), dtype) * 0.01 for i in range(depth)]


def forward(params, x, precision=None):
    for i, w in enumerate(params):
        with jax.named_scope(f"layer{i}"):
            x = jnp.tanh(jnp.matmul(x, w, precision=precision))
    return x


def op_by_op(fixed):
    params, x = mlp(512, 24), jnp.ones((256, 512), jnp.bfloat16)
    step = jax.jit(forward) if fixed else forward
    return lambda i: step(params, x)


def float_in_step(fixed):
    params, x = mlp(1024, 12), jnp.ones((512, 1024), jnp.bfloat16)
    layer, total = jax.jit(lambda w, x: jnp.tanh(x @ w)), jax.jit(lambda x: x.astype(jnp.float32).sum())
    def step(i):
        y, seen = x, []
        for w in params:
            y = layer(w, y)
            seen.append(total(y) if fixed else float(total(y)))
        return y
    return step


def new_shapes(fixed):
    params, f = mlp(1024, 4), jax.jit(forward)
    def step(i):
        n = 512 if fixed else 256 + 7 * i
        return f(params, jnp.ones((n, 1024), jnp.bfloat16))
    return step


def new_static_value(fixed):
    params, x = mlp(1024, 4), jnp.ones((512, 1024), jnp.bfloat16)
    if fixed:
        f = jax.jit(lambda p, x, scale: forward(p, x) * scale)
        return lambda i: f(params, x, jnp.asarray(i, jnp.bfloat16))
    f = jax.jit(lambda p, x, scale: forward(p, x) * scale, static_argnums=2)
    return lambda i: f(params, x, float(i))


def fp32_dots(fixed):
    dtype = jnp.bfloat16 if fixed else jnp.float32
    params, x = mlp(4096, 6, dtype), jnp.ones((4096, 4096), dtype)
    f = jax.jit(partial(forward, precision=None if fixed else jax.lax.Precision.HIGHEST))
    return lambda i: f(params, x)


def host_arrays(fixed):
    params, f = mlp(2048, 4), jax.jit(forward)
    made = np.ones((8192, 2048), jnp.bfloat16)
    ahead = jax.device_put(made)
    return lambda i: f(params, ahead if fixed else made)


def starved(fixed):
    params, f = mlp(2048, 8), jax.jit(forward)
    rng = np.random.default_rng(0)
    ready = [jax.device_put(rng.standard_normal((2048, 2048)).astype(jnp.bfloat16)) for _ in range(4)]
    class Loader:
        def __iter__(self): return self
        def __next__(self): return rng.standard_normal((2048, 2048)).astype(jnp.bfloat16)
    loader = Loader()
    return lambda i: f(params, ready[i % 4] if fixed else next(loader))


def attention(fixed):
    q, k, v = (jax.random.normal(jax.random.fold_in(KEY, i), (4, 4096, 16, 128), jnp.bfloat16) for i in range(3))
    @jax.jit
    def slow(q, k, v):
        p = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32) / 128**0.5).astype(q.dtype)
        return jnp.einsum("bnts,bsnh->btnh", p, v)
    fast = jax.jit(partial(jax.nn.dot_product_attention, implementation="cudnn"))
    return lambda i: (fast if fixed else slow)(q, k, v)


def convolution_layout(fixed):
    numbers = ("NHWC", "HWIO", "NHWC") if fixed else ("NCHW", "OIHW", "NCHW")
    x = jnp.ones((64, 56, 56, 256) if fixed else (64, 256, 56, 56), jnp.bfloat16)
    w = jnp.ones((3, 3, 256, 256) if fixed else (256, 256, 3, 3), jnp.bfloat16)
    @jax.jit
    def f(x, w):
        for _ in range(6):
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
        return x
    return lambda i: f(x, w)


def healthy_train(_):
    params = mlp(4096, 8)
    @partial(jax.jit, donate_argnums=0)
    def step(params, x):
        _, grads = jax.value_and_grad(lambda p: (forward(p, x).astype(jnp.float32) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    x, state = jnp.ones((8192, 4096), jnp.bfloat16), [params]
    def run(i):
        state[0] = step(state[0], x)
        return state[0]
    return run


CASES = {
    "op_by_op": (op_by_op, "launch-gap"), "float_in_step": (float_in_step, "sync-stall"), "new_shapes": (new_shapes, "recompilation"),
    "new_static_value": (new_static_value, "recompilation"), "fp32_dots": (fp32_dots, "precision"), "host_arrays": (host_arrays, "memcpy"),
    "starved": (starved, "data-loading"), "attention": (attention, "unfused-attention"), "convolution_layout": (convolution_layout, "memory-layout"),
    "healthy_train": (healthy_train, None),
}


def timed(step):
    for at in range(WARM):
        jax.block_until_ready(step(at))
    rounds, each, end = [], TIMED // 3, WARM + TIMED
    for first in range(WARM, end, each):
        began = time.perf_counter()
        for at in range(first, first + each):
            out = step(at)
        jax.block_until_ready(out)
        rounds.append((time.perf_counter() - began) / each * 1e3)
    return statistics.median(rounds), end


def recorded(step, at, target):
    with tempfile.TemporaryDirectory() as log:
        with jax.profiler.trace(log):
            for i in range(RECORDED):
                with jax.profiler.StepTraceAnnotation("train", step_num=i):
                    out = step(at + i)
            jax.block_until_ready(out)
        run = next(Path(log).glob("plugins/profile/*"))
        with gzip.open(f"{target}.xplane.pb.gz", "wb", compresslevel=6) as file:
            file.write(next(run.glob("*.xplane.pb")).read_bytes())
        for trace in run.glob("*.trace.json.gz"):
            if not trace.name.startswith("perfetto"):
                shutil.copy(trace, f"{target}.trace.json.gz")


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2:] or list(CASES)
    made = {}
    for name in chosen:
        make, rule = CASES[name]
        made[name] = {"rule": rule}
        for variant in ("fixed",) if rule is None else ("slow", "fixed"):
            try:
                step = make(variant == "fixed")
                made[name][f"{variant}_ms"], at = timed(step)
                recorded(step, at, out / f"{name}.{variant}")
            except Exception as error:
                made[name][f"{variant}_error"] = repr(error)[:300]
            print(name, variant, made[name], flush=True)
        device = jax.devices()[0]
        (out / "manifest.json").write_text(json.dumps({"recorded": f"one {device.device_kind}, jax {jax.__version__}", "cases": made}, indent=1))


main()
