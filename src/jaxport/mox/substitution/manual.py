"""Replacements in the body of a `shard_map`: traced under its mesh, so that types say along which axes values
differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import PartitionSpec

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Atom, Aval, PythonFunction
from jaxport.mox.programs.tree import Node


class Manual:
    """The `shard_map` that a replacement is traced in the body of."""

    def __init__(self, equation: jaxprs.JaxprEqn, where: str):
        self.params, self.where = equation.params, where

    def specs(self, avals: Sequence[Aval]) -> tuple[list[jax.ShapeDtypeStruct], list[PartitionSpec]]:
        """Return whole arrays of which each device gets one of these types, and how they are split."""
        whole, specs = [], []
        for aval in avals:
            axes = tuple(sorted(jaxprs.varying_axes(aval)))
            if axes and not aval.shape:
                raise InvalidArgument(
                    f"`{self.where}` takes a single number that differs along {', '.join(map(repr, axes))}",
                    where="a replacement inside a `shard_map`",
                    why="an array cannot be split into single numbers",
                    instead="replace the block around it",
                )
            count = math.prod(self.params["mesh"].shape[axis] for axis in axes)
            shape = (count * aval.shape[0], *aval.shape[1:]) if axes else aval.shape
            whole.append(jax.ShapeDtypeStruct(shape, aval.dtype))
            specs.append(PartitionSpec(axes) if axes else PartitionSpec())
        return whole, specs

    def mapped(self, run: PythonFunction, in_specs: object, results: Sequence[Aval]) -> PythonFunction:
        """Return the function over the whole arrays; `results` are the types of what it returns on each device."""

        def checked(*args: object) -> list[Array]:
            made = run(*args)
            return [self._varying(value, aval) for value, aval in zip(made, results, strict=True)]

        axes: frozenset[str] = self.params.get("newly_manual_axes") or self.params["manual_axes"]
        return jax.shard_map(
            checked,
            mesh=self.params["mesh"],
            in_specs=in_specs,
            out_specs=self.specs(results)[1],
            axis_names=set(axes),
            check_vma=self.params["check_vma"],
        )

    def _varying(self, value: Array, aval: Aval) -> Array:
        """Return a result that differs along the axes that the original's does."""
        varying, wanted = (jaxprs.varying_axes(one) for one in (jax.typeof(value), aval))
        if not varying <= wanted:
            raise InvalidArgument(
                f"the replacement of `{self.where}` returns values that differ along {sorted(varying - wanted)}",
                where="a `shard_map`",
                why="the results of the original do not, and later operations depend on them",
                instead="reduce it: `jax.lax.psum`",
            )
        return jaxprs.varying(value, tuple(sorted(wanted - varying)))

    def body(self, jaxpr: jaxprs.Jaxpr) -> jaxprs.Jaxpr:
        """Return the body that each device runs of a traced function of whole arrays, with the function's inputs."""
        (equation,) = jaxpr.eqns
        inner = equation.params["jaxpr"]
        known = dict(zip(equation.invars, inner.invars, strict=True))
        outvars: dict[Atom, Atom] = dict(zip(equation.outvars, inner.outvars, strict=True))
        return inner.replace(
            invars=[known.get(variable) or jaxprs.Var(variable.aval) for variable in jaxpr.invars],
            outvars=[outvars[variable] for variable in jaxpr.outvars],
            debug_info=jaxprs.nameless(inner),
        )


def manual_around(node: Node, where: str) -> Manual | None:
    """Return the `shard_map` around a node, or None if there is none."""
    shard_map = next((around for around in node.around if around.equation.primitive.name == "shard_map"), None)
    return None if shard_map is None else Manual(shard_map.equation, where)
