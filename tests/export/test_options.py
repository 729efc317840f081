"""Each option of each public function: what it does not take is refused by name; what selects, selects something."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport
from jaxport.verify import verify_program

pytestmark = pytest.mark.sampled(3)


class Model(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(2)])

    def __call__(self, x, deterministic=True):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


MODEL, INPUTS = Model(), [("B", 4)]
EXPORTED = jaxport.to_onnx(MODEL, INPUTS)
PROGRAM = jaxport.from_onnx(EXPORTED)
FUNCTIONS = {
    "to_onnx": (jaxport.to_onnx, lambda **options: jaxport.to_onnx(MODEL, **{"inputs": INPUTS, **options})),
    "from_onnx": (jaxport.from_onnx, lambda **options: jaxport.from_onnx(EXPORTED, **options)),
    "Exported.verify": (type(EXPORTED).verify, lambda **options: EXPORTED.verify(**options)),
    "Program.verify": (verify_program, lambda **options: PROGRAM.verify(**options)),
    "to_source": (type(PROGRAM).to_source, lambda **options: PROGRAM.to_source(**options)),
}
NONSENSE = [object(), -4, 1.5, "nonsense", float("nan"), ["nonsense"], {"nonsense": -4}, b"nonsense"]
# Values that mean something after all.
MEANT = {
    "to_onnx.name nonsense": "a name",
    "to_onnx.output_names ['nonsense']": "a name for the only output",
    **{f"{kind}.verify.{name} 1.5": "a tolerance" for kind in ("Exported", "Program") for name in ("rtol", "atol")},
    "to_onnx.input_names ['nonsense']": "a name for the only input",
}


def cases():
    for name, (function, _) in FUNCTIONS.items():
        for option, parameter in inspect.signature(function).parameters.items():
            for value in NONSENSE if parameter.kind is parameter.KEYWORD_ONLY or option == "inputs" else ():
                shown = f"{name}.{option} {value}" if type(value) is not object else f"{name}.{option} object"
                if shown not in MEANT:
                    yield pytest.param(name, option, value, id=shown)


@pytest.mark.parametrize(("name", "option", "value"), [*cases()])
def test_nonsense_is_refused_by_name(name, option, value):
    with pytest.raises(jaxport.JaxportError) as refused:
        FUNCTIONS[name][1](**{option: value})
    assert option.rstrip("s") in str(refused.value) or "nonsense" in str(refused.value), str(refused.value)


# What selects, and selects nothing.
EMPTY = {
    "a pattern": {"weights": "lyers.*"},
    "one of several patterns": {"weights": ["layers.0.*", "lyers.*"]},
    "a predicate": {"weights": lambda path: False},
    "a function": {"functions": "flax.nnx.Conv"},
    "one of several functions": {"functions": ["flax.nnx.Linear", "flax.nnx.Conv"]},
    "a precision": {"precision": {"//Conv": "int4"}},
    "one of several precisions": {"precision": {"//Linear": "int4", "layers.7": "float16"}},
    "a rule": {"rules": {"tanh": lambda op, x: x}},
    "a rule that is misspelled": {"rules": {"mxa": lambda op, x, y: x}},
    "a constraint": {"constraints": ["T >= 2"]},
    "a keyword argument": {"static_params": {"determinstic": True}},
    "an input": {"input_params": {"determinstic": bool}},
    "a calibration": {"calibration": [jnp.ones((2, 4))]},
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_selects_nothing_is_refused(name):
    with pytest.raises(jaxport.JaxportError):
        jaxport.to_onnx(MODEL, INPUTS, **EMPTY[name])


@pytest.mark.parametrize("verify", [EXPORTED.verify, PROGRAM.verify])
@pytest.mark.parametrize("options", [{"avoid": {"x": [0]}}, {"avoid": {"y": [0]}}, {"sizes": {"T": 3}}])
def test_what_verify_would_not_use_is_refused(verify, options):
    with pytest.raises(jaxport.InvalidArgument):
        verify(**options)


def test_patterns_that_select_are_taken():
    names = jaxport.to_onnx(MODEL, INPUTS, weights=["layers.0.*", "layers.1.bias"]).inputs
    assert [port.name for port in names if port.weight] == ["layers.0.bias", "layers.0.kernel", "layers.1.bias"]
