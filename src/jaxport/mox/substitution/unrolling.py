"""Scans written out: the steps of a stack of layers become elements of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import lax

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.blocks.callables.places import joined
from jaxport.errors import InvalidArgument, QueryError, Refusal, Unsupported
from jaxport.jaxprs import Atom, PythonFunction, aval_of, dims
from jaxport.jaxprs.rewrite import EquationRewriting, inlined, replaced, traced, with_operands
from jaxport.jaxprs.walk import Location, bodies, replace_bodies
from jaxport.mox.programs.program import Program, TracedProgram
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.calls import Call
from jaxport.mox.querying.node_sets import NodeSet
from jaxport.mox.querying.origins import origin_of, stacking_scans
from jaxport.mox.substitution.cleanup import pruned, with_block, with_names

Var = jaxprs.Var


def unrolled(selection: NodeSet[Program, Call]) -> Program:
    """See `Mox.unroll`."""
    mox = selection.mox
    if not selection.nodes:
        raise QueryError(
            f"{selection.query} matches nothing, so nothing would be unrolled",
            where=f"`{mox.name}`",
            instead="`print(mox)` shows what there is",
        )
    scans = {scan.location: scan for node in selection.nodes for scan in _scans_of(mox, node)}
    refusals = [reason for scan in scans.values() if (reason := _refusal(scan)) is not None]
    if refusals:
        raise Unsupported(f"{len(refusals)} scans of `{mox.name}` cannot be unrolled", refusals)
    taken = {*mox.tree.paths, *(weight.path for weight in mox.weights)}
    stacks = {location: _stack(mox, scan, taken) for location, scan in scans.items()}
    jaxpr = _Unrolling(stacks).body(mox.jaxpr.jaxpr, ())
    return pruned(mox.replaced(replace(mox.traced, jaxpr=jaxprs.closed(jaxpr, mox.jaxpr.consts))))


def _scans_of(mox: TracedProgram, node: Node) -> Sequence[Node]:
    """Return a selected scan; or the scans that hand their layers to a block."""
    if node.equation.primitive.name == "scan":
        return (node,)
    scans = stacking_scans(mox, node)
    if not scans:
        raise InvalidArgument(
            f"`{node.path or node.type}` is not a layer of a scanned stack",
            where="`Mox.unroll`",
            why="no enclosing scan gives it parameters of its own in each step",
            instead="select the scan itself: `mox.unroll('//scan')`",
        )
    return scans


def _refusal(scan: Node) -> Refusal | None:
    """Why a scan cannot be unrolled, None if it can."""
    params, where = jaxprs.parameters(scan.equation), f"`{scan.path}`"
    if not dims.is_static(params["length"]):
        return Refusal("scan", where, f"has a symbolic number of steps, {params['length']}; trace it with a number")
    if any(map(jaxprs.concerns_reference, scan.equation.effects)):
        return Refusal("scan", where, "reads or writes a mutable reference; trace it with the array itself")
    return None


@dataclass(frozen=True)
class _Stack:
    """The layers of a scan: the parameters that steps share, and the path that the steps are to be numbered below."""

    shared: frozenset[str]
    base: str
    prefix: str

    def renamed(self, path: str, step: int) -> str:
        """Return the path in a step of what lies below the layers.

        Before it a parameter may have that of its collection.
        """
        before, separator, below = f".{path}.".partition(f".{self.base}." if self.base else ".")
        if not separator:
            return path
        return joined(before.strip("."), self.base, f"{self.prefix}{step}", below.strip("."))

    def parameter(self, path: str, step: int) -> str:
        """Return the path of a parameter in a step: of a slice of a stack, or of what an edit computes in its place."""
        return path if path in self.shared else self.renamed(path, step)


def _stack(mox: TracedProgram, scan: Node, taken: set[str]) -> _Stack | None:
    """Return the names of the layers of a scan; None if no block in it has a slice of a parameter."""
    params = jaxprs.parameters(scan.equation)
    first = params["num_consts"] + params["num_carry"]
    names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
    roots = [origin_of(mox, scan, atom).root for atom in scan.equation.invars[first:]]
    stacked = frozenset(names[root] for root in roots if root is not None)
    layers = [
        node.block.path
        for node in mox.tree.nodes
        if node.block is not None and scan in node.around and not stacked.isdisjoint(node.block.named.values())
    ]
    if not layers:
        return None
    base = layers[0].split(".")
    for path in layers[1:]:
        keys = path.split(".")
        same = [index for index, (one, other) in enumerate(zip(base, keys, strict=False)) if one != other]
        base = base[: same[0] if same else min(len(base), len(keys))]
    stack = _Stack(frozenset(names) - stacked, ".".join(base), "")
    if any(stack.renamed(path, step) in taken for path in layers for step in range(params["length"])):
        stack = replace(stack, prefix="step_")
    return stack


class _Unrolling:
    """One pass, which rewrites the bodies that lead to the scans."""

    def __init__(self, stacks: dict[Location, _Stack | None]):
        self.stacks = stacks
        self.ways = {location[:end] for location in stacks for end in range(1, len(location) + 1)}

    def body(self, jaxpr: jaxprs.Jaxpr, location: Location) -> jaxprs.Jaxpr:
        equations: list[jaxprs.JaxprEqn] = []
        names: dict[Var, Atom] = {}
        for index, equation in enumerate(jaxpr.eqns):
            here = (*location, index)
            equation = with_operands(equation, replaced(equation.invars, names))
            if here in self.ways:
                inner = bodies(equation.params)
                new = [self.body(body, (*here, number)) for number, body in enumerate(inner)]
                equation = equation.replace(params=replace_bodies(equation.params, iter(new)))
            if here in self.stacks:
                written, results = _written_out(equation, self.stacks[here])
                equations += written
                names.update(zip(equation.outvars, results, strict=True))
            else:
                equations.append(equation)
        return jaxpr.replace(eqns=equations, outvars=replaced(jaxpr.outvars, names))


def _written_out(scan: jaxprs.JaxprEqn, stack: _Stack | None) -> tuple[list[jaxprs.JaxprEqn], list[Atom]]:
    """Return the equations of all steps, and the values of the results of the scan."""
    params = jaxprs.parameters(scan)
    length, consts, carried = params["length"], params["num_consts"], params["num_carry"]
    body = params["jaxpr"].jaxpr
    shared, carry, stacks = (
        scan.invars[:consts],
        scan.invars[consts : consts + carried],
        scan.invars[consts + carried :],
    )
    equations: list[jaxprs.JaxprEqn] = []
    made: dict[int, list[Atom]] = {}
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    for step in order:
        slices = []
        for atom in stacks:
            element = lambda x, step=step: lax.index_in_dim(x, step, keepdims=False)
            slices.append(_computed(element, [atom], scan, equations))
        results = inlined(_of_step(body, stack, step), [*shared, *carry, *slices], equations)
        carry, made[step] = results[:carried], results[carried:]
    stacked = []
    for position, variable in enumerate(scan.outvars[carried:]):
        if isinstance(variable, jaxprs.DropVar):
            stacked.append(variable)
            continue
        parts = [made[step][position] for step in range(length)]
        aval = aval_of(variable)
        build = lambda *values, aval=aval: jnp.stack(values) if values else jnp.zeros(aval.shape, aval.dtype)
        stacked.append(_computed(build, parts, scan, equations))
    return equations, [*carry, *stacked]


def _computed(
    function: PythonFunction, atoms: Sequence[Atom], scan: jaxprs.JaxprEqn, equations: list[jaxprs.JaxprEqn]
) -> Atom:
    """Append the equations that compute a function of some values, in the line of the scan; return its result."""
    made: list[jaxprs.JaxprEqn] = []
    (result,) = inlined(traced(function, [atom.aval for atom in atoms]).jaxpr, atoms, made)
    equations += [equation.replace(source_info=scan.source_info) for equation in made]
    return result


def _of_step(body: jaxprs.Jaxpr, stack: _Stack | None, step: int) -> jaxprs.Jaxpr:
    """Return a body with the paths that the layers have in a step."""
    if stack is None:
        return body
    moved = lambda block: _block_of_step(block, stack, step)
    return EquationRewriting(lambda equation: with_block(equation, moved)).body(body)


def _block_of_step(block: Block, stack: _Stack, step: int) -> Block:
    """Return a block in a step: slices of stacked parameters are values that take the place of the layer's own."""
    path = stack.renamed(block.path, step)
    renamed = with_names(block, lambda weight: stack.parameter(weight, step))
    sliced = {index for index, weight in block.weights.items() if weight not in stack.shared}
    return replace(
        renamed,
        path=path,
        name=block.name if path == block.path else path.rpartition(".")[2],
        weights=FrozenMapping({index: weight for index, weight in block.weights.items() if index not in sliced}),
        exchanged=FrozenMapping({**renamed.exchanged, **{index: renamed.weights[index] for index in sliced}}),
    )
