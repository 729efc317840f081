"""Peak memory of exporting and saving a 2.5 GB model, above what JAX already holds."""

from __future__ import annotations

import tempfile

from benchmarks.measure import PEERS, have_peers, run, table

MODEL = """
import gc, jax, jax.numpy as jnp, numpy as np
from flax import nnx

WIDTH, LAYERS = 8192, 10   # 10 x 256 MB of float32

class Net(nnx.Module):
    def __init__(self):
        fill = np.random.default_rng(0).standard_normal
        self.kernels = nnx.List([nnx.Param(jnp.asarray(fill((WIDTH, WIDTH), np.float32))) for _ in range(LAYERS)])

    def __call__(self, x):
        for kernel in self.kernels:
            x = jnp.tanh(x @ kernel)
        return x

def status(key):  # Linux: VmRSS is what is held now, VmHWM the peak since it was last reset
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

model = Net()
IMPORT
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
held = status("VmRSS")
"""
FINISH = """
weights = WIDTH * WIDTH * 4 * LAYERS / 2**20
result = {"above": (status("VmHWM") - held) / weights, "weights_mb": weights, "peak_mb": status("VmHWM")}
"""
IMPORTS = {"jaxport": "import jaxport; jaxport.to_onnx(jnp.tanh, [(3,)])", "jax2onnx": "from jax2onnx import to_onnx"}
EXPORTS = {
    "jaxport": "jaxport.to_onnx(model, [('B', WIDTH)]).save({path!r})",
    "jax2onnx": "to_onnx(model, [('B', WIDTH)], return_mode='file', output_path={path!r})",
}


def main() -> None:
    rows = []
    for name, python in [("jaxport", None), ("jax2onnx", PEERS)]:
        if python is not None and not have_peers():
            continue
        with tempfile.TemporaryDirectory() as folder:
            program = (
                MODEL.replace("IMPORT", IMPORTS[name]) + EXPORTS[name].format(path=f"{folder}/model.onnx") + FINISH
            )
            measured = run(program, **({"python": python} if python else {}))
        rows.append((name, measured["weights_mb"], measured["peak_mb"], measured["above"]))
    table("Memory", ["exporter", "weights, MB", "peak, MB", "peak above what JAX holds, x weights"], rows)


if __name__ == "__main__":
    main()
