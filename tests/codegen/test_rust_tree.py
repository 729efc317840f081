"""Trees of Rust: what is written, copied and rewritten, which uses clone, and what of Python becomes one."""

from __future__ import annotations

import ast
import copy
import inspect

import pytest

from jaxport.codegen.rust import tree
from jaxport.codegen.rust.from_python import expression_of, parsed, statements_of
from jaxport.codegen.rust.text import expression_text, function_text
from jaxport.codegen.rust.tree import (
    Assert,
    Binary,
    Closure,
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
    returned_at_once,
    rewritten,
    walk,
)


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
    assert ast.dump(plain) == ast.dump(known)


def test_numbers_and_names_are_those_of_the_printer_of_modules() -> None:
    node = Binary(Identifier("x"), "*", constant(0.5, "factor"))
    assert [type(one) for one in ast.walk(node) if isinstance(one, ast.Constant | ast.Name)] == [Identifier, Number]


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
    loop = For(Identifier("_"), parsed("self.layers[1:]"), [step])
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
    ("source", "text"),
    [
        ("batch, _ = x.shape", "let [batch, _] = x.dims();"),
        ("height = (x.shape[2] - 1) // 32", "let height = (x.dims()[2] - 1) / 32;"),
        ("if x.shape[2] % 32: raise ValueError('no')", 'assert!(x.dims()[2].is_multiple_of(32), "no");'),
        ("if n < 2: raise ValueError('no')", 'assert!(n >= 2, "no");'),
        ("parts = []", "let parts = Vec::new();"),
        ("shape = self.shape", "let shape = self.shape;"),
    ],
)
def test_statements_of_the_printer_of_modules(source: str, text: str) -> None:
    made = statements_of(ast.parse(source).body)
    used = [Return(Tuple([Identifier(name) for name in ("batch", "height", "parts", "shape")]))]
    assert lines(*made, *used)[1] == text


def test_loops_of_the_printer_of_modules() -> None:
    source = ast.For(
        ast.Tuple([ast.Name("layer"), ast.Name("key")]),
        ast.parse("zip(self.layers, keys, strict=True)", mode="eval").body,
        [ast.Assign([ast.Name("x")], method(Identifier("layer"), "forward", Identifier("key"), borrows=True))],
        [],
    )
    made = lines(*statements_of([source]), Return(Identifier("x")), parameters=("x", "keys"))
    assert made[1:3] == ["for (layer, key) in self.layers.iter().zip(keys) {", "x = layer.forward(key);"]
    (counted,) = statements_of([ast.For(ast.Name("_"), ast.parse("range(3)", mode="eval").body, [], [])])
    assert isinstance(counted, For)
    assert expression_text(counted.over) == "0..3"


def test_what_is_of_rust_stays() -> None:
    node, statement = Identifier("x"), Assert(Literal("true"), "")
    assert expression_of(node) is node
    assert statements_of([statement]) == [statement]
    assert [*walk(statement)] == [statement, statement.condition]


@pytest.mark.parametrize("source", ["x if y else z", "lambda x: x", "f(x)", "[x, y]"])
def test_other_expressions_of_python_are_none_of_rust(source: str) -> None:
    with pytest.raises(TypeError, match="has no form in Rust"):
        parsed(source)


@pytest.mark.parametrize("source", ["while x: pass", "a = b = c", "if x: pass", "return"])
def test_other_statements_of_python_are_none_of_rust(source: str) -> None:
    with pytest.raises(TypeError, match="has no form in Rust"):
        statements_of(ast.parse(source).body)
