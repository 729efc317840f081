"""A small file cannot ask for huge work: beyond the limits it is refused, with the operation, the size and the option."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from jaxport.errors import InvalidArgument, ModelError
from jaxport.importer.limits import Limits
from jaxport.importer.ops.re2 import Regular
from tests.importer.models import program

X = np.ones(2, np.float32)
DOUBLED = " ".join(f"s{i + 1} = StringConcat(s{i}, s{i})" for i in range(40))
JOINED = " ".join(f"s{i + 1} = Concat<axis = 0>(s{i}, s{i})" for i in range(40))
SIZES = "s = Constant<value_ints = [65536, 65536]>()"
HUGE = {
    "filled": f"g () => (float[a, b] y) {{ {SIZES} y = ConstantOfShape(s) }}",
    "expanded": f"g (float[2] x) => (float[a, b] y) {{ {SIZES} o = Constant<value_floats = [1.0]>() y = Expand(o, s) }}",
    "tiled": f"g (float[2] x) => (float[a, b] y) {{ {SIZES} o = Unsqueeze(x, a) a = Constant<value_ints = [0]>() y = Tile(o, s) }}",
    "resized": """g (float[2] x) => (float[a, b, c, d] y) { i = Reshape(x, j) j = Constant<value_ints = [1, 1, 1, 2]>()
        s = Constant<value_ints = [1, 1, 65536, 65536]>() y = Resize(i, , , s) }""",
    "padded": """g (float[2] x) => (float[a] y) { p = Constant<value_ints = [4294967296, 0]>() y = Pad(x, p) }""",
    "numbered": """g () => (float[a] y) { s = Constant<value_float = 0.0>() e = Constant<value_float = 4294967296.0>()
        d = Constant<value_float = 1.0>() y = Range(s, e, d) }""",
    "one hot": """g (int64[2] x) => (float[a, b] y) { d = Constant<value_int = 1073741824>()
        v = Constant<value_floats = [0.0, 1.0]>() y = OneHot(x, d, v) }""",
    "outer": """g (float[2] x) => (float[a, b] y) { n = Constant<value_ints = [1000000]>() r = Expand(x1, n)
        x1 = Constant<value_floats = [1.0]>() a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>()
        c = Unsqueeze(r, a) d = Unsqueeze(r, b) y = Add(c, d) }""",
    "joined": f"g (float[2] s0) => (float[a] s40) {{ {JOINED} }}",
    "constants joined": f"g () => (float[a] s40) {{ s0 = Constant<value_floats = [1.0, 2.0]>() {JOINED} }}",
    "a string": f"g (string[1] s0) => (string[1] s40) {{ {DOUBLED} }}",
}


def sorted_text(text: str) -> str:
    """The nodes of a graph so that each stands behind what it uses."""
    head, _, body = text.partition("{")
    nodes = re.findall(r"[\w, ]+ = \w+(?:<[^>]*>)?\([^)]*\)", body)
    known, done = set(re.findall(r"\] (\w+)[,)]", head.partition("=>")[0])) | {""}, []
    while nodes:
        index = next(
            i for i, n in enumerate(nodes) if {v.strip() for v in n[n.rindex("(") + 1 : -1].split(",")} <= known
        )
        node = nodes.pop(index)
        known |= {name.strip() for name in node.partition("=")[0].split(",")}
        done.append(node)
    return f"{head}{{ {' '.join(done)} }}"


@pytest.mark.parametrize("name", HUGE)
def test_huge_results_are_refused(name: str):
    made = program(sorted_text(HUGE[name]), 20, limits=Limits(bytes=2**22))
    numbers = np.int64 if name == "one hot" else np.float32
    samples = {"s0": np.array(["ab"], object) if name == "a string" else X, "x": np.zeros(2, numbers)}
    start = time.process_time()
    with pytest.raises(ModelError, match=r"bytes|larger than") as caught:
        made(**{key: value for key, value in samples.items() if key in made.input_names})
    assert time.process_time() - start < 20
    assert "that makes `" in str(caught.value)


def test_the_limits_can_be_raised_and_lowered():
    text = "g (float[n] x) => (float[a] y) { n = Constant<value_ints = [1000]>() y = Expand(x, n) }"
    one = np.ones(1, np.float32)
    assert program(text)(one).shape == (1000,)
    with pytest.raises(
        ModelError, match=r"(?s)result of shape \[1000\] has 4,000 bytes.*`y`.*jaxport.Limits\(bytes=…\)"
    ):
        program(text, limits=Limits(bytes=3999, growth=10))(one)
    assert program(text, limits=Limits(bytes=4000, growth=10))(one).shape == (1000,)
    assert program(text, limits=Limits(bytes=10, growth=1000))(one).shape == (1000,), "much of what is given is allowed"
    with pytest.raises(InvalidArgument, match=r"`bytes` is -1"):
        Limits(bytes=-1)


def test_nesting_and_operations():
    functions = " ".join(
        f'<domain: "d", opset_import: ["": 18, "d": 1]> f{i} (x) => (y) {{ y = d.f{i + 1}(x) }}' for i in range(5)
    )
    functions += ' <domain: "d", opset_import: ["": 18]> f5 (x) => (y) { a = Neg(x) y = Neg(a) }'
    text = "g (float[2] x) => (float[2] y) { y = d.f0(x) }"
    np.testing.assert_array_equal(program(text, 18, functions, ', "d": 1')(X), X)
    with pytest.raises(ModelError, match="more than 3 deep"):
        program(text, 18, functions, ', "d": 1', limits=Limits(nesting=3))
    with pytest.raises(ModelError, match="more than 4 operations"):
        program(text, 18, functions, ', "d": 1', limits=Limits(operations=4))


def test_iterations_of_a_loop_without_an_end():
    text = """g (float[2] x) => (float[2] y) { y = Loop(, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[a] w)
        { d = Identity(c) w = Concat<axis = 0>(v, x) }> }"""
    with pytest.raises(ModelError, match=r"(?s)more than 30 iterations.*the Loop that makes `y`.*iterations=…"):
        program(text, limits=Limits(iterations=30))(X)


def test_outputs_of_a_split():
    with pytest.raises(ModelError, match="`num_outputs` is 1099511627776, the node has 1 outputs"):
        program("g (float[2] x) => (float[2] y) { y = Split<num_outputs = 1099511627776>(x) }")(X)


@pytest.mark.parametrize("name", ["dilations", "strides"])
def test_steps_of_windows(name: str):
    text = f"g (float[1, 1, 8] x, float[1, 1, 3] w) => (float[a, b, c] y) {{ y = Conv<{name} = [2147483648]>(x, w) }}"
    with pytest.raises(ModelError, match=f"`{name}` has 2,147,483,648"):
        program(text)


# -- regular expressions -----------------------------------------------------------------------------------------------

PATTERNS = [
    "", "a", "abc", "a*", "a+b?", "(ab|cd)*e", "[a-c]+", "[^a-c]+", r"\d+\.\d*", r"\w+@\w+\.com", "a{2,3}", "a{2}",
    "a{2,}", "(a|b)*?c", r"^ab$", r"\Aab\Z", ".*", "a.c", "(?i:aB)c", "(?s)a.b", r"\s\S", r"a\b.b", r"[\d\w]x", "a|", "(?:a|ab)(?:c|bcd)",
    "(?P<n>a)b", "(?m)^a$",
]  # fmt: skip
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "aaa",
    "aa",
    "b",
    "cd",
    "abcde",
    "e",
    "1.5",
    "me@x.com",
    "a c",
    "a\nb",
    "ABc",
    " x",
    "1x",
    "abcd",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regular_expression_matches_what_python_matches(pattern: str):
    for text in TEXTS:
        assert Regular(pattern).matches(text) == (re.fullmatch(pattern, text, re.ASCII) is not None), text


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)*x", "(a|aa)+$b", "(()*)*b"])
def test_no_expression_is_catastrophic(pattern: str):
    start = time.process_time()
    assert not Regular(pattern).matches("a" * 5000)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("pattern", ["(", "a{2000}", r"(a)\1", "(?=a)b", "(?<=a)b", "((a{100}){100}){100}", "[b-a]"])
def test_an_expression_that_is_refused(pattern: str):
    with pytest.raises(ModelError, match=r"(?s)the regular expression `.*RE2"):
        Regular(pattern)


def test_a_sequence_of_many_elements_is_refused() -> None:
    text = "g (float[n] x) => (float[m] y) <int64 one = {1}> { s = SplitToSequence(x, one) y = SequenceAt(s, one) }"
    whole = np.zeros(20_000, np.float32)
    with pytest.raises(ModelError, match="a sequence has 20,000 elements"):
        program(text)(whole)
    assert program(text, limits=Limits(iterations=20))(whole[:20]).shape == (1,)


def test_an_enlargement_is_refused_before_its_positions_are_computed() -> None:
    text = """g (float[1, 1, 2, 2] x) => (float[1, 1, a, b] y) <int64[4] s = {1, 1, 1000000000, 1000000000}> {
        y = Resize(x, , , s) }"""
    with pytest.raises(ModelError, match="the result of shape"):
        program(text)(np.zeros((1, 1, 2, 2), np.float32))


def test_functions_that_double_are_refused() -> None:
    functions = " ".join(
        f'<domain: "d", opset_import: ["": 18, "d": 1]> f{i} (x) => (y) {{ a = d.f{i + 1}(x) y = d.f{i + 1}(a) }}'
        for i in range(17)
    )
    functions += ' <domain: "d", opset_import: ["": 18]> f17 (x) => (y) { y = Neg(x) }'
    with pytest.raises(ModelError, match="more than 100,000 operations"):
        program("g (float[2] x) => (float[2] y) { y = d.f0(x) }", 18, functions, ', "d": 1')


@pytest.mark.parametrize("goes_on", ["Identity(go)", "Constant<value = bool {1}>()"])
def test_a_counted_loop_that_cannot_be_unrolled_is_refused_at_once(goes_on: str) -> None:
    graph = f"""g (float[2] x, seq(float[2]) s) => (seq(float[2]) r) {{ n = Constant<value = int64 {{10000000}}>()
        yes = Constant<value = bool {{1}}>() r = Loop(n, yes, s) <body = f (int64 i, bool go, seq(float[2]) v)
        => (bool next, seq(float[2]) w) {{ w = SequenceInsert(v, x) next = {goes_on} }}> }}"""
    start = time.process_time()
    with pytest.raises(ModelError, match=r"more than 5,000 iterations"):
        program(graph)(np.ones(2, np.float32), [])
    assert time.process_time() - start < 2


def test_leaves_of_many_targets_are_refused_before_their_table_is_made() -> None:
    numbers = ", ".join(f"nodes_{name} = [0]" for name in "treeids nodeids featureids truenodeids falsenodeids".split())
    graph = f"""g (float[n, 2] x) => (float[n, m] y) {{ y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1000000000, {numbers},
        nodes_values = [0.0], nodes_modes = ["LEAF"], target_ids = [0], target_nodeids = [0], target_treeids = [0],
        target_weights = [1.0]>(x) }}"""
    with pytest.raises(ModelError, match=r"the table of the leaves' weights has 12,000,000,000 bytes"):
        program(graph, domains=', "ai.onnx.ml": 3')(np.ones((1, 2), np.float32))
