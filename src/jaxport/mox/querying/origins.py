"""Where the operands of an equation come from: followed out of the bodies that it is in, to the inputs of the
program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.jaxprs import Array, Atom, aval_of
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS, source_of
from jaxport.jaxprs.rewrite import alone
from jaxport.jaxprs.walk import bodies, interpret, needed_equations, producers, reached
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.tree import Node


@dataclass(frozen=True)
class InputOrigin:
    """The input of the program that a value is (None if it is computed), and the scans that hand out slices of it.

    If it is one layer of a stack that was unrolled, `steps` are the indices of the layer in the leading axes.
    """

    root: int | None
    sliced: tuple[Node, ...] = ()
    steps: tuple[int, ...] = ()


def origin_of(mox: TracedProgram, node: Node, atom: Atom) -> InputOrigin:
    """Where a value comes from that can be read at `node`."""
    sliced: list[Node] = []
    steps: tuple[int, ...] = ()
    here = node
    while True:
        jaxpr = _body_around(mox, here)
        if atom not in jaxpr.invars:
            atom, indices = _stack_of(jaxpr, atom)
            steps = (*indices, *steps)
        if not isinstance(atom, jaxprs.Var) or atom not in jaxpr.invars:
            return InputOrigin(None)
        position = jaxpr.invars.index(atom)
        if here.parent is None:
            return InputOrigin(position, tuple(sliced), steps)
        source = source_of(here.parent.equation, here.location[-2], position)
        if source is None or (source.sliced and steps):
            return InputOrigin(None)
        if source.sliced:
            sliced.append(here.parent)
        here = here.parent
        atom = here.equation.invars[source.operand]


def _stack_of(jaxpr: jaxprs.Jaxpr, atom: Atom) -> tuple[Atom, tuple[int, ...]]:
    """Return the array that a value is an element of, by static indices of its leading axes, and these indices."""
    made = producers(jaxpr)
    indices: tuple[int, ...] = ()
    while isinstance(atom, jaxprs.Var) and atom in made and is_first_axis_squeezed(made[atom]):
        operand = made[atom].invars[0]
        piece = made.get(operand) if isinstance(operand, jaxprs.Var) else None
        index = None if piece is None else index_of(piece)
        if piece is None or index is None:
            break
        atom, indices = piece.invars[0], (index, *indices)
    return atom, indices


def index_of(equation: jaxprs.JaxprEqn) -> int | None:
    """Return the static index of the first axis that an equation slices its operand at.

    None if it does something else.
    """
    if equation.primitive.name != "slice":
        return None
    params, operand = equation.params, equation.invars[0]
    (first, *starts), (end, *limits) = params["start_indices"], params["limit_indices"]
    sizes = aval_of(operand)
    is_whole = not any(starts) and tuple(limits) == sizes.shape[1:] and set(params["strides"] or (1,)) == {1}
    return first if end == first + 1 and is_whole else None


def is_first_axis_squeezed(equation: jaxprs.JaxprEqn) -> bool:
    """Whether an equation takes the first axis, of size one, off its operand."""
    return equation.primitive.name == "squeeze" and tuple(equation.params["dimensions"]) == (0,)


@dataclass(frozen=True)
class ParameterPlace:
    """Where a parameter of a block is held: the path of an array of the program, and its indices if that is a stack."""

    root: str
    steps: tuple[int, ...] = ()

    def value(self, held: Mapping[str, Array]) -> Array:
        """Return the value among those of the arrays by path."""
        return held[self.root][self.steps] if self.steps else held[self.root]

    def with_value(self, held: Mapping[str, Any], value: Array) -> Array:
        """Return the whole array with another value at this place."""
        return held[self.root].at[self.steps].set(value) if self.steps else value


def places_of(mox: TracedProgram, nodes: Sequence[Node]) -> dict[str, ParameterPlace]:
    """Return where the parameters of some blocks are held, by the paths that the blocks have for them.

    Parameters that are computed instead of held are left out.
    """
    names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
    places = {name: ParameterPlace(name) for name in names}
    for node in nodes:
        for index, path in () if node.block is None else node.block.named.items():
            if path in places:
                continue
            origin = origin_of(mox, node, node.equation.invars[index])
            if origin.root is not None:
                places[path] = ParameterPlace(names[origin.root], origin.steps)
    return places


def stacking_scans(mox: TracedProgram, node: Node) -> tuple[Node, ...]:
    """Return the scans around a node whose steps have parameters of their own, the outermost first.

    Those that slice the weights of the node's block; if it has none, those that slice any weights. A scan over
    time hands the same weights to each step, so new parameters inside are shared by the steps, too.
    """
    scans = [around for around in node.around if around.equation.primitive.name == "scan"][::-1]
    if not scans:
        return ()
    block = node.block
    if block is not None and block.weights:
        origins = [origin_of(mox, node, node.equation.invars[index]) for index in block.weights]
        slicing = {scan for origin in origins for scan in origin.sliced}
        return tuple(scan for scan in scans if scan in slicing)
    return tuple(scan for scan in scans if _slices_weights(mox, scan))


def _slices_weights(mox: TracedProgram, scan: Node) -> bool:
    params = jaxprs.parameters(scan.equation)
    first = params["num_consts"] + params["num_carry"]
    names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
    claimed = {path for node in mox.tree.nodes if node.block is not None for path in node.block.weights.values()}
    for atom in scan.equation.invars[first:]:
        root = origin_of(mox, scan, atom).root
        if root is not None and (root < len(mox.weights) or names[root] in claimed):
            return True
    return False


def value_of(mox: TracedProgram, node: Node, atom: Atom, steps: Mapping[Node, int]) -> Array | None:
    """Compute a value that can be read at `node` from the arrays that the program holds; None if it depends on
    arguments.

    `steps` are those of the scans around.
    """
    if isinstance(atom, jaxprs.Literal):
        return atom.val
    body = _body_around(mox, node)
    equations, needed = needed_equations(body, [atom])
    if any(equation.effects for equation in equations):
        return None
    inputs = [variable for variable in body.invars if variable in needed]
    values: list[Any] = [_entering(mox, node, body.invars.index(variable), steps) for variable in inputs]
    if any(value is None for value in values):
        return None
    part = body.replace(invars=inputs, eqns=equations, outvars=[atom], debug_info=jaxprs.nameless(body))
    return interpret(part, values, evaluated)[0]


def _body_around(mox: TracedProgram, node: Node) -> jaxprs.Jaxpr:
    """Return the body that a node is an equation of."""
    return mox.jaxpr.jaxpr if node.parent is None else bodies(node.parent.equation.params)[node.location[-2]]


def _entering(mox: TracedProgram, node: Node, position: int, steps: Mapping[Node, int]) -> Array | None:
    """Return the value of an input of the body around a node.

    None if it depends on the arguments, or on a loop's steps.
    """
    around = node.parent
    if around is None:
        return mox.weights[position].value if position < len(mox.weights) else None
    source = source_of(around.equation, node.location[-2], position)
    if source is None or source.carried:
        return None
    outside = value_of(mox, around, around.equation.invars[source.operand], steps)
    if not source.sliced or outside is None:
        return outside
    return outside[steps[around]] if around in steps else None


def evaluated(equation: jaxprs.JaxprEqn, operands: Sequence[Array], mark: bool = False) -> list[Array]:
    """Return the results of an equation for some operands; with markers for a trace if asked for."""
    return jaxprs.jaxpr_as_fun(ungroup(alone(equation), mark))(*operands)


def is_result(mox: TracedProgram, node: Node, count: int) -> bool:
    """Whether nothing in the program computes with the first `count` results of a node: it returns or transposes
    them.
    """
    results = set(node.equation.outvars[:count])
    while True:
        around, jaxpr = node.parent, _body_around(mox, node)
        # `vmap` moves the axis of the batch.
        results, reads = reached(jaxpr, results, lambda equation: equation.primitive.name == "transpose")
        if reads:
            return False
        places = [index for index, atom in enumerate(jaxpr.outvars) if isinstance(atom, jaxprs.Var) and atom in results]
        if around is None:
            return all(index < len(mox.traced.output_paths) for index in places)
        if around.equation.primitive.name not in PLAIN_CALLS | DISSOLVED:
            return False
        results, node = {around.equation.outvars[index] for index in places}, around
