"""Queries: full XPath 1.0 on one element per block and equation, and errors that say where and what."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.mox import eval_mox, make_mox, query, sub
from tests.mox.models import CASES, NnxLayer

X = jnp.ones((2, 3))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.name = "of a field"
        self.one = nnx.Linear(3, 10, rngs=rngs)
        self.two = nnx.Linear(10, 10, use_bias=False, rngs=rngs)
        self.conv = nnx.Conv(10, 5, (3,), rngs=rngs)

    def __call__(self, x, *, flag=True):
        x = jax.nn.relu(self.two(self.one(x)))
        x = self.conv(x)
        return jax.lax.cond(x.sum() > 0, lambda x: jnp.sin(x), lambda x: jnp.cos(x), x) if flag else x


@pytest.fixture(scope="module")
def mox():
    return jaxport.make_mox(Model(nnx.Rngs(0)))(X)


HITS = {
    "//Linear": ["one", "two"],
    "//Linear[@features=10]": ["one", "two"],
    "//Linear[@out_features=10][@in_features=3]": ["one"],
    "//Linear[@features=10 and @use_bias='False']": ["two"],
    "//Linear[2]": ["two"],
    "//Linear[last()]": ["two"],
    "//Linear[position() < 2]": ["one"],
    "//flax.nnx.Linear": ["one", "two"],
    '//module_call[@type="Linear"]': ["one", "two"],
    '//module_call[@target="flax.nnx.Conv"]': ["conv"],
    "//module_call[not(@type='Linear')]": ["", "conv"],
    "/module_call": [""],
    "/Model": [""],
    "//Linear[@use_bias=true()]": ["one"],
    "//Linear[@use_bias=True]": ["one"],
    "//Linear[@use_bias='true']": ["one"],
    "//Linear[@use_bias]": ["one"],
    "//Linear[not(@use_bias)]": ["two"],
    "//Linear[not(@use_bias=False)]": ["one"],
    "//Linear[@use_bias != False and @features]": ["one"],
    "//*[@use_bias=false()]": ["two"],
    "one": ["one"],
    "//Linear[ends-with(@path, 'wo')]": ["two"],
    "//*[@kind='module'][matches(@path, '^(one|c..v)$')]": ["one", "conv"],
    "/mox/module_call": [""],
    "/*/*": [""],
    "//module_call/module_call": ["one", "two", "conv"],
    "//Conv/@*/..": ["conv"],
    "//Conv[@kernel_size='(3,)']": ["conv"],
    "//Conv/preceding-sibling::Linear": ["one", "two"],
    "//Linear[following-sibling::Conv]": ["one", "two"],
    "//Linear[1]/following-sibling::*[1]": ["two"],
    "//dot_general/ancestor::Linear": ["one", "two"],
    "//dot_general/parent::*[@path='one']": ["one"],
    "//add/ancestor-or-self::*[@kind='module'][1]": ["one", "conv"],
    "//*[@params='kernel']": ["two"],
    "//*[contains(@params, 'bias')][starts-with(@path, 'on')]": ["one"],
    "//*[@kind='module'][string-length(@path) > 3]": ["conv"],
    "//Linear | //Conv": ["one", "two", "conv"],
    "//*[@kind='module'][@shape='2,10']": ["one", "two"],
    "//*[@kind='module'][@dtype='float32'][@outputs='float32[2,5]']": ["", "conv"],
    "//Linear[@inputs = 'float32[2,3]']": ["one"],
    "//*[@kind='module'][@config.name='of a field']": [""],
    "//*[count(module_call) = 3]": [""],
    "//pjit[@name='relu']": ["relu"],
    "//jit[@name=\"relu\"]": ["relu"],
    "//custom_jvp_call/jit": ["relu"],
    "//cond/body[@name='branches.1']/sin | //body/cos": ["cos", "sin"],
    "//max/..": ["relu"],
    "  //  Linear [ 1 ]  ": ["one"],
    "//Linear[@in_features div 2 = 5]": ["two"],
    "//Linear[@in_features mod 2 = 1]": ["one"],
    "//Linear[@in_features * 2 - 1 = 5]": ["one"],
    "//Linear[-@in_features = -3]": ["one"],
    "//sin[@name='x']": [],
    "//RMSNorm": [],
    "//*[self::Linear or self::Conv]": ["one", "two", "conv"],
    "//Model": [""],
    "(//Linear)[2]": ["two"],
    "descendant::Conv": ["conv"],
    ".//Conv": ["conv"],
}  # fmt: skip


@pytest.mark.parametrize("xpath", HITS)
def test_a_query_hits(mox, xpath):
    found = mox.select(xpath)
    paths = [
        path.rpartition(".")[2] if node.block is None else path
        for path, node in zip(found.paths(), found.nodes, strict=True)
    ]
    assert paths == HITS[xpath]


def test_every_block_has_one_element(mox):
    everything = mox.select("//*")
    assert everything.count() == len({id(node) for node in everything.nodes}) == len(mox.tree.nodes)
    assert [node.block.path for node in everything.nodes if node.block is not None] == ["", "one", "two", "conv"]


def test_types_and_predicates_select_too(mox):
    assert mox.select(nnx.Linear).paths() == ["one", "two"]
    assert mox.select(lambda match: match.type == "Linear" and match.config["use_bias"]).paths() == ["one"]
    assert mox.select("//Linear").where(lambda match: match.config["in_features"] == 10).paths() == ["two"]
    assert mox.select(mox.select("//Linear")).count() == 2
    assert mox.select("//max")[0].out_avals[0].shape == (2, 10)


def test_static_arguments_of_a_call_are_its_config():
    off = jaxport.make_mox(Model(nnx.Rngs(0)))(X, flag=False)
    assert off.select("//Model[@flag='False']").count() == 1
    assert off.select("//cond").count() == 0


def test_the_functional_spelling(mox):
    assert query("//Linear", mox, expect=2).count() == 2
    edited = sub("//pjit[@name='relu']", jnp.tanh, mox)
    assert eval_mox(edited, X).shape == (2, 5)
    assert make_mox(edited)(X).select("//tanh/tanh").count() == 1


def test_a_selected_block_is_a_mox(mox):
    one = mox.select("//Linear")[0]
    assert one.params.keys() == {"one.kernel", "one.bias"}
    model = Model(nnx.Rngs(0))
    assert (one(X) == model.one(X)).all()
    assert one.select("//dot_general").count() == 1
    again = jaxport.mox.loads(jaxport.mox.dumps(one), {**one.params, **one.state})
    assert (again(X) == one(X)).all()
    assert one.sub("//add", jnp.subtract)(X).shape == (2, 10)


# -- errors ------------------------------------------------------------------------------------------------------------

MALFORMED = {
    "": (0, "it is empty"),
    "//Linear[": (9, "a name is expected here, not the end"),
    "//Linear[@a='b]": (12, "the string is not closed"),
    "//Linear]": (8, "`]` is not expected here"),
    "//Linear[1": (10, "`]` is missing"),
    "count(//a": (9, "`)` is missing"),
    "//": (2, "a name is expected here, not the end"),
    "//Linear//": (10, "a name is expected here, not the end"),
    "//Linear and": (12, "a name is expected here, not the end"),
    "uncle::a": (0, "`uncle` is not an axis"),
    "//a[lower-case(@b)]": (4, "XPath 1.0 has no function `lower-case`"),
    "//a[matches(@b)]": (15, "`matches` takes two arguments, a text and what it is compared with"),
    "//x:a": (2, "elements have no namespaces"),
    "//a[$b]": (4, "variables have no values here"),
    "//a[@b=]": (7, "a name is expected here, not `]`"),
    "//a ; //b": (4, "no such character here"),
    "[1]": (0, "a name is expected here, not `[`"),
    "//a[" + "(" * 60: (53, "it is nested more than 50 deep"),
}


@pytest.mark.parametrize("xpath", MALFORMED)
def test_a_malformed_query_is_an_error_with_its_position(mox, xpath):
    position, why = MALFORMED[xpath]
    with pytest.raises(jaxport.QueryError) as error:
        mox.select(xpath)
    assert error.value.where.startswith(f"position {position}\n")
    assert error.value.why == why


@pytest.mark.parametrize("xpath", ["//Linear/@name", "//a/text()"])
def test_a_query_must_give_elements(mox, xpath):
    found = mox.select("//Linear") if xpath == "//a/text()" else None
    if found is not None:
        assert mox.select(xpath, strict=False).count() == 0
        return
    with pytest.raises(jaxport.QueryError, match="gives attributes or text, no elements"):
        mox.select(xpath)


@pytest.mark.parametrize("xpath", ["count(//Linear)", "'text'", "1 + 1", "//Linear = 3"])
def test_a_value_is_no_selection(mox, xpath):
    with pytest.raises(jaxport.QueryError, match=r"gives the value .*, no elements"):
        mox.select(xpath)


def test_a_wrong_call_of_a_function_is_an_error(mox):
    with pytest.raises(jaxport.QueryError, match="cannot be evaluated"):
        mox.select("//*[contains(@path)]")
    with pytest.raises(jaxport.QueryError, match="cannot be evaluated"):
        mox.select("//*[matches(@path, '(')]")


def test_the_number_of_hits_can_be_demanded(mox):
    with pytest.raises(jaxport.QueryError, match=r"`//Linear` matches 2, not 3(.|\n)*it matches `one`, `two`"):
        mox.select("//Linear", expect=3)
    with pytest.raises(jaxport.QueryError, match=r"`//Linaer` matches 0, not 2(.|\n)*there is `Linear`"):
        mox.select("//Linaer", expect=2, strict=False)
    with pytest.raises(jaxport.QueryError, match="`//RMSNorm` matches nothing, so nothing would be replaced"):
        mox.sub("//RMSNorm", jnp.sin)
    with pytest.raises(jaxport.QueryError, match="`//RMSNorm` matches nothing, so nothing would be captured"):
        mox.capture("//RMSNorm")


UNKNOWN = {
    "//Linaer": r"names the element `Linaer`(.|\n)*there is `Linear`",
    "//Linear[@outfeatures=10]": r"names the attribute `outfeatures`(.|\n)*`out_features`",
    "//flax.nxx.Linear": r"names the type `flax.nxx.Linear`(.|\n)*`flax.nnx.Linear`",
    "/Modle": r"names the element `Modle`(.|\n)*there is `Model`",
    "one.kernle": "there is nothing at `one.kernle`",
    "0.one": "there is nothing at `0.one`",
}


@pytest.mark.parametrize("query", UNKNOWN)
def test_an_unknown_name_is_refused_unless_it_is_asked_for(mox, query):
    with pytest.raises(jaxport.QueryError, match=UNKNOWN[query] + r"(.|\n)*strict=False"):
        mox.select(query)
    assert mox.select(query, strict=False).count() == 0


def test_blocks_are_found_by_path(mox):
    assert mox["one"].config["in_features"] == 3
    with pytest.raises(jaxport.QueryError, match=r"`onee` is not the path of a block(.|\n)*there (is|are) `one`"):
        mox["onee"]
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    twice = jaxport.make_mox(nnx.Sequential(layer, layer))(X)
    with pytest.raises(jaxport.QueryError, match=r"is called several times(.|\n)*there are 2 calls"):
        twice["layers.0"]


def test_paths_are_seen_from_the_members_of_a_selection():
    layers = nnx.Sequential(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0))), nnx.Sequential(nnx.relu))
    mox = jaxport.make_mox(layers)(X)
    assert mox.select("//Sequential//Sequential").select("layers.0").paths() == ["layers.0.layers.0"]
    with pytest.raises(jaxport.QueryError, match="layer"):
        mox.select("layers.0").select("layer")


class Tanh(nnx.Linear):
    def __call__(self, inputs):
        return jnp.tanh(super().__call__(inputs))


def test_a_class_selects_those_derived_from_it():
    derived = jaxport.make_mox(Tanh(3, 3, rngs=nnx.Rngs(0)))(X)
    assert derived.select(nnx.Linear).count() == derived.select(Tanh).count() == 1


def test_selections_are_combined(mox):
    linear, conv = mox.select("//Linear"), mox.select("//Conv")
    assert (conv | linear).paths() == ["one", "two", "conv"]
    assert (linear - mox.select("one")).paths() == ["two"]
    assert (linear & mox.select("//*[@use_bias]")).paths() == ["one"]
    assert mox.select("//Model").select(".//Linear", expect=2).paths() == ["one", "two"]
    assert (linear | conv).select("./dot_general").count() == 2
    model = mox.select("//Model")
    assert model.select(nnx.Linear).paths() == model.select(linear).paths() == ["one", "two"]
    assert model.select(lambda match: match.type == "Conv").paths() == ["conv"]
    assert linear.select(nnx.Linear).count() == 0  # inside of the members
    with pytest.raises(jaxport.InvalidArgument, match="a selection and a `str` cannot be combined"):
        linear | "//Conv"
    with pytest.raises(jaxport.InvalidArgument, match="belongs to another Mox"):
        linear | jaxport.make_mox(jnp.sin)(X).select("//sin")


def test_what_is_no_query_is_refused(mox):
    with pytest.raises(jaxport.InvalidArgument, match="3 is not a query"):
        mox.select(3)
    with pytest.raises(jaxport.InvalidArgument, match="the selection belongs to another Mox"):
        mox.select(jaxport.make_mox(jnp.sin)(X).select("//sin"))


def test_long_bodies_are_folded_and_the_notebook_folds_by_hand():
    mox = jaxport.make_mox(NnxLayer(nnx.Rngs(0)))(CASES["nnx"]().args[0])
    assert "more equations" in str(mox)
    html = mox.show().data
    assert html.count("<details") == html.count("</details>") >= mox.select("//module_call").count()
    assert "attention" in html


def test_a_model_of_twelve_layers_is_printed_on_a_page():
    mox = jaxport.make_mox(nnx.Sequential(*[NnxLayer(nnx.Rngs(0)) for _ in range(12)]))(CASES["nnx"]().args[0])
    lines = str(mox).splitlines()
    assert len(lines) <= 80
    assert lines[-1].strip() == "└─ … layers.1 to layers.11: the same"
    assert str(mox.fold(depth=2)).count("\n") == 3
    assert mox._repr_html_() == mox.show().data
    with pytest.raises(jaxport.InvalidArgument, match="depth=0 is too small"):
        mox.fold(depth=0)


ODD_NAMES = ["a b", "x.y", "é", "0", "it's", "a/b", "a-b", 'q"q', "a[0]", "//x", "*", "a|b", "@x", "a:b", "(x)"]


def test_paths_of_any_characters_are_paths():
    class Odd(nnx.Module):
        def __init__(self, rngs):
            self.d = nnx.Dict({name: nnx.Linear(4, 4, rngs=rngs) for name in ODD_NAMES})

        def __call__(self, x):
            for name in ODD_NAMES:
                x = self.d[name](x)
            return x

    x = jnp.ones((2, 4))
    mox = jaxport.make_mox(Odd(nnx.Rngs(0)))(x)
    captured = mox.capture("//Linear")(x)
    assert list(captured) == mox.select("//Linear").paths() == [f"d.{name}" for name in ODD_NAMES]
    for path in captured:
        assert mox.select(path, expect=1).paths() == mox.select("//Odd").select(path).paths() == [path]
        assert list(mox.capture(path)(x)) == [path]
        assert mox.sub(path, jaxport.mox.lora(1), expect=1).params.keys() > mox.params.keys()
    np.testing.assert_allclose(mox.patch(captured)(0 * x), mox(x))


def test_paths_relative_to_a_block_and_the_order_of_execution():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return x + self.up(x)

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(12)])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    x = jnp.ones((2, 4))
    mox = jaxport.make_mox(Net(nnx.Rngs(0)))(x)
    paths = [f"blocks.{index}" for index in range(12)]
    for captured in (
        mox.capture("//Block"), jax.jit(mox.capture("//Block")), mox.capture("//Block", grads=lambda y: y.sum()),
        lambda x: mox.select("//Block").tap()(x)[1],
    ):  # fmt: skip
        assert list(captured(x)) == paths == mox.select("//Block").paths()
    tapped = mox.select("//Block").tap()
    assert list(jaxport.mox.loads(jaxport.mox.dumps(tapped), {**mox.params})(x)[1]) == paths
    block = mox["blocks.10"]
    assert block.select("up").paths() == block.select("blocks.10.up").paths() == ["blocks.10.up"]
    assert "blocks.10.up.lora_a" in block.sub("up", jaxport.mox.lora(1)).params
    assert list(block.capture("up")(x)) == ["blocks.10.up"]
    np.testing.assert_allclose(block.patch({"up": 0.0})(x), x)
