"""Trees of Rust: what is written, copied and rewritten, which uses clone, and what of a module becomes one."""

from __future__ import annotations

import copy
import inspect

import pytest

from jaxport.codegen.burn.checks import sizes_in_rust
from jaxport.codegen.burn.forward import RustCalls
from jaxport.codegen.burn.layers import BURN
from jaxport.codegen.burn.steps import Functions
from jaxport.codegen.nodes import key_of_trees, key_without, numbers_in
from jaxport.codegen.rust import tree
from jaxport.codegen.rust.text import expression_text, function_text
from jaxport.codegen.rust.tree import (
    Binary,
    Closure,
    ExpressionStatement,
    FieldAccess,
    For,
    Identifier,
    Let,
    Literal,
    Method,
    Number,
    Return,
    RustExpression,
    RustFunction,
    RustNode,
    RustStatement,
    Tuple,
    Unary,
    clone,
    constant,
    method,
    names,
    path_call,
    place,
    returned_at_once,
    rewritten,
    walk,
)
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import AxisSize, ReadShape, RefusedSize, SolvedSize


def function(*body: RustStatement, parameters: tuple[str, ...] = ("x",)) -> RustFunction:
    return RustFunction("f", [*parameters], ["T"] * len(parameters), "T", [*body])


def lines(*body: RustStatement, parameters: tuple[str, ...] = ("x",)) -> list[str]:
    """The lines of a function with this body."""
    return [line.strip() for line in function_text(function(*body, parameters=parameters)).splitlines()]


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Binary(Binary(Identifier("a"), "+", Number(1)), "*", Number(-2.0)), "(a + 1) * -2.0"),
        (method(Unary("-", Identifier("x")), "exp"), "(-x).exp()"),
        (Unary("-", Unary("-", Identifier("x"))), "-(-x)"),
        (Tuple([Identifier("x")]), "(x,)"),
        (Number(True), "true"),
        (method(FieldAccess(Identifier("self"), "norm"), "forward", clone(Identifier("x"))), "self.norm.forward(x.clone())"),
    ],
)  # fmt: skip
def test_an_expression_has_the_parentheses_that_it_needs(node: RustExpression, text: str) -> None:
    assert expression_text(node) == text


def test_every_node_has_a_text() -> None:
    """The parts of a node are its fields without defaults that only are known, and the text of each kind is written."""
    kinds = [one for one in vars(tree).values() if inspect.isclass(one) and issubclass(one, RustNode)]
    written = inspect.getsource(inspect.getmodule(expression_text) or tree)
    bases = {"RustNode", "RustExpression", "RustStatement", "RustFunction"}
    assert {one.__name__ for one in kinds if f"case {one.__name__}(" not in written} == bases


def test_a_copy_has_parts_of_its_own_and_knows_the_same() -> None:
    made = method(Identifier("x", type="Tensor<2>"), "clamp_min", Number(3, role="least"))
    made.least, made.fills = 3.0, object()  # type: ignore[assignment]  # a size with a name, which has no copy
    other = copy.deepcopy(made)
    assert other.fills is made.fills
    assert (other.least, other.receiver is made.receiver, expression_text(other)) == (3.0, False, "x.clamp_min(3)")
    assert [(name.id, name.type) for name in names([other])] == [("x", "Tensor<2>")]
    assert isinstance(other.arguments[0], Number)
    assert other.arguments[0].role == "least"


def test_what_is_only_known_is_no_part() -> None:
    plain, known = method(Identifier("x"), "exp"), Method(Identifier("x", type="T"), "exp", [], is_default=True)
    assert key_of_trees([plain]) == key_of_trees([known])


def test_trees_are_alike_but_for_numbers_and_free_names() -> None:
    one, other = (
        Binary(Identifier(name), "*", constant(value, "factor")) for name, value in (("x", 0.5), ("mask", 2.5))
    )
    assert [number.value for number in numbers_in([one, other])] == [0.5, 2.5]
    assert key_without([one], (), {"x", "mask"}) == key_without([other], (), {"x", "mask"})
    assert key_without([one], (), {"x"}) != key_without([other], (), {"x"})


def test_rewriting_replaces_inner_expressions_first() -> None:
    doubled = method(method(Identifier("x"), "exp"), "log")

    def change(node: RustExpression) -> RustExpression:
        if not isinstance(node, Method):
            return node
        return node.receiver if isinstance(node.receiver, Literal) else Literal("e")

    assert expression_text(rewritten(doubled, change)) == "e"


def test_the_last_use_moves_and_earlier_ones_clone() -> None:
    made = lines(
        Let(Identifier("y"), path_call("norm", Identifier("x"))),
        Return(Binary(Identifier("y"), "+", Identifier("x"))),
    )
    assert made[1:3] == ["let y = norm(x.clone());", "y + x"]


def test_what_a_closure_captures_is_cloned() -> None:
    used = Closure(["row"], Binary(Identifier("row"), "+", Identifier("x")))
    assert (
        lines(Return(method(Identifier("rows"), "map", used)), parameters=("rows", "x"))[1]
        == "rows.map(|row| row + x.clone())"
    )


def test_what_loops_assign_to_is_mutable_where_it_is_bound() -> None:
    step = Let(Identifier("h"), path_call("step", Identifier("h"), Identifier("x")))
    loop = For(Identifier("_"), place("self.layers[1:]"), [step])
    made = lines(Let(Identifier("h"), path_call("start")), loop, Return(Identifier("h")))
    assert made[1:4] == ["let mut h = start();", "for _ in &self.layers[1..] {", "h = step(h, x.clone());"]


def test_what_nothing_reads_is_not_computed() -> None:
    assert lines(Let(Identifier("y"), path_call("norm", Identifier("x"))), Return(Identifier("x")))[1] == "x"


def test_a_value_that_is_only_named_is_returned_at_once() -> None:
    pair = Tuple([Identifier("a"), Identifier("b")])
    (made,) = returned_at_once([Let(pair, path_call("f")), Return(copy.deepcopy(pair))])
    assert isinstance(made, Return)
    assert expression_text(made.value) == "f()"
    swapped = Tuple([Identifier("b"), Identifier("a")])
    assert len(returned_at_once([Let(pair, path_call("f")), Return(swapped)])) == 2


@pytest.mark.parametrize(
    ("path", "text"), [("x", "x"), ("self.layers[0][1:]", "self.layers[0][1..]"), ("self.a[:3].b", "self.a[..3].b")]
)
def test_a_part_of_a_module_is_an_expression(path: str, text: str) -> None:
    assert expression_text(place(path)) == text


def test_sizes_are_read_from_shapes() -> None:
    size = AxisSize("x", 2, -1)
    reading = [
        ReadShape(("batch", "_"), "x"),
        RefusedSize(size, "%", 32, "no"),
        SolvedSize("height", size, 32),
        SolvedSize("width", AxisSize("x", 1, 2), 1),
    ]
    used = Return(Tuple([Identifier(name) for name in ("batch", "height", "width")]))
    made = lines(*sizes_in_rust(reading), used)[1:4]
    assert made == [
        "let [batch, _] = x.dims();",
        "let height = (x.dims()[2] - 1) / 32;",
        "let width = x.dims()[1] + 2;",
    ]


def printer() -> RustCalls:
    return RustCalls(ModuleNames(set(), Identifier), BURN, Functions(set()), [], {})


def test_loops_over_modules_and_values() -> None:
    rust = printer()
    step = rust.assigned(rust.pattern(["x"]), method(Identifier("layer"), "forward", Identifier("key"), borrows=True))
    loop = rust.loop([("layer", place("self.layers")), ("key", Identifier("keys"))], 2, [step])
    made = lines(loop, Return(Identifier("x")), parameters=("x", "keys"))
    assert made[1:3] == ["for (layer, key) in self.layers.iter().zip(keys) {", "x = layer.forward(key);"]
    counted = lines(
        rust.loop([], 3, [rust.assigned(Identifier("x"), path_call("f", Identifier("x")))]), Return(Identifier("x"))
    )
    assert counted[1] == "for _ in 0..3 {"


def test_lists_are_vectors() -> None:
    rust = printer()
    filled = [rust.assigned(rust.pattern(["parts"]), rust.empty_list()), *rust.appended("parts", [Identifier("x")])]
    made = lines(*filled, Return(rust.element("parts", 0)))
    assert made[1:4] == ["let mut parts = Vec::new();", "parts.push(x);", "parts[0].clone()"]


def test_values_without_a_form_are_named() -> None:
    with pytest.raises(TypeError, match="`str` has no form in Rust"):
        printer().value("x")


def test_walking_yields_the_nodes_of_rust() -> None:
    statement = ExpressionStatement(Literal("true"))
    assert [*walk(statement)] == [statement, statement.value]
