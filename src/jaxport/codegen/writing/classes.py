"""Modules as classes: those that are alike are one class, and numbers that differ are arguments of its constructor.

blocks.0: Linear(32, 64), nn.relu      class Block(nnx.Module):
blocks.1: Linear(64, 64), nn.relu  →       def __init__(self, in_features: int, *, rngs: nnx.Rngs): …
Block(32, rngs=rngs), Block(64, rngs=rngs)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from jaxport.codegen.nodes import TreeNode, TreeNumber, key_without
from jaxport.codegen.structure.sequences import elements_of
from jaxport.codegen.tree import Layer, Module, Weight
from jaxport.codegen.writing.calls import CallPrinter
from jaxport.codegen.writing.dialect import LayerLibrary, SequenceForm
from jaxport.codegen.writing.drafts import Draft, grouped, with_arguments, with_functions
from jaxport.codegen.writing.fields import (
    Child,
    Entry,
    Fields,
    class_name,
    common_name,
    fields_of,
    key_of,
    last_word,
    of_any_layer,
    roles_of,
    unique_arguments,
)
from jaxport.codegen.writing.initial_values import Start, starts
from jaxport.codegen.writing.language import Language
from jaxport.codegen.writing.naming.classes import distinct_names
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.naming.values import argument_description
from jaxport.codegen.writing.size_names import size_statements
from jaxport.importer.names import unique
from jaxport.importer.traced.recorded_program import Fixed
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.identity import IdentityMap
from jaxport.sizes.conditions import SizeComparison

MOST_ARGUMENTS = 8  # of a constructor; modules that differ in more are classes of their own
MANY = 4  # modules that are alike may have twice as many: as many classes are worse


@dataclass(frozen=True)
class Sequential:
    """A module that is made in place, of elements that it calls one after the other.

    Attributes:
      form: how the framework makes it.
      elements: its modules and layers, or the names of functions.
    """

    form: SequenceForm
    elements: tuple[Module | Layer | str, ...]

    def children(self) -> Iterator[tuple[Module | Layer, str]]:
        """Yield its modules and layers, each with its path below it."""
        for number, element in enumerate(self.elements):
            if not isinstance(element, str):
                yield element, ".".join((*self.form.path, str(number)))


Library = TypeVar("Library", bound=LayerLibrary)
Definition = TypeVar("Definition")
Expression = TypeVar("Expression", bound=TreeNode)
Statement = TypeVar("Statement", bound=TreeNode)


@dataclass(eq=False)
class Classes(ABC, Generic[Library, Definition, Expression, Statement]):
    """Makes the classes of a tree, in whatever language.

    Attributes:
      dialect: the layers that there are.
      reserved: the names that the source uses otherwise.
      inputs: the names of the arguments of the model.
      known_sizes: the names of sizes that arguments of the model have.
      result: the values that the model returns.
      outputs: the names of its results.
      checks, fixed: what has to hold of its sizes, and those that have to be a number, or another size.
      roles: the names of the arguments of modules whose values differ between calls.
      starts: how parameters begin, by name.
      drafts: the class of each module, as it was drafted.
      sequences: the modules that are a layer after the other.
      definitions: the classes, in the order in which they stand in the source.
      names: the names that are taken.
      first: the first draft of each class, by its name.
      root_name: the name of the model's class.
      parameters: the names of the arguments of each module.
    """

    dialect: Library
    reserved: Collection[str]
    inputs: Mapping[Variable, str]
    known_sizes: Collection[str]
    result: Any
    outputs: Mapping[Variable, str]
    checks: Sequence[SizeComparison] = ()
    fixed: Mapping[Variable, Fixed] = field(default_factory=dict)
    roles: dict[Variable, str] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    drafts: dict[Module, Draft[Expression, Statement]] = field(default_factory=dict)
    sequences: dict[Module, Sequential] = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    first: dict[str, Draft] = field(default_factory=dict)
    root_name: str = ""
    parameters: dict[Module, list[str]] = field(default_factory=dict)

    def print(self, root: Module, base: str) -> str:
        """Make all classes, and return the name of the model's."""
        self.roles, self.starts = roles_of(root, self.inputs), starts(root)
        by_height: dict[int, list[Module]] = {}
        heights: dict[Module, int] = {}
        for module in [*root.walk()][::-1]:
            self._measure(module, heights)
        for module in root.walk():
            by_height.setdefault(heights[module], []).append(module)
        self.names = {*self.reserved}
        root_name = self.root_name = self._unique(base)
        self.names.add(root_name)
        for height in sorted(by_height):
            groups: dict[Hashable, list[Draft]] = {}
            for module in by_height[height]:
                sequence = self._sequential(module) if module is not root else None
                if sequence is not None:
                    self.sequences[module] = sequence
                    continue
                draft = self._draft(module, root, base)
                self.drafts[module] = draft
                # Sizes that callers pass have the names that they are passed by.
                names = () if draft.sizes else {*self.known_sizes, *self.inputs.values()}
                groups.setdefault((draft.kind, draft.sizes, self._key(draft, names)), []).append(draft)
            for drafts in groups.values():
                self._settle(drafts, root_name if drafts[0].module is root else "")
        return root_name

    def _key(self, draft: Draft, free: Collection[str]) -> Hashable:
        """Return what classes share that are alike but for numbers and activations."""
        init, method = draft.trees
        called = [node for node, _ in self._activations(draft)]
        return *draft.init, key_without(init, (), free), key_without(method, called, free)

    def children(self, module: Module) -> Iterator[tuple[Module | Layer, str]]:
        """Yield the modules and layers of a module, each with its path below it."""
        if module in self.sequences:
            yield from self.sequences[module].children()
            return
        fields = self.drafts[module].fields
        for key in fields.order:
            if key in fields.single:
                yield fields.single[key], key
            else:
                yield from _flat(fields.lists[key], key)

    def _sequential(self, module: Module) -> Sequential | None:  # noqa: ARG002  not every library has sequences
        """Return the elements of a module that is a sequence, and that is made in place."""
        return None

    def _unique(self, wanted: str) -> str:
        return unique(wanted, self.names)

    def _named(self, base: str, draft: Draft) -> str:
        """Return a name for a class: its own, or one that tells what differs from the class that has it."""
        first = self.first.setdefault(base, draft)
        own = self._spelled(base)
        if self._is_free(own):
            return own
        owner = "framework" if own in self.reserved else "model" if own == self.root_name else "class"
        different = distinct_names(base, draft, first if first is not draft else None, owner, self._called)
        return next(filter(self._is_free, map(self._spelled, different)), self._unique(base))

    def _spelled(self, wanted: str) -> str:
        """Return a name as the target spells classes."""
        return wanted

    def _is_free(self, wanted: str) -> bool:
        return wanted not in self.names

    @abstractmethod
    def _language(
        self, names: ModuleNames[Expression], arguments: Mapping[Variable, str]
    ) -> Language[Expression, Statement]:
        """Return what writes the computation of a module with these arguments."""

    def _parts_of(self, module: Module) -> Fields:
        return fields_of(module, self.dialect.reserved)

    @abstractmethod
    def _method(
        self,
        language: Language[Expression, Statement],
        arguments: Mapping[Variable, str],
        sizes: Sequence[str],
        body: list[Statement],
        result: object,
        is_root: bool,
    ) -> Statement:
        """Return the method that computes a module; `language` knows what its body needs."""

    def _read(self, names: Collection[str]) -> tuple[Sequence[Statement], set[str]]:  # noqa: ARG002
        """Return the statements that read sizes from the elements of the model's arguments, and their names."""
        return [], set()

    @abstractmethod
    def _returned(self, method: Statement) -> tuple[str, ...]:
        """Return the names of the results of a method, or of the parts that make them."""

    @abstractmethod
    def _called(self, node: TreeNode) -> str:
        """Return the name of the function or method that a node is the call of; empty if it is none."""

    @abstractmethod
    def _argument(self, number: TreeNumber, role: str) -> Expression:
        """Return a number of a class as an argument of its constructor."""

    @abstractmethod
    def _attribute(self, path: str) -> Expression:
        """Return a name, or the attribute at a path."""

    def _activations(self, draft: Draft) -> list[tuple[TreeNode, str]]:  # noqa: ARG002  not every language hands on functions
        """Return the activations that a method calls and that may become arguments, each with its text."""
        return []

    def _plain(self, draft: Draft) -> Draft:
        """Return a draft without the arguments that have their default."""
        return draft

    def _fields(self, module: Module) -> Fields:
        """Return the attributes of a module; of a sequence the places of its elements."""
        if module not in self.sequences:
            return self._parts_of(module)
        parts = lambda path: tuple(int(part) if part.isdigit() else part for part in path.split("."))
        paths = ((key_of(child), parts(path)) for child, path in self.sequences[module].children())
        return Fields(paths=IdentityMap(paths))

    def _measure(self, module: Module, heights: dict[Module, int]) -> int:
        if module not in heights:
            heights[module] = 1 + max((self._measure(call.module, heights) for call in module.calls()), default=0)
        return heights[module]

    def _draft(self, module: Module, root: Module, base: str) -> Draft[Expression, Statement]:
        fields = self._parts_of(module)
        taken = {"self", *self.reserved, *self.known_sizes}
        is_root = module is root
        arguments = dict(self.inputs) if is_root else self._arguments(module, taken)
        self.parameters[module] = [*arguments.values()]
        inside = [self.drafts[call.module] for call in module.calls() if call.module in self.drafts]
        names = ModuleNames(
            {*taken, *arguments.values()},
            self._attribute,
            fields=fields,
            returned={one.module: one.returned for one in inside},
        )
        language = self._language(names, arguments)
        wanted_inside: dict[Child, tuple[str, ...]] = {one.module: one.sizes for one in inside}
        printer = CallPrinter(language, wanted_inside, self.roles, self.outputs)
        printer.arguments(arguments)
        printer.keep(module, {layer: self._layer_path(module, layer) for layer in _tied_layers(module)})
        result = self.result if is_root else module.outputs[0] if len(module.outputs) == 1 else module.outputs
        body = printer.body(module.items, result)
        checks = self.checks if is_root else None
        wanted = ({*language.unread()} & {*self.known_sizes}).union(*(one.names for one in checks or ()))
        shaped = {text: variable for variable, text in arguments.items()}
        fixed = {text: self.fixed.get(variable, {}) for text, variable in shaped.items() if is_root}
        read, named = self._read(wanted) if is_root else ([], set())
        reading, missing = size_statements(shaped, wanted - named, checks, fixed)
        sizes = tuple(sorted(missing))
        method = self._method(language, arguments, sizes, [*language.sizes(reading), *read, *body], result, is_root)
        name = base if is_root else class_name("" if elements_of(module) else module.type, module.path)
        init, tables = self._init(fields, module, language.tables), language.tables
        return Draft(module, name, fields, init, method, sizes, tables, self._returned(method))

    def _arguments(self, module: Module, taken: set[str]) -> dict[Variable, str]:
        def described(variable: Variable) -> str:
            return argument_description(variable, module.items, self.parameters)

        known = {variable: of_any_layer(name, module.path) for variable, name in self.inputs.items()} | self.roles
        if not any(map(str.isdigit, module.path.split("."))):  # not of one layer
            common = {variable: common_name([variable], self.inputs) for variable in self.inputs}
            known |= {variable: self.inputs[variable] for variable, name in common.items() if known[variable] == name}
        return unique_arguments(module.inputs, known, set(taken), described)

    def _layer_path(self, module: Module, layer: Layer) -> str:
        """Where a layer is below a module: `self.transformer.embed`."""
        fields = self._fields(module)
        if key_of(layer) in fields.paths:
            return fields.text(layer)
        for inner in (called.module for called in module.calls()):
            if any(part is layer for deeper in inner.walk() for part in deeper.parts):
                return fields.text(inner) + self._layer_path(inner, layer).removeprefix("self")
        raise KeyError(layer.label)

    @abstractmethod
    def _init(self, fields: Fields, module: Module, tables: Mapping[str, HostValue]) -> dict[str, Expression]:
        """Return the expression that each attribute of a module begins with."""

    def _settle(self, drafts: Sequence[Draft[Expression, Statement]], chosen: str) -> None:
        """Make one class of drafts that are alike but for numbers, or several if they differ in too many."""
        columns = list(zip(*(draft.numbers for draft in drafts), strict=True))
        varying: dict[tuple, list[int]] = {}
        for index, column in enumerate(columns):
            values = tuple((type(node.value), node.value) for node in column)
            if len(set(values)) > 1:
                varying.setdefault(values, []).append(index)
        activations = {draft: self._activations(draft) for draft in drafts}
        functions: dict[tuple[str, ...], list[int]] = {}
        for index, called in enumerate(zip(*activations.values(), strict=True)):
            texts = tuple(text for _, text in called)
            if len({*texts}) > 1:
                functions.setdefault(texts, []).append(index)
        different = len(grouped(drafts, lambda draft: draft.key)) if varying else 1
        if len(varying) + len(functions) > MOST_ARGUMENTS * (2 if different >= MANY else 1):
            apart = grouped(drafts, lambda draft: self._key(self._plain(draft), ()))
            if len(apart) == 1:
                apart = grouped(drafts, lambda draft: draft.key)
            for alike in apart:
                self._settle(alike, chosen)
            return
        bases = {draft.base for draft in drafts}
        kinds = Counter(last_word(draft.base) for draft in drafts)
        first = drafts[0]
        made = chosen or self._named(first.base if len(bases) == 1 else kinds.most_common(1)[0][0], first)
        self.names.add(made)
        taken = {*first.fields.taken, *self.reserved, "self", "_", self.dialect.signature[0]}
        arguments: dict[str, list[int]] = {}
        for places in varying.values():
            default = "size" if isinstance(columns[places[0]][0].value, int) else "factor"
            argument = unique(next((role for at in places if (role := _role(columns[at][0]))), default), taken)
            taken.add(argument)
            arguments[argument] = places
        handed = {unique("activation", taken): places for places in [*functions.values()][:1]}
        handed |= {unique(f"activation_{at}", taken): p for at, p in enumerate([*functions.values()][1:], 2)}
        for draft in drafts:
            numbers = draft.numbers
            values = {argument: self._argument(numbers[places[0]], argument) for argument, places in arguments.items()}
            is_option = {argument: isinstance(numbers[places[0]].value, bool) for argument, places in arguments.items()}
            options = {argument: value for argument, value in values.items() if is_option[argument]}
            chosen_functions = [self._attribute(activations[draft][places[0]][1]) for places in handed.values()]
            positional = [values[key] for key in values if key not in options]
            draft.constructor = made, (*positional, *chosen_functions), options
        called = {argument: [activations[first][at][0] for at in places] for argument, places in handed.items()}
        first = with_functions(with_arguments(first, arguments, self._attribute), called, self._attribute)
        self.definitions.append(self._class(made, first, arguments, columns, [*handed]))

    @abstractmethod
    def _class(
        self, made: str, draft: Draft, arguments: Mapping[str, list[int]], columns: Sequence[Sequence[TreeNumber]],
        functions: Sequence[str] = (),
    ) -> Definition:  # fmt: skip
        """Return a class.

        Args:
          made: its name.
          draft: one of the modules that are its instances.
          arguments: the arguments of its constructor, each with the places of its number.
          columns: the numbers at each place, of all modules.
          functions: the arguments that are functions.
        """


def _flat(entries: Sequence[Entry], path: str) -> Iterator[tuple[Module | Layer, str]]:
    """Yield the modules and layers of a list, and of the lists in it, each with its path."""
    for number, entry in enumerate(entries):
        inner = f"{path}.{number}"
        if isinstance(entry, list):
            yield from _flat(entry, inner)
        else:
            yield entry, inner


def _tied_layers(module: Module) -> list[Layer]:
    return [weight.layer for weight in module.weights.values() if not isinstance(weight, Weight)]


def _role(node: TreeNode) -> str:
    return getattr(node, "role", "")
