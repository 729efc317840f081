"""The origin of values: the leaves of the model, propagated through the operands of `jit`, `scan`, `cond` and others.

A label tells that a value is one of the root's leaves, or a part of one. Labels are per call of a body, so that one
traced body, called with the weights of two layers, belongs to both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxport import jaxprs
from jaxport.jaxprs.walk import bodies, interpret

_SLICE, _DERIVED = "slice", "derived"

# Primitives whose result still shows its origin, though it is no longer the leaf itself: they move, slice or cast
# their first operand.
_MOVES = frozenset({
    "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "device_put", "dynamic_slice", "expand_dims",
    "gather", "optimization_barrier", "reduce_precision", "reshape", "rev", "sharding_constraint", "slice", "split",
    "squeeze", "stop_gradient", "transpose",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Label:
    """A value made from the leaf number `root` by `steps`: none (the leaf itself), or slices and permutations of axes.

    The step "derived" is anything else: then the label only tells the origin.
    """

    root: int
    steps: tuple = ()

    @property
    def is_leaf(self) -> bool:
        """Whether the value is the leaf itself."""
        return not self.steps

    @property
    def is_parameter(self) -> bool:
        """Whether the value is the leaf or, inside a scan, its slice."""
        return all(step == _SLICE for step in self.steps)

    def then(self, step: object) -> Label:
        """Return the label after one more step."""
        if step == _DERIVED or _DERIVED in self.steps:
            return Label(self.root, (_DERIVED,))
        if isinstance(step, tuple) and self.steps and isinstance(self.steps[-1], tuple):
            combined = tuple(self.steps[-1][axis] for axis in step)
            rest = self.steps[:-1]
            return Label(self.root, rest if combined == tuple(range(len(combined))) else (*rest, combined))
        return Label(self.root, (*self.steps, step))

    def stacked(self) -> Label | None:
        """Return the label of all slices stacked again, None if that is not the leaf."""
        return Label(self.root, self.steps[:-1]) if self.steps and self.steps[-1] == _SLICE else None


Labels = tuple[Label | None, ...]


class Flow:
    """Propagates labels through jaxprs. Results are cached per body and labels, so that shared bodies cost once."""

    def __init__(self) -> None:
        self._results: dict[tuple[jaxprs.Jaxpr, Labels], Labels] = {}

    def through(self, jaxpr: jaxprs.Jaxpr, labels: Labels) -> Labels:
        """Return the labels of the results of a jaxpr, given those of its inputs."""
        if not any(labels):
            return (None,) * len(jaxpr.outvars)
        key = jaxpr, labels
        if key not in self._results:
            inputs = (None,) * len(jaxpr.constvars) + labels
            run = lambda equation, operands: self.of_equation(equation, tuple(operands))
            self._results[key] = tuple(interpret(jaxpr, inputs, run, lambda _: None))
        return self._results[key]

    def of_equation(self, equation: jaxprs.JaxprEqn, labels: Labels) -> Labels:
        """Return the labels of the results of one equation."""
        none = (None,) * len(equation.outvars)
        if not any(labels):
            return none
        params = jaxprs.parameters(equation)
        match equation.primitive.name:
            case "block_enter" | "block_exit":
                return labels[: len(equation.outvars)]
            case "transpose":
                return (labels[0].then(tuple(params["permutation"])),) if labels[0] else none
            case name if name in _MOVES:
                return (labels[0].then(_DERIVED),) * len(equation.outvars) if labels[0] else none
            case "scan":
                (within,) = self.within(equation, labels)
                after = self.through(params["jaxpr"].jaxpr, within)
                carries = params["num_carry"]
                stacked = (label and label.stacked() for label in after[carries:])
                return (*after[:carries], *stacked)
            case "while":
                return self._while_bodies(params, labels)["body_jaxpr"][params["body_nconsts"] :]
            case "cond":
                entering = self.within(equation, labels)
                results = [self.through(*branch) for branch in zip(bodies(params), entering, strict=True)]
                return tuple(same[0] if len(set(same)) == 1 else None for same in zip(*results, strict=True))
            case _:
                inner = bodies(params)
                if len(inner) == 1 and len(inner[0].outvars) == len(equation.outvars):
                    return self.through(inner[0], self.within(equation, labels)[0])
                return none

    def within(self, equation: jaxprs.JaxprEqn, labels: Labels) -> list[Labels]:
        """Return the labels of the inputs of each body of an equation, in the order of `bodies`."""
        params = jaxprs.parameters(equation)
        match equation.primitive.name:
            case "scan":
                consts, carries = params["num_consts"], params["num_carry"]
                sliced = tuple(label and label.then(_SLICE) for label in labels[consts + carries :])
                body = params["jaxpr"].jaxpr
                carried = self._settled(body, labels[:consts], labels[consts : consts + carries], sliced)
                return [(*labels[:consts], *carried, *sliced)]
            case "while":
                by_name = self._while_bodies(params, labels)
                return [by_name[name] for name in params if name in by_name]
            case "cond":
                return [labels[1:]] * len(params["branches"])
            case _:
                inner = bodies(params)
                direct = len(inner) == 1 and len(inner[0].invars) == len(labels)
                return [labels if direct else (None,) * len(body.invars) for body in inner]

    def _while_bodies(self, params: Mapping, labels: Labels) -> dict[str, Labels]:
        of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
        body_consts = labels[of_cond : of_cond + of_body]
        carried = self._settled(params["body_jaxpr"].jaxpr, body_consts, labels[of_cond + of_body :], ())
        return {"cond_jaxpr": labels[:of_cond] + carried, "body_jaxpr": body_consts + carried}

    def _settled(self, body: jaxprs.Jaxpr, before: Labels, carried: Labels, after: Labels) -> Labels:
        """Return the labels of the carried values that hold in every iteration: their fixed point."""
        while any(carried):
            results = self.through(body, (*before, *carried, *after))[: len(carried)]
            still = tuple(old if old == new else None for old, new in zip(carried, results, strict=True))
            if still == carried:
                break
            carried = still
        return carried


def labels_of(atoms: Sequence[jaxprs.Var | jaxprs.Literal], env: Mapping[jaxprs.Var, Label | None]) -> Labels:
    """Return the labels of some operands."""
    return tuple([None if type(atom) is jaxprs.Literal else env.get(atom) for atom in atoms])
