"""The layout of rotary embeddings before an attention, and the names of masks.

rotary(x.transpose(0, 2, 1, 3), cos, sin)   →   rotary(x, cos, sin).transpose(0, 2, 1, 3)
nn.softmax(scores + y)                      →   nn.softmax(scores + mask)
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxport.codegen.rewriting.producers import Producers, added_axes
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import ROTATIONS, in_place
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.importer.values.recording import Step, Variable

HEADS_BEHIND = (0, 2, 1, 3)
"""The order in which heads and positions change places."""

ROLES = ("cos", "sin")
"""What a rotation multiplies elements with."""


@AS_WRITTEN.on(*sorted(ROTATIONS))
def rotary(step: Step, rewriting: StepRewriting) -> Step | None:
    """`rotary(x.transpose(0, 2, 1, 3), cos, sin)` is `rotary(x, cos, sin).transpose(0, 2, 1, 3)`."""
    x, *angles = step.args
    turned = rewriting.producers.step(x, "jnp.transpose")
    if turned is None or turned.args[1:] != (HEADS_BEHIND,) or not isinstance(turned.args[0], Variable):
        own = [_angle(angle, role, rewriting) or angle for angle, role in zip(angles, ROLES, strict=True)]
        return None if own == angles else in_place(step, step.name, x, *own)
    moved = _moved(angles, rewriting)
    if moved is None:
        return None
    rotated = rewriting.call(step, step.name, (turned.args[0], *moved), turned.args[0].shape)
    return in_place(step, "jnp.transpose", rotated, HEADS_BEHIND)


@AS_WRITTEN.on("jnp.concatenate")
def partly_rotated(step: Step, rewriting: StepRewriting) -> Step | None:
    """`concatenate([rotary(t[..., :n], cos, sin), t[..., n:]], axis=-1)` of `t = x.transpose(0, 2, 1, 3)` is that of `x`, moved."""
    producers, (parts, *others) = rewriting.producers, step.args
    if len(parts) != 2 or others or step.kwargs.get("axis", 0) % len(step.outputs.shape) != 3:
        return None
    rotation, rest = producers.step(parts[0], *ROTATIONS), producers.step(parts[1], "")
    first = producers.step(rotation.args[0], "") if rotation is not None else None
    if rotation is None or first is None or rest is None or first.args[0] is not rest.args[0]:
        return None
    turned = producers.step(first.args[0], "jnp.transpose")
    if turned is None or turned.args[1:] != (HEADS_BEHIND,):
        return None
    if any(
        part.outputs.shape[:-1] != turned.outputs.shape[:-1] for part in (first, rest)
    ):  # others than features are cut
        return None
    x, moved = turned.args[0], _moved(rotation.args[1:], rewriting)
    if moved is None:
        return None
    taken = [
        rewriting.call(step, "", (x, part.args[1]), (*x.shape[:-1], part.outputs.shape[-1]), "index")
        for part in (first, rest)
    ]
    rotated = rewriting.call(step, rotation.name, (taken[0], *moved), taken[0].shape)
    joined = rewriting.call(step, "jnp.concatenate", ([rotated, taken[1]],), x.shape, axis=-1)
    return in_place(step, "jnp.transpose", joined, HEADS_BEHIND)


def _moved(angles: Sequence[Variable], rewriting: StepRewriting) -> list[Variable] | None:
    """Return cosines and sines with their axis of heads behind that of positions; None if they have others."""
    moved = [_angle(angle, role, rewriting, is_moved=True) for angle, role in zip(angles, ROLES, strict=True)]
    return [angle for angle in moved if angle is not None] if None not in moved else None


def _angle(angle: Variable, role: str, rewriting: StepRewriting, *, is_moved: bool = False) -> Variable | None:
    """Return cosines or sines that are not broadcast to each sequence, once for all that rotate by them; perhaps `_moved`."""
    if is_moved and len(angle.shape) == 4 and angle.shape[1:3] == (1, 1):  # of one position: the axes are the same
        return angle
    added = rewriting.producers.step(angle, "jnp.expand_dims")
    axes = added_axes(added) if added is not None and len(added.outputs.shape) == 4 else None
    if added is None or axes is None or not {*axes} <= {1, 2} or (is_moved and axes != [1]):
        return None
    places, source = ([2] if is_moved else axes), added.args[0]
    spread = rewriting.producers.step(source, "jnp.broadcast_to")
    if spread is not None and isinstance(spread.args[0], Variable) and spread.args[0].shape[1:] == source.shape[1:]:
        source = spread.args[0]
    if not is_moved and source is added.args[0]:
        angle.hint = role
        return angle
    key = "for all heads", source, *places
    if key not in rewriting.notes:
        sizes = iter(source.shape)
        shape = [1 if axis in places else next(sizes) for axis in range(4)]
        made = rewriting.call(
            added, "jnp.expand_dims", (source, places[0] if len(places) == 1 else tuple(places)), shape
        )
        made.hint = role
        rewriting.notes[key] = made
    return rewriting.notes[key]


@AS_WRITTEN.on_several("jnp.split")
def parts_of_heads(step: Step, rewriting: StepRewriting) -> None:
    """The parts of `x.transpose(0, 2, 1, 3)` are the parts of `x`, each of them transposed: so rotations are in front of that."""
    (x, *cuts), outputs = step.args, step.outputs
    turned = rewriting.producers.step(x, "jnp.transpose")
    if turned is None or turned.args[1:] != (HEADS_BEHIND,) or not isinstance(turned.args[0], Variable):
        return
    axis = HEADS_BEHIND[step.kwargs.get("axis", 0) % 4]
    parts = tuple(Variable(tuple(part.shape[at] for at in HEADS_BEHIND), part.dtype, part.hint) for part in outputs)
    rewriting.add(Step("call", step.name, (turned.args[0], *cuts), {"axis": axis}, parts, step.node))
    for part, whole in zip(parts, outputs, strict=True):
        moved = Step("call", "jnp.transpose", (part, HEADS_BEHIND), {}, Variable(whole.shape, whole.dtype), step.node)
        rewriting.same[whole] = rewriting.add(moved)


@AS_WRITTEN.on("nn.softmax")
def mask_of_sum(step: Step, rewriting: StepRewriting) -> None:
    """Name the addend of the scores of an attention `mask`."""
    total = rewriting.producers.step(step.args[0], "+")
    if total is not None and len(step.outputs.shape) > 2:
        for mask, scores in (total.args, total.args[::-1]):
            if isinstance(mask, Variable) and _is_product(scores, rewriting.producers):
                mask.hint = "mask"
                return


@AS_WRITTEN.on("nn.dot_product_attention", "helper.attention")
def mask(step: Step) -> None:
    """Name what hides the scores of an attention `mask`, and what is added to them, too, unless there are both."""
    bias, hidden = step.kwargs.get("bias"), step.kwargs.get("mask")
    for value, role in ((bias, "mask" if hidden is None else "bias"), (hidden, "mask")):
        if isinstance(value, Variable):
            value.hint = role


def _is_product(value: object, producers: Producers) -> bool:
    """Whether a value is a product of two activations, perhaps scaled."""
    product = producers.step(producers.scaled(value)[0], "@")
    return product is not None and all(isinstance(operand, Variable) for operand in product.args)
