"""Arguments that do not fit are refused as arguments: of calls, and of other exporters."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import onnx.parser
import pytest

import jaxport
from jaxport.export.choices import _ELSEWHERE as ELSEWHERE

X = jnp.zeros((2, 3))


def scaled(tree, *, k):
    return tree["a"] * k


EXPORTED = jaxport.to_onnx(scaled, [{"a": ("B", 3)}], input_params={"k": ("B", 3)})
CALLS = {
    "exported": EXPORTED,
    "mox": jaxport.make_mox(scaled)({"a": X}, k=X),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (({"a": X}, X), {"k": X}, "it takes 1 argument by position, and 2 were given"),
        ((), {"k": X}, "it takes 1 argument by position, and 0 were given"),
        (({"a": X},), {}, "`k` is missing"),
        (({"a": X},), {"k": X, "scale": X}, "`scale` is not one of its arguments"),
        (({"b": X},), {"k": X}, "argument 0 has no `['a']`; argument 0 has `['b']`, which is not taken"),
        ((X,), {"k": X}, "argument 0 has no `['a']`"),
        (({"a": X},), {"k": {"a": X}}, "argument k is not an array; argument k has `['a']`, which is not taken"),
        (({"a": [X]},), {"k": X}, "argument 0 has `['a'][0]`, which is not taken"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_its_arguments(name: str, args: tuple, kwargs: dict, said: str):
    with pytest.raises(jaxport.InvalidArgument) as refusal:
        CALLS[name](*args, **kwargs)
    assert said in str(refusal.value)
    assert "PyTreeDef" not in str(refusal.value)


def test_inputs_of_verify_that_do_not_fit_are_refused_so_too():
    with pytest.raises(jaxport.InvalidArgument, match="it takes 1 argument by position, and 2 were given"):
        jaxport.to_onnx(jnp.tanh, [("B", 3)]).verify([np.zeros((2, 3))] * 2)


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_arguments_of_other_exporters_are_answered(name: str):
    with pytest.raises(jaxport.InvalidArgument, match=f"`{name}` is an argument of another exporter") as refusal:
        jaxport.to_onnx(jnp.tanh, [("B", 3)], **{name: 1})
    assert refusal.value.instead


def test_the_arguments_of_jax2onnx_that_the_guide_lists_are_answered_or_taken():
    import inspect

    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
    table = page.partition("| `jax2onnx.to_onnx` |")[2].partition("\n\n")[0]
    listed = {
        name for row in table.splitlines() for name in re.findall(r"`?(\w+)=", row.split("|")[1] if "|" in row else "")
    }
    assert listed >= {"model_name", "enable_double_precision", "return_mode"}
    assert listed <= {*ELSEWHERE, *inspect.signature(jaxport.to_onnx).parameters}


def test_a_name_that_nobody_has_is_an_error_of_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'modelname'"):
        jaxport.to_onnx(jnp.tanh, [("B", 3)], modelname="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("onnxruntime", "runtime", lambda: jaxport.to_onnx(jnp.tanh, [(3,)])(jnp.ones(3))),
        ("torch", "torch", lambda: jaxport.from_torch(None)),
    ],
)
def test_what_is_not_installed_names_its_extra(module: str, extra: str, call, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name, *rest, **named):
        if name.split(".")[0] == module:
            raise ImportError(f"No module named '{name}'", name=name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(jaxport.NotInstalled, match=re.escape(f'pip install "jaxport[{extra}]"')):
        call()


def test_each_package_that_is_missed_is_named_with_an_extra():
    source = Path(jaxport.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for raised in re.findall(r"raise NotInstalled\((.*?)\) from", text, re.DOTALL):
            assert 'pip install "jaxport[' in raised, f"{path}: {raised}"


def test_integers_that_need_64_bits_have_a_public_error():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        net (int64[N] x) => (int64[N] y) <int64 one = {1099511627776}> { y = Add(x, one) }"""
    )
    with pytest.warns(UserWarning, match="are 32-bit"), pytest.raises(jaxport.NeedsWideTypes, match="does not fit"):
        jaxport.from_onnx(model)(np.ones(3, np.int64))
