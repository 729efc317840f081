"""The names of the parts of a module: attributes, elements of lists, arguments.

Paths of the file become attributes of the module around; numbered ones, in order and without a gap, become a list:

    stem.conv, blocks.0, blocks.1, head   →   self.stem_conv, self.blocks[0], self.blocks[1], self.head

What a name was taken for is kept by the part itself, not by its path: the calls of one module share their attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxport.codegen.structure.spelling.rewritten import ROLES
from jaxport.codegen.tree import Call, Layer, Loop, Module, Op, Weight
from jaxport.importer.names import given_name, identifier, unique
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.identity import IdentityMap

Child = Module | Layer
Entry = Child | list["Entry"]
"""An element of a list of modules, which may be a list itself."""


@dataclass(eq=False)
class Fields:
    """The attributes of a module.

    Attributes:
      single: modules and layers by attribute.
      lists: lists of modules and layers by attribute.
      paths: where each module and layer is, below `self`: `("layers", 0)`; by `key_of`.
      weights: the attributes of tensors.
      taken: the names in use.
      order: the attributes in the order in which they are used.
      elements: the variables that stand for parts in the body of a loop; by `key_of`.
      spelled: writes a name as the target's conventions are.
    """

    single: dict[str, Child] = field(default_factory=dict)
    lists: dict[str, list[Entry]] = field(default_factory=dict)
    paths: IdentityMap[object, tuple[str | int, ...]] = field(default_factory=IdentityMap)
    weights: dict[Variable, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    elements: IdentityMap[object, str] = field(default_factory=IdentityMap)
    spelled: Callable[[str], str] = lambda name: name

    def fresh(self, wanted: str) -> str:
        """Return a name that is not in use."""
        chosen = unique(self.spelled(wanted), self.taken)
        self.taken.add(chosen)
        return chosen

    def members(self, place: Sequence[str | int]) -> list[Entry]:
        """Return the list at a place."""
        entries = self.lists[str(place[0])]
        for number in place[1:]:
            inner = entries[int(number)]
            assert isinstance(inner, list)
            entries = inner
        return entries

    def follow(self, columns: Sequence[Sequence[Child]]) -> bool:
        """Whether the parts of each column are one, or elements of a list that follow one another."""
        for column in columns:
            first, *_ = places = [self.paths[key_of(child)] for child in column]
            in_order = len(first) > 1 and all(
                place == (*first[:-1], int(first[-1]) + number) for number, place in enumerate(places)
            )
            if not in_order and any(place != first for place in places):
                return False
        return True

    def text(self, child: Child) -> str:
        """Return a part as the source has it: `self.layers[0]`."""
        if key_of(child) in self.elements:
            return self.elements[key_of(child)]
        return "self" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in self.paths[key_of(child)])


def key_of(child: Child) -> object:
    """Return what all calls of one module or layer share, the key of an `IdentityMap`: each call of a layer is a
    `Layer` of its own, with the same mapping of weights.
    """
    return child.weights if isinstance(child, Layer) else child


def fields_of(module: Module, reserved: Collection[str], spelled: Callable[[str], str] = lambda name: name) -> Fields:
    """Return the attributes of a module, in the order in which they are used.

    `spelled` writes a name as the target's conventions are.
    """
    fields = Fields(taken=set(reserved), spelled=spelled)
    labels = IdentityMap[object, str]()
    children = IdentityMap[object, Child]()
    for child in _children(module):
        children.setdefault(key_of(child), child)
        labels[key_of(child)] = _label(child, module)
    lists = _lists(children, labels)
    for key, child in children.items():
        element = lists.get(key)
        if element is None:
            chosen = fields.fresh(attribute_name(labels[key], "layer"))
            fields.single[chosen], fields.paths[key] = child, (chosen,)
            fields.order.append(chosen)
            continue
        stem, first = element
        if not any(first):
            chosen = fields.fresh(attribute_name(stem, "layers"))
            fields.order.append(chosen)
            fields.lists[chosen] = []
            for other, (name, place) in lists.items():
                if name == stem:
                    fields.paths[other] = (chosen, *place)
                    _put(fields.lists[chosen], place, children[other])
    for variable, weight in module.weights.items():
        if isinstance(weight, Weight):
            fields.weights[variable] = fields.fresh(weight_name(weight.name))
    return fields


def _children(module: Module) -> Iterator[Child]:
    for part in module.parts:
        if not isinstance(part, Op):
            yield part if isinstance(part, Layer) else part.module
    yield from module.uncalled


def _label(child: Child, around: Module) -> str:
    if isinstance(child, Layer):
        return child.label
    return child.path_in(around)


def _put(entries: list[Entry], place: Sequence[int], child: Child) -> None:
    """Put a part into a list of lists, behind all others."""
    for number in place[:-1]:
        if number == len(entries):
            entries.append([])
        inner = entries[number]
        assert isinstance(inner, list)
        entries = inner
    entries.append(child)


def _lists(
    children: Mapping[object, Child], labels: Mapping[object, str]
) -> Mapping[object, tuple[str, tuple[int, ...]]]:
    """Return the lists that parts are elements of, or lists of lists, and the place of each.

    The labels of a list are numbered from 0 on, without a gap, in order: `blocks.0`, `blocks.1`, or `stages.0.0`,
    `stages.0.1`, `stages.1.0`.
    """
    places = IdentityMap[object, tuple[str, tuple[int, ...]]]()
    for depth in (2, 1):
        numbered: dict[str, list[tuple[tuple[int, ...], object]]] = {}
        for key in children:
            label = re.fullmatch(rf"(.+?)((?:[._]\d{{1,6}}){{{depth}}})", labels[key])
            if label is not None and key not in places:
                place = tuple(map(int, re.findall(r"\d+", label[2])))
                numbered.setdefault(label[1], []).append((place, key))
        for stem, members in numbered.items():
            is_list = all("." in labels[key][len(stem) :] or isinstance(children[key], Module) for _, key in members)
            is_single = len(members) == 1 and "." not in labels[members[0][1]][len(stem) :]
            if is_list and not is_single and _follow([place for place, _ in members]):
                places.update((key, (stem, place)) for place, key in members)
    return places


def _follow(places: Sequence[tuple[int, ...]]) -> bool:
    """Whether places follow one another: only one number is one more than before, and those behind it are 0 again.

    >>> _follow([(0, 0), (0, 1), (1, 0)]), _follow([(0, 0), (1, 1)]), _follow([(1,), (2,)])
    (True, False, False)
    """
    zeros = (0,) * len(places[0])
    following = [
        {(*before[:at], before[at] + 1, *zeros[at + 1 :]) for at in range(len(zeros))} for before in places[:-1]
    ]
    return places[0] == zeros and all(place in known for place, known in zip(places[1:], following, strict=True))


def attribute_name(label: str, default: str) -> str:
    """Return an attribute from a path of the file.

    >>> attribute_name("stem.0", "module"), attribute_name("class", "module"), attribute_name("__init__", "module")
    ('stem_0', 'class_', 'init')
    """
    return identifier(label, default)


def weight_name(name: str) -> str:
    """Return an attribute for a tensor: the last part of its name, unless an exporter has made it up.

    >>> weight_name("encoder.cls_token"), weight_name("onnx::MatMul_123"), weight_name("val_17")
    ('cls_token', 'weight', 'weight')
    """
    return identifier(re.sub(r"_\d+$", "", given_name(name)), "weight")


def table_name(name: str) -> str:
    """Return the same for a tensor that is not trained, which exporters name after the operator that made it, too.

    >>> (
    ...     table_name("cos_cache"),
    ...     table_name("layers.0.attn.inv_freq"),
    ...     table_name("attention/Pow_2"),
    ...     table_name("Constant_output_0"),
    ... )
    ('cos_cache', 'inv_freq', 'table', 'table')
    """
    last = given_name(name)
    return identifier(last, "table") if re.fullmatch(r"[a-z]+(_[a-z]+)+", last) else "table"


CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
"""PyTorch's types that say nothing of what a module is."""


def class_name(type_name: str, path: str, default: str = "Block") -> str:
    """Return a class from the type that the file gives a module, or else, or for a container, from its path.

    >>> (
    ...     class_name("torch.nn.modules.linear.Linear", ""),
    ...     class_name("", "encoder.self_attn"),
    ...     class_name("", "blocks.11"),
    ...     class_name("torch.nn.modules.container.Sequential", "features"),
    ... )
    ('Linear', 'SelfAttn', 'Block', 'Features')
    """
    text = re.split(r"[.:/]", type_name)[-1] if type_name else ""
    if text in CONTAINERS or not re.search(r"[A-Za-z]", text):
        parts = [part for part in re.split(r"[./]", path) if part and not part.isdigit()]
        text = re.sub(r"_\d+$", "", parts[-1]) if parts else default
        if re.search(r"(?<=[a-z])[^s]s[./_]\d+$", path):
            text = text[:-1]
    words = [word for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    joined = "".join(word[:1].upper() + word[1:] for word in words)[:48]
    return identifier(joined, default) if joined and not joined[0].isdigit() else default


def last_word(class_: str) -> str:
    """Return the last word of the name of a class, without a number.

    >>> last_word("AttentionNorm"), last_word("Ff1"), last_word("H")
    ('Norm', 'Ff', 'H')
    """
    words = re.findall(r"[A-Z][^A-Z]*", re.sub(r"(?<=\D)\d+$", "", class_))
    return words[-1] if words else class_


def argument_role(variable: Variable) -> str:
    """Return a name for an argument of a module, from its dtype: modules that are alike have the same.

    >>> argument_role(Variable((2, 3), np.dtype("float32"))), argument_role(Variable((2,), np.dtype(bool)))
    ('x', 'mask')
    """
    kind = np.dtype(variable.dtype).kind
    if variable.hint in ROLES:
        return variable.hint
    if kind == "b":
        return "mask"
    return "indices" if kind in "iu" else "x"


def roles_of(root: Module, names: Mapping[Variable, str]) -> dict[Variable, str]:
    """Return names for the arguments of modules whose values differ between calls.

    `past_0_key` and `past_1_key` are `past_key`; an argument without a common name is named by its dtype.

    Args:
      root: the model.
      names: the names of its inputs.
    """
    roles: dict[Variable, str] = {}
    for module in root.walk():
        for calls in _calls_of_one(module):
            for formal, *values in zip(calls[0].module.inputs, *(call.inputs for call in calls), strict=True):
                if any(value is not values[0] for value in values):
                    roles[formal] = argument_role(formal)
        for loop in (item for item in module.items if isinstance(item, Loop)):
            for position in loop.carried:
                formals = [call.module.inputs[position] for call in loop.calls]
                roles |= {formal: argument_role(formal) for formal in formals}
            for position, row in loop.rows.items():
                common = common_name(row if isinstance(row, tuple) else (row,), names)
                formals = [call.module.inputs[position] for call in loop.calls]
                roles |= {formal: common or argument_role(formal) for formal in formals}
    return roles


def _calls_of_one(module: Module) -> Iterable[list[Call]]:
    """Return the calls of each module that is called in another, if there are several."""
    calls_by_module: dict[Module, list[Call]] = {}
    for call in module.calls():
        calls_by_module.setdefault(call.module, []).append(call)
    return (calls for calls in calls_by_module.values() if len(calls) > 1)


def common_name(values: Iterable[Variable], names: Mapping[Variable, str]) -> str:
    """Return the name that values have but for numbers in it; empty if they have none in common."""
    stems = {_without_numbers(names.get(value, "")) for value in values}
    return next(iter(stems)) if len(stems) == 1 else ""


def _without_numbers(name: str) -> str:
    return _past(re.sub(r"_?\d+(?=_|$)", "", name))


def of_any_layer(name: str, path: str) -> str:
    """Return the name of an input as a module calls it: without the numbers of its own layer.

    >>> of_any_layer("past_key_values_3_key", "layers.3.attn"), of_any_layer("past_key_values_3_key", "attn")
    ('past_key', 'past_key_values_3_key')
    """
    own = {part for part in path.split(".") if part.isdigit()}
    return _past("_".join(part for part in name.split("_") if part not in own))


def _past(name: str) -> str:
    """Return the name of one side of a cache, whose name says both."""
    return re.sub(r"^past_key_values_(?=(key|value)$)", "past_", name)


def unique_arguments(
    variables: Sequence[Variable], known: Mapping[Variable, str], taken: set[str], described: Callable[[Variable], str]
) -> dict[Variable, str]:
    """Return a name for each argument of a module; those that are arguments of the model keep theirs.

    `described` says what an argument is that would be a second `x`, and of integers whether rows start there.
    """
    names: dict[Variable, str] = {}
    for variable in variables:
        wanted = known.get(variable) or argument_role(variable)
        if wanted == "x" and "x" in taken:
            wanted = described(variable)
        elif wanted == "indices" and described(variable) == "starts":
            wanted = "starts"
        chosen = unique(wanted, taken)
        taken.add(chosen)
        names[variable] = chosen
    return names
