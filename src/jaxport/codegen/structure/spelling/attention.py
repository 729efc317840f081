"""The layout of rotary embeddings before an attention, and the names of masks.

rotary(x.transpose(0, 2, 1, 3), cos, sin)   →   rotary(x, cos, sin).transpose(0, 2, 1, 3)
nn.softmax(scores + y)                      →   nn.softmax(scores + mask)
"""

from __future__ import annotations

from jaxport.codegen.rewriting.producers import Producers, added_axes
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import ROTATIONS, in_place
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Step, Variable


@AS_WRITTEN.on(*sorted(ROTATIONS))
def rotary(step: Step, rewriting: StepRewriting) -> Step | None:
    """`rotary(x.transpose(0, 2, 1, 3), cos, sin)` is `rotary(x, cos, sin).transpose(0, 2, 1, 3)`."""
    x, *angles = step.args
    turned = rewriting.producers.step(x, "jnp.transpose")
    if turned is None or turned.args[1:] != ((0, 2, 1, 3),) or not isinstance(turned.args[0], Variable):
        return None
    for_all_heads = []
    for angle, role in zip(angles, ("cos", "sin"), strict=True):
        if len(angle.shape) == 4 and angle.shape[1:3] == (1, 1):  # of one position: the axes are the same
            for_all_heads.append(angle)
            continue
        added = rewriting.producers.step(angle, "jnp.expand_dims")
        axes = added_axes(added) if added is not None and len(added.outputs.shape) == 4 else None
        if added is None or axes is None or 1 not in axes:
            return None
        for_all_heads.append(_expanded(added, axes, role, rewriting))
    rotated = rewriting.call(step, step.name, (turned.args[0], *for_all_heads), turned.args[0].shape)
    return in_place(step, "jnp.transpose", rotated, (0, 2, 1, 3))


def _expanded(added: Step, axes: list[int], role: str, rewriting: StepRewriting) -> Variable:
    """Return cosines or sines with their axis of heads behind that of positions, once for all that rotate by them."""
    key = "for all heads", added.args[0], *axes
    if key not in rewriting.notes:
        batch, one, length, size = added.outputs.shape
        places = tuple(2 if axis == 1 else axis for axis in axes)
        args = added.args[0], places[0] if len(places) == 1 else places
        made = rewriting.call(added, "jnp.expand_dims", args, (batch, length, one, size))
        made.hint = role
        rewriting.notes[key] = made
    return rewriting.notes[key]


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


def _is_product(value: RuntimeValue, producers: Producers) -> bool:
    """Whether a value is a product of two activations, perhaps scaled."""
    product = producers.step(producers.scaled(value)[0], "@")
    return product is not None and all(isinstance(operand, Variable) for operand in product.args)
