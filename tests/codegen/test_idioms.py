"""What people write in one line prints in one line: small modules of PyTorch, which `tests.torch.idioms` has written."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxport
from tests.codegen.structured import load

FILES = Path(__file__).parent / "idioms"
SIZES = {"batch": 2, "length": 6, "count": 2, "rows": 3}
SPELLED_OUT = ("scatter_nd(", "scatter_elements(", "jnp.where(arranged == 0", "jnp.roll(", "nn.softmax(")
"""What none of them prints."""

WRITTEN: dict[str, list[str]] = {
    "scaled": ["jnp.asarray(x).at[:, :, 0].set(x[:, :, 0] / y)", ".at[:, :, 1].set("],
    "shifted": [".at[:, 1:].set(x[:, :-1]).at[:, 0].set(2)"],
    "erased": ["jnp.asarray(x).at[:, :, 2:4].set(0.0)", ".at[:, ::2].set(1.0)"],
    "replaced": ["jnp.asarray(x).at[:, y].set(z)"],
    "routed": ["lax.top_k(x.reshape(-1, 2, 4), 2, axis=2)", "jnp.put_along_axis("],
    "hot": ["jnp.zeros((6, 4), jnp.float32).at[x].set(1.0)"],
    "relative": ["nn.dot_product_attention(", "bias="],
    "slopes": ["nn.dot_product_attention(", "bias=", "is_causal=True"],
    "shared": ["nn.dot_product_attention(", "is_causal=True"],
    "ends": ["if length > 64:", "[-length + 64 :]"],
    "waves": ["jnp.concatenate((jnp.cos(x), jnp.sin(x)), axis=-1)"],
}


@pytest.mark.filterwarnings("ignore:64-bit types are off")
@pytest.mark.parametrize("name", WRITTEN)
def test_one_line_is_one_line(name: str, tmp_path: Path) -> None:
    program = jaxport.from_onnx(FILES / f"{name}.onnx")
    code = program.to_source(tmp_path, framework="nnx").code.partition("def load(")[0]
    text = " ".join(code.split()).replace("( ", "(").replace(" )", ")")
    assert not [line for line in WRITTEN[name] if line not in text], code
    assert not [line for line in SPELLED_OUT if line in text], code
    drawn, arrays = np.random.default_rng(0), []
    for spec in program.inputs:
        shape = [size if isinstance(size, int) else SIZES[str(size)] for size in spec.shape]
        numbers = (
            drawn.normal(size=shape)
            if spec.dtype.is_floating_point()
            else drawn.permuted(np.zeros(shape, int) + np.arange(shape[-1]))
        )
        arrays.append(numbers.astype(spec.dtype.numpy()))
    found, expected = (jax.tree.leaves(one(*arrays)) for one in (load(tmp_path).load(), program))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
