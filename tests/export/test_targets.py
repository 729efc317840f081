"""What a model needs, and targets: what is written for them, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from jax import lax

import jaxport
from jaxport.export import api
from jaxport.export.delivery import targets
from jaxport.export.delivery.requirements import Requirements, lacking
from jaxport.onnx_facts.kernels import RELEASES
from jaxport.testing import f32, i32, spec
from tests.exports import export, operators

KEY = jax.random.key(0)


def bits(key):
    return jax.random.normal(key, (4,))


# What a model needs


def test_the_default_target_is_that_of_the_standard():
    needs = export(jnp.tanh, ("B", 3), opset=23).requirements
    assert (needs.opset, needs.ir_version, needs.runtime, needs.newer) == (23, 11, "1.23", ("opset 23",))
    assert (needs.operators, needs.dtypes, needs.dims, needs.domains) == ({"Tanh": 1}, ("float32",), ("B",), {})


def test_an_operator_without_a_kernel_asks_for_a_newer_release():
    needs = export(lambda x: lax.top_k(x, 1), spec("B", 3, dtype=np.int8), opset=21).requirements
    assert needs.runtime == "1.26"
    assert "TopK of int8" in needs.newer


def test_what_no_release_runs_is_said():
    model = export(lambda x: x + x, f32(3)).model
    model.graph.inputs[0].dtype = ir.DataType.BFLOAT16
    needs = Requirements.of(model)
    assert (needs.runtime, needs.newer) == (None, ("Add of bfloat16",))
    assert "no known release of ONNX Runtime" in str(needs)
    model.graph.inputs[0].type = None
    assert Requirements.of(model).newer == ("Add of an unknown dtype",)


def optimized(path: Path, **session) -> list[str]:
    """The operators that ONNX Runtime runs a file with."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], **session)
    return [node.op_type for node in ir.load(options.optimized_model_filepath).graph]


def test_sessions_leave_optimizers_out_that_cost_time_on_cpus(tmp_path: Path):
    scale = jnp.arange(64, dtype=jnp.float32)
    normalized = lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale
    exported = export(lambda x, y: jnp.tanh(normalized(x + y) + y), f32("B", 8, 64), f32("B", 8, 64))
    exported.save(tmp_path / "model.onnx")
    assert "SkipLayerNormalization" in optimized(tmp_path / "model.onnx")
    needs = exported.requirements
    assert "SkipLayerNormalization" not in optimized(tmp_path / "model.onnx", **needs.session)
    assert "on CPUs      InferenceSession(..., disabled_optimizers=['SkipLayerNormFusion'])" in str(needs)
    assert export(jnp.tanh, f32(3)).requirements.session == {}


def test_control_flow_and_unknown_dims_are_told():
    needs = export(lambda x: lax.fori_loop(0, x[0], lambda i, y: y * 2 + i, 1), i32(3)).requirements
    assert needs.control_flow == ("Loop",)
    assert "1 Loop" in str(needs)


def test_an_operator_set_of_ones_own_is_told():
    rule = {"tanh": lambda op, x: op.emit("Wave", x, domain="my.own", results=[(x.dtype, x.shape)])}
    exported = export(jnp.tanh, (3,), rules=rule)
    assert exported.requirements.operators == {"my.own.Wave": 1}
    with pytest.raises(jaxport.Unsupported, match=r"the target has no operators of my\.own"):
        export(jnp.tanh, (3,), rules=rule, target="portable")


def test_the_explanation_ends_with_what_the_model_needs():
    assert str(export(jnp.tanh, ("B",)).explain()).endswith(str(export(jnp.tanh, ("B",)).requirements).splitlines()[-1])


def test_a_function_of_the_model_is_no_operator_that_a_runtime_lacks():
    exported = export(jaxport.onnx_function(lambda x: jnp.tanh(x) * 2), ("B", 3), target="portable")
    assert exported.requirements.operators == {"Constant": 1, "Mul": 1, "Tanh": 1}


# Targets


@pytest.mark.parametrize(
    ("target", "opset", "ir_version"),
    [("onnx", 18, 8), ("portable", 18, 8), ("web", 18, 8), ("openvino", 18, 8), ("onnxruntime", 18, 8)],
)
def test_a_target_says_what_is_written(target, opset, ir_version):
    exported = export(lambda x: jnp.tanh(x) + 1, ("B", 3), target=target)
    assert (exported.requirements.opset, exported.requirements.ir_version) == (opset, ir_version)
    assert exported.model.metadata_props.get("jaxport.target") == (None if target == "onnx" else target)
    assert exported.verify().ok


def test_every_target_is_given_kernels_that_its_oldest_release_has():
    for target in (target for target in targets.TARGETS.values() if not target.decoder):
        exported = export(lambda x: jnp.where(x > 1, x * 3 + x, x), spec(5, dtype=np.uint8), target=target)
        assert list(lacking(list(exported.model.graph.all_nodes()), target.opset, target.release)) == []


def test_dtypes_are_chosen_for_the_oldest_release_of_the_target():
    added = export(lambda x: x + x, spec(3, dtype=np.uint32))
    assert operators(added) == ["Add"]
    portable = export(lambda x: x + x, spec(3, dtype=np.uint32), target="portable")
    assert operators(portable) == ["Cast", "Add", "Cast"]
    wraps = np.uint32([1, 2**31, 2**32 - 1])
    np.testing.assert_array_equal(portable(wraps), added(wraps))


def test_an_older_opset_may_be_asked_for():
    assert export(jnp.tanh, (3,), target="portable", opset=17).requirements.opset == 17


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "moon"}, "unknown target 'moon'"),
        ({"target": 3}, "`3` is not a target"),
        ({"target": "portable", "opset": 20}, r'opset 20 is newer than what the target "portable" takes \(18\)'),
    ],
)
def test_bad_targets_are_refused(options, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        export(jnp.tanh, (3,), **options)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"runtime": "1.2"}, "ONNX Runtime 1.2 is not a known release"),
        ({"opset": 20, "newest_opset": 18}, "opset 20 is newer than the newest, 18"),
    ],
)
def test_bad_fields_of_a_target_are_refused(fields, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        jaxport.Target("mine", **fields)


def test_all_that_a_target_lacks_is_refused_at_once_with_the_lines():
    small = jaxport.Target("small", opset=18, without_operators=frozenset({"Tanh", "Sin"}))
    with pytest.raises(jaxport.Unsupported) as caught:
        export(lambda x: jnp.tanh(x) + jnp.sin(x), (3,), target=small)
    assert [refusal.name for refusal in caught.value.refusals] == ["Tanh", "Sin"]
    assert all(Path(__file__).name in refusal.where for refusal in caught.value.refusals)
    assert str(caught.value).startswith(
        '2 operators of `lambda` cannot run on the target "small"; the target "openvino" '
    )


def test_dtypes_that_a_target_lacks_are_refused():
    with pytest.raises(jaxport.Unsupported, match="the target has no bfloat16") as caught:
        export(lambda x: x * 2, spec(3, dtype=jnp.bfloat16), target="web")
    assert 'the target "onnxruntime" can run it' in str(caught.value)


def test_what_an_opset_lacks_names_the_target_that_has_it():
    with pytest.raises(jaxport.Unsupported, match='the target "onnx'):
        export(lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), f32(3), target="portable")


@pytest.mark.parametrize(
    ("function", "dtype", "target", "other", "walks"),
    [
        (lambda x: x * 2, jnp.bfloat16, "web", "onnxruntime", 1),
        (jnp.sort, jnp.uint32, "openvino", "portable", 1),
        (lambda x: x.astype(jnp.int4).astype(jnp.float32), jnp.float32, "portable", "onnxruntime", 2),
    ],
    ids=["dtype", "sign", "opset"],
)
def test_the_target_that_is_named_is_looked_up_in_the_finished_model(
    monkeypatch, function, dtype, target, other, walks
):
    walked = []
    walk = api._export
    monkeypatch.setattr(api, "_export", lambda traced, options: walked.append(options) or walk(traced, options))
    with pytest.raises(jaxport.Unsupported, match=f'the target "{other}" can run it'):
        export(function, spec(3, dtype=dtype), target=target)
    assert len(walked) == walks
    export(function, spec(3, dtype=dtype), target=other)


def test_what_no_target_can_run_names_none():
    with pytest.raises(jaxport.Unsupported) as caught:
        export(lambda x: jax.pure_callback(np.tanh, x, x), f32(3), target="portable")
    assert "the target" not in str(caught.value)


def test_the_releases_are_in_order_and_include_the_oldest_of_each_target():
    numbers = [tuple(map(int, release.split("."))) for release in RELEASES]
    assert numbers == sorted(numbers)
    assert {target.release for target in targets.TARGETS.values()} <= set(RELEASES)


# onnxruntime-web


ORDERED = {
    "top_k": lambda x: jax.lax.top_k(x, 3),
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "partition": lambda x: jnp.partition(x, 2),
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=1),
    "windows of integers": lambda x: jax.lax.reduce_window(
        x.astype(jnp.int32), np.int32(-(2**31)), jax.lax.max, (1, 2), (1, 2), "VALID"
    ),
    "words": lambda x: jnp.where(x > 1, 1, 2).astype(jnp.uint32).max(1),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_the_web_gets_no_doubles(name):
    exported = export(ORDERED[name], ("B", 6), target="web")
    assert "float64" not in exported.requirements.dtypes
    assert exported.verify().ok
    assert not list(lacking(list(exported.model.graph.all_nodes()), 18, "1.20"))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float64"])
def test_what_a_build_for_the_web_lacks_is_refused(dtype):
    with (
        jax.enable_x64(True),
        pytest.raises(jaxport.Unsupported, match=rf"onnxruntime-web [\d.]+ has no \w+ of .*{dtype}"),
    ):
        export(lambda x: x + x, spec(3, dtype=dtype), target="web")
    with jax.enable_x64(True):
        assert operators(export(jnp.transpose, spec(3, 2, dtype=dtype), target="web")) == ["Transpose"]
