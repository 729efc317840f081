"""Where nothing can be replaced, and why: the whole list."""

from __future__ import annotations

from jaxport.blocks.block import Block
from jaxport.errors import Refusal
from jaxport.jaxprs import concerns_reference
from jaxport.jaxprs.body_inputs import DISSOLVED, body_names, takes_inputs, takes_outputs
from jaxport.jaxprs.vmap_axes import records_of, transforms_of
from jaxport.mox.programs.tree import Node, Tree


def refusal(tree: Tree, node: Node) -> Refusal | None:
    """Why the equation at a node cannot be replaced, None if it can."""
    why = _of_equation(node)
    for around in node.around:
        why = why or _of_surroundings(around)
    if why is None and node.block is None and not _is_of_one_example(tree, node):
        why = (
            "is computed differently for the batch of a `vmap` than for one example; replace the function or the "
            "module "
            "around it, or trace it without the `vmap`"
        )
    if why is None and sum(around.equation.primitive.name == "shard_map" for around in node.around) > 1:
        why = "is inside several `shard_map`s; trace it inside the outer ones"
    return None if why is None else Refusal(node.type, f"`{node.path or node.type}`", why)


def _of_equation(node: Node) -> str | None:
    equation = node.equation
    if any(map(concerns_reference, equation.effects)):
        return "reads or writes a mutable reference; trace it with the array itself"
    if node.block is not None and node.block.batched and not _shows_its_axes(node.block):
        return "is under a `vmap` over none of its arguments; trace it without the `vmap`"
    return _differentiated(node)


def _shows_its_axes(block: Block) -> bool:
    """Whether at each level of `vmap` an argument is batched, so that a replacement can be run for each example."""
    return block.axes is not None and all(any(axis is not None for axis in in_axes) for in_axes, _ in block.axes)


def _is_of_one_example(tree: Tree, node: Node) -> bool:
    """Whether it is known what an equation computes for one example: also the bodies around it were recorded."""
    calls = (around for around in node.around if around.block is None)
    return tree.axes_of(node) is not None and all(records_of(around.equation) is not None for around in calls)


def _of_surroundings(node: Node) -> str | None:
    name = node.equation.primitive.name
    if not takes_inputs(node.equation) and name not in DISSOLVED:
        return f"is inside `{name}`, whose body cannot take more operands"
    return _differentiated(node)


def _differentiated(node: Node) -> str | None:
    """Refuse the backward pass of a program that was differentiated before it was traced: it lies in no block."""
    if {"jvp", "transpose"} & {*transforms_of(node.equation)}:
        return (
            "was differentiated before it was traced, so its derivative would not change; differentiate the Mox instead"
        )
    return None


def tap_refusal(node: Node) -> Refusal | None:
    """Why the results of the equation at a node cannot be captured, None if they can."""
    here = node
    for around in node.around:
        name = around.equation.primitive.name
        why = None
        if name == "while" and body_names(around.equation)[here.location[-2]] == "cond":
            why = "is in the condition of a `while`, which has one result"
        elif not takes_outputs(around.equation) and name not in DISSOLVED:
            why = f"is inside `{name}`, whose body cannot return more results"
        if why is not None:
            return Refusal(node.type, f"`{node.path or node.type}`", why)
        here = around
    return None
