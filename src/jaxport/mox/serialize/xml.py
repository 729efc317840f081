"""A document as XML: an element per equation, as in the tree that queries see; everything else in attributes.

A block is a ``module_call`` (or ``function_call``) with its name, path and type; its inputs and outputs are ``input``
and ``output`` elements. What is no text is JSON in an attribute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from jaxport.errors import ModelError
from jaxport.mox.serialize.json_text import parse_json
from jaxport.mox.serialize.json_values import JsonValue, list_of, object_of, objects_of, pair_of, text_of

if TYPE_CHECKING:
    from lxml.etree import _Element

_BODY = {"$closed": "closed", "$jaxpr": "open"}


def xml_text(document: Mapping[str, JsonValue]) -> str:
    """Return a document as XML."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    root = etree.Element("mox")
    for key, value in document.items():
        if key not in ("program", "rules"):
            root.set(key, _packed(value))
    _write_body(etree.SubElement(root, "program"), object_of(document["program"]), etree)
    rules = etree.SubElement(root, "rules")
    for rule in objects_of(document["rules"]):
        element = etree.SubElement(rules, "rule", name=_packed(rule["name"]))
        for key in ("forward", "backward"):
            if rule[key] is None:
                continue
            program = object_of(rule[key])
            if "$closed" in program:
                _write_body(etree.SubElement(element, key), object_of(program["$closed"]), etree)
            else:  # it has constants
                etree.SubElement(element, key, value=_packed(program))
    return etree.tostring(root, encoding="unicode", pretty_print=True)


def _packed(value: JsonValue) -> str:
    # XML has no control characters; JSON escapes them.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _write_body(parent: _Element, body: Mapping[str, JsonValue], etree: ModuleType) -> None:
    for name, aval in map(pair_of, list_of(body["inputs"])):
        etree.SubElement(parent, "input", name=name, aval=_packed(aval))
    for equation in objects_of(body["equations"]):
        block = object_of(equation["block"]) if "block" in equation else None
        tag = f"{block['kind']}_call" if block is not None else re.sub(r"[^\w.-]", "_", text_of(equation["op"]))
        element = etree.SubElement(parent, tag)
        if block is not None:
            # For the reader of the file; the block itself is whole below.
            element.set("type", re.sub(r"[^ -~]", "_", text_of(block["target"]).rpartition(".")[2]))
            element.set("path", re.sub(r"[^ -~]", "_", text_of(block["path"])))
        for key, value in equation.items():
            if key == "params":
                _write_params(element, object_of(value), etree)
            else:
                element.set(_key(key), _packed(value))
    for atom in list_of(body["outputs"]):
        etree.SubElement(parent, "output", value=_packed(atom))


def _key(key: str) -> str:
    return f"eq.{key}"


def _write_params(element: _Element, params: Mapping[str, JsonValue], etree: ModuleType) -> None:
    for name, value in params.items():
        bodies = _bodies_of(value)
        if bodies is None:
            etree.SubElement(element, "param", name=name, value=_packed(value))
            continue
        param = etree.SubElement(
            element, "param", name=name, several=_packed(isinstance(value, Mapping) and "$tuple" in value)
        )
        for kind, body in bodies:
            _write_body(etree.SubElement(param, "body", kind=kind), body, etree)


def _bodies_of(value: JsonValue) -> list[tuple[str, Mapping[str, JsonValue]]] | None:
    """Return the programs that a param is made of: one, or a tuple of them."""
    items = list_of(value["$tuple"]) if isinstance(value, Mapping) and "$tuple" in value else [value]
    programs = [item for item in items if isinstance(item, Mapping)]
    named_bodies = [(_BODY[key], object_of(item[key])) for item in programs for key in item if key in _BODY]
    return named_bodies if named_bodies and len(named_bodies) == len(items) else None


def parse_xml(text: str) -> dict[str, JsonValue]:
    """Return the document of an XML text.

    Raises:
      ModelError: it is malformed, truncated, nested too deep, or has a document type (entities are never expanded).
    """
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError as error:
        line, column = error.position
        raise ModelError("the text is not XML", where=f"line {line}, column {column}", why=str(error.msg)) from error
    if root.getroottree().docinfo.doctype:
        raise ModelError("the XML has a document type", why="it could define entities, which nothing here needs")
    if root.tag != "mox":
        raise ModelError("this is not a Mox", why=f"its root is `{root.tag}`, not `mox`")
    document = {key: _unpacked(value) for key, value in root.items()}
    document["program"] = _read_body(_child(root, "program"))
    document["rules"] = [
        {
            "name": _unpacked(rule.get("name", "null")),
            **{key: _read_rule(rule.find(key)) for key in ("forward", "backward")},
        }
        for rule in _child(root, "rules")
    ]
    return document


def _read_rule(element: _Element | None) -> JsonValue:
    if element is None:
        return None
    value = element.get("value")
    return {"$closed": _read_body(element)} if value is None else _unpacked(value)


def _child(element: _Element, tag: str) -> _Element:
    child = element.find(tag)
    if child is None:
        raise ModelError("the document is incomplete", why=f"`{element.tag}` has no `{tag}`")
    return child


def _unpacked(text: str | None) -> JsonValue:
    return parse_json(text or "")


def _read_body(element: _Element) -> dict[str, JsonValue]:
    inputs: list[JsonValue] = []
    equations: list[JsonValue] = []
    outputs: list[JsonValue] = []
    for child in element:
        if not isinstance(child.tag, str):
            continue  # a comment
        if child.tag == "input" and child.get("aval") is not None:
            inputs.append([child.get("name"), _unpacked(child.get("aval"))])
        elif child.tag == "output" and child.get("value") is not None:
            outputs.append(_unpacked(child.get("value")))
        else:
            equations.append(_read_equation(child))
    return {"inputs": inputs, "equations": equations, "outputs": outputs}


def _read_equation(element: _Element) -> dict[str, JsonValue]:
    data = {key.removeprefix("eq."): _unpacked(value) for key, value in element.items() if key.startswith("eq.")}
    params: dict[str, JsonValue] = {}
    for param in element:
        if param.tag != "param":
            raise ModelError(f"`{param.tag}` is not expected in `{element.tag}`")
        name = str(param.get("name"))
        if param.get("value") is not None:
            params[name] = _unpacked(param.get("value"))
            continue
        keys = {kind: key for key, kind in _BODY.items()}
        bodies = [{keys[str(body.get("kind"))]: _read_body(body)} for body in param]
        params[name] = {"$tuple": bodies} if _unpacked(param.get("several")) else bodies[0]
    return {**data, "params": params}
