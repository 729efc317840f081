"""The page of examples says what the examples are, and its pictures show their graphs."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import onnx_ir as ir
import pytest

import jaxport
from benchmarks import drawing, gallery
from examples.models import MODELS
from jaxport.jaxprs import release

# Other releases of JAX trace some operators differently, and the page shows one of them.
DRAWN_WITH = (0, 10)


@pytest.mark.skipif(release[:2] != DRAWN_WITH, reason="the page is written with another release of JAX")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_section_and_its_picture_are_current(name):
    assert gallery.section(name) in gallery.PAGE.read_text()
    assert gallery.drawn(name) == (gallery.PICTURES / f"{name}.svg").read_text()


def test_every_example_has_its_figures_and_its_picture():
    figures = gallery.figures()
    assert list(figures) == list(MODELS)
    assert all(figures[name]["frameworks"].keys() == MODELS[name].keys() for name in MODELS)
    assert {path.stem for path in gallery.PICTURES.glob("*.svg")} == set(MODELS)


def model(*scopes, operators):
    """A chain of operators, each in the modules of its scope."""
    values = [ir.val("x", ir.DataType.FLOAT, ["B", 3])]
    for scope, operator in zip(scopes, operators, strict=True):
        node = ir.node(operator, [values[-1]], metadata_props={"namespace": scope} if scope else None)
        values.append(node.outputs[0])
    nodes = [value.producer() for value in values[1:]]
    return ir.Graph(values[:1], values[-1:], nodes=nodes, opset_imports={"": 23})


def test_modules_that_are_alike_are_one_box():
    graph = model(
        "Net: m.Net/layers.0: m.Block",
        "Net: m.Net/layers.0: m.Block",
        "Net: m.Net/layers.1: m.Block",
        "Net: m.Net",
        "Net: m.Net/head: m.Linear",
        operators=["Relu", "Tanh", "Relu", "Neg", "Exp"],
    )
    # The root holds everything and is not a module to show: its own operators are between modules.
    made = drawing._boxes(list(graph), 2)
    assert [(box.path, box.last, box.kind, box.times, box.operators()) for box in made] == [
        ("layers.0", "layers.1", "Block", 2, "2 Relu · Tanh"),
        ("", "", "", 1, "Neg"),
        ("head", "", "Linear", 1, "Exp"),
    ]


def test_an_arrow_skips_boxes_at_the_side():
    graph = jaxport.to_onnx(lambda x: (x @ x).sum(0) + x[0], [(3, 3)]).model.graph
    svg = ET.fromstring(drawing.picture(graph, "A & B"))
    texts = ["".join(text.itertext()) for text in svg.iter() if text.tag.endswith("text")]
    assert texts[0] == "x: float32[3, 3]"
    assert texts[-1] == "output: float32[3]"
    box = [float(number) for number in svg.get("viewBox").split()]
    for rectangle in svg.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rectangle.get("y")) + float(rectangle.get("height")) <= box[3]
