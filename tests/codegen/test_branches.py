"""Computations that are alike and joined, such as a layer that is applied to each step of a sequence, are a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import jaxport
from tests.codegen.structured import load
from tests.codegen.test_loops import Graph
from tests.codegen.test_structured import check_model

STEPS = 5


def of_each_step(
    compute: Callable[[Graph, str], str], axis: int = 1, joined: int | None = None, is_turned: bool = False
) -> onnx.ModelProto:
    """A computation of each of five steps along an axis, as Keras unrolls `TimeDistributed`: perhaps with the time first."""
    shape: list[int | str] = ["batch", 8]
    shape.insert(axis, STEPS)
    graph, x = Graph(x=shape), "x"
    order = [axis, *(other for other in range(3) if other != axis)]
    if is_turned:
        x, axis = graph.node("Transpose", [x], perm=order), 0
    joined = axis if joined is None else joined
    graph.tensors |= {"axis": np.array([axis]), "joined": np.array([joined])}
    parts = []
    for step in range(STEPS):
        graph.tensors |= {f"from_{step}": np.array([step]), f"to_{step}": np.array([step + 1])}
        row = graph.node("Squeeze", [graph.node("Slice", [x, f"from_{step}", f"to_{step}", "axis"]), "axis"])
        parts.append(graph.node("Unsqueeze", [compute(graph, row), "joined"]))
    y = graph.node("Concat", parts, axis=joined)
    y = graph.node("Transpose", [y], perm=[order.index(place) for place in range(3)]) if is_turned else y
    return graph.model(y=graph.node("Sigmoid", [y]))


def block(graph: Graph, row: str) -> str:
    """Two layers that compute each row, and what depends on all elements of one."""
    return graph.node("Sub", [graph.block(row, "step"), graph.node("ReduceMax", [row], keepdims=1)], "step")


def across(graph: Graph, row: str) -> str:
    return graph.node("Softmax", [graph.linear(row, "step")], axis=0)


def heads(distinct: bool = True) -> onnx.ModelProto:
    """A detector: a head for each of four values, whose results are joined."""
    names = ["a", "b", "c", "d"]
    graph, parts = Graph(**{name: ["batch", 8] for name in names}), []
    for place, name in enumerate(names):
        path = f"heads.{place}" if distinct else "head"
        parts.append(graph.node("Tanh", [graph.linear(name, f"{path}")]))
    return graph.model(y=graph.node("Concat", parts, axis=1))


LOOPS = {
    "steps": (of_each_step(block), ["x = x.transpose(1, 0, 2)", "for row in x:", "jnp.stack(parts, axis=1)"]),
    "first axis": (of_each_step(block, axis=0), ["for row in x:", "jnp.stack(parts)"]),
    "last axis": (
        of_each_step(lambda g, row: g.linear(row, "fc"), axis=2),
        ["x = x.transpose(2, 0, 1)", "for row in x:"],
    ),
    "time first": (of_each_step(across, is_turned=True), ["x = x.transpose(1, 0, 2)", "for row in x:", "axis=1)"]),
    "joined elsewhere": (of_each_step(block, joined=2), ["jnp.stack(parts, axis=2)"]),
    "heads": (
        heads(),
        ["for head, x in zip(self.heads, (a, b, c, d), strict=True):", "jnp.concatenate(parts, axis=1)"],
    ),
    "one head": (heads(distinct=False), ["for x in (a, b, c, d):", "self.head(x)", "jnp.concatenate(parts, axis=1)"]),
}


@pytest.mark.parametrize(
    ("case", "framework"), [*((case, "nnx") for case in LOOPS), ("steps", "equinox"), ("heads", "equinox")]
)
def test_branches_that_are_alike_are_a_loop(case: str, framework: str, tmp_path: Path) -> None:
    model, parts = LOOPS[case]
    code = check_model(model, tmp_path, framework)
    for part in parts:
        assert part in code, code


@pytest.mark.parametrize(("is_turned", "framework"), [(False, "nnx"), (True, "nnx"), (True, "equinox")])
def test_layers_of_rows_take_all_steps_at_once(is_turned: bool, framework: str, tmp_path: Path) -> None:
    model = of_each_step(lambda graph, row: graph.node("Tanh", [graph.linear(row, "fc")]), is_turned=is_turned)
    code = check_model(model, tmp_path, framework)
    assert "jnp.tanh(self.fc(x))" in code
    assert "stack" not in code


def several_readers() -> onnx.ModelProto:
    """One branch's result is an output, too."""
    names = ["a", "b", "c", "d"]
    graph = Graph(**{name: ["batch", 8] for name in names})
    parts = [graph.node("Tanh", [graph.linear(name, f"heads.{place}")]) for place, name in enumerate(names)]
    return graph.model(y=graph.node("Concat", parts, axis=1), z=parts[1])


def one_after_another() -> onnx.ModelProto:
    """Each branch reads what the one before computes."""
    graph, x, parts = Graph(x=["batch", 8]), "x", []
    for _ in range(4):
        x = graph.node("Tanh", [graph.linear(x, "step")])
        parts.append(graph.node("Exp", [x]))
    return graph.model(y=graph.node("Concat", parts, axis=1))


def of_other_sizes() -> onnx.ModelProto:
    """The second branch reads another kind of value."""
    graph = Graph(a=["batch", 8], b=["batch", 3, 8], c=["batch", 8], d=["batch", 8])
    graph.tensors["at"] = np.array(1)
    row = graph.node("Gather", ["b", "at"], axis=1)
    parts = [graph.node("Tanh", [graph.linear(x, "head")]) for x in ("a", row, "c")]
    parts.append(graph.node("Exp", [graph.linear("d", "head")]))
    return graph.model(y=graph.node("Concat", parts, axis=1))


@pytest.mark.parametrize("model", [several_readers(), one_after_another(), of_other_sizes()])
def test_branches_that_differ_stay(model: onnx.ModelProto, tmp_path: Path) -> None:
    code = check_model(model, tmp_path, "nnx")
    assert "parts.append" not in code


def test_a_crate_has_the_loop_as_well() -> None:
    code = jaxport.from_onnx(of_each_step(block)).to_source(framework="burn").code
    assert "let x = x.swap_dims(0, 1);" in code
    assert "for row in x.iter_dim(0)" in code


@pytest.mark.parametrize(
    ("ranges", "text"), [(((0, 3), (3, 5)), "jnp.concatenate([a, b])"), (((0, 3), (2, 4)), ".at[2:4].set(b)")]
)
def test_rows_that_are_written_in_ranges_are_joined(
    ranges: tuple[tuple[int, int], ...], text: str, tmp_path: Path
) -> None:
    """Ranges that are not all rows, or overlap, are written one after the other."""
    sizes = [end - begin for begin, end in ranges]
    graph = Graph(x=[5, 8], a=[sizes[0], 8], b=[sizes[1], 8])
    graph.tensors |= {name: np.arange(*ends)[:, None] for name, ends in zip(("first", "second"), ranges, strict=True)}
    x = graph.node("ScatterND", [graph.node("ScatterND", ["x", "first", "a"]), "second", "b"])
    code = check_model(graph.model(y=graph.node("Tanh", [x])), tmp_path, "nnx")
    assert text in code.replace(", axis=0", ""), code


def test_weights_that_branches_multiply_by_are_no_tables(tmp_path: Path) -> None:
    """A matrix `first.weight` is a table only if rows of it are read."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[2, 4] x) => (float[2, 4] y) <float zero = {0}>
        { s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
          y = If (c) <then_branch = a () => (float[2, 4] p) { p = Gemm<transB = 1>(x, "first.weight") },
                      else_branch = b () => (float[2, 4] q) { q = Gemm<transB = 1>(x, "second.weight") }> }""")
    rng = np.random.default_rng(0)
    for name in ("first.weight", "second.weight"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32), name))
    program = jaxport.from_onnx(model)
    assert "nnx.Embed" not in program.to_source(tmp_path, framework="nnx").code
    for x in (np.ones((2, 4), np.float32), -np.ones((2, 4), np.float32)):
        np.testing.assert_allclose(load(tmp_path).load()(x), program(x), rtol=1e-6)
