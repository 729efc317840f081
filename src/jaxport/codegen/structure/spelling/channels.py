"""Convolutions with their channels last, as the frameworks have them, and transposes moved out of their way.

    conv(x, w)   of channels first   →   conv(x.transpose(0, 2, 3, 1), w).transpose(0, 3, 1, 2)
    relu(x.transpose(0, 3, 1, 2))    →   relu(x).transpose(0, 3, 1, 2)
    x.transpose(0, 3, 1, 2).transpose(0, 2, 3, 1)   →   x

So transposes move down through what computes elementwise, until two of them meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxport.codegen.rewriting.producers import Producers, as_tuple, index_of
from jaxport.codegen.rewriting.step_rewriting import RuleTable, StepRewriting
from jaxport.codegen.rewriting.steps import in_place
from jaxport.codegen.structure.spelling.idioms import sizes_as_written
from jaxport.importer.values.recording import Step, Variable

CHANNELS_LAST = RuleTable()
"""Rules on transposes between channels first and channels last."""

LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NDHWC", "DHWIO", "NDHWC")}
"""The letters by which `lax` names the axes of inputs, kernels and results with channels last, by rank."""

ELEMENTWISE = frozenset(
    f"{module}.{function}"
    for module, functions in (
        ("nn", "relu relu6 sigmoid silu gelu elu selu celu leaky_relu softplus soft_sign hard_swish hard_sigmoid mish"),
        ("jnp", "tanh exp sqrt abs"),
        ("lax", "rsqrt erf"),
    )
    for function in functions.split()
)
"""Functions of one array that are the same for each element."""


@CHANNELS_LAST.on("lax.conv_general_dilated", "helper.depthwise_convolution")
def convolution(step: Step, rewriting: StepRewriting) -> Step | None:
    """Return a convolution of channels first as a transpose, one of channels last, and a transpose."""
    rank = len(step.outputs.shape)
    x, kernel, strides, pads = step.args if len(step.args) == 4 else (None,) * 4
    turned = rewriting.producers.step(kernel, "helper.transposed_kernel")
    if (
        rank not in LAYOUTS
        or not isinstance(kernel, Variable)
        or (turned is None and not _is_kernel(kernel, rewriting))
    ):
        return None
    options = dict(step.kwargs)
    if not isinstance(x, Variable) or options.pop("dimension_numbers", None) is not None:
        return None
    x = transposed(x, _last(rank), step, rewriting)
    images, kernels, _ = LAYOUTS[rank]
    if turned is not None:
        kernels = f"OI{images[1:-1]}"
    else:
        kernel = transposed(kernel, (*range(2, rank), 1, 0), step, rewriting)
    options["dimension_numbers"] = (images, kernels, images)
    shape = [step.outputs.shape[axis] for axis in _last(rank)]
    result = rewriting.call(step, "lax.conv_general_dilated", (x, kernel, strides, pads), shape, **options)
    return in_place(step, "jnp.transpose", result, _first(rank))


def _is_kernel(kernel: Variable, rewriting: StepRewriting) -> bool:
    """Whether a value is a parameter, or one without axes of one element: the kernel of an image that is a line."""
    squeezed = rewriting.producers.step(kernel, "jnp.squeeze")
    return (squeezed.args[0] if squeezed is not None else kernel) in rewriting.weights


def transposed(value: Variable, order: Sequence[int], like: Step, rewriting: StepRewriting) -> Variable:
    """Return a value with its axes in another order."""
    result = Variable(tuple(value.shape[axis] for axis in order), value.dtype)
    return rewriting.call(like, "jnp.transpose", (value, tuple(order)), result)


def _transposed_after(
    step: Step,
    order: tuple[int, ...],
    args: tuple[object, ...],
    rewriting: StepRewriting,
    **options: object,
) -> Step:
    """Return the transpose of what a step computes of values that are not transposed."""
    shape = [step.outputs.shape[order.index(axis)] for axis in range(len(order))]
    return in_place(step, "jnp.transpose", rewriting.call(step, step.name, args, shape, step.form, **options), order)


@CHANNELS_LAST.on("jnp.transpose")
def flattened(step: Step, rewriting: StepRewriting) -> Step | None:
    """Spatial axes that are merged or split between two transposes, without the transposes."""
    shaped = rewriting.producers.step(step.args[0], "jnp.reshape")
    moved = _moved(shaped.args[0], rewriting.producers) if shaped is not None else None
    if shaped is None or moved is None or step.args[1:] != (_last(len(step.outputs.shape)),):
        return None
    if shaped.outputs.shape[:2] != shaped.args[0].shape[:2]:
        return None
    return in_place(step, "jnp.reshape", moved.args[0], sizes_as_written(step.outputs.shape))


@CHANNELS_LAST.on(*ELEMENTWISE)
def elementwise(step: Step, rewriting: StepRewriting) -> Step | None:
    """`f(x.transpose(0, 2, 1))` is `f(x).transpose(0, 2, 1)`."""
    moved = _moved(step.args[0], rewriting.producers) if step.args else None
    if moved is None or any(isinstance(arg, Variable) for arg in step.args[1:]):
        return None
    x, order = moved.args
    return _transposed_after(step, order, (x, *step.args[1:]), rewriting, **step.kwargs)


@CHANNELS_LAST.on("+", "-", "*", "/")
def together(step: Step, rewriting: StepRewriting) -> Step | None:
    """Return an operator of two values that were transposed alike; and the sum of one and a bias per channel."""
    first, second = (_moved(arg, rewriting.producers) for arg in step.args) if len(step.args) == 2 else (None, None)
    if first is not None and second is not None and first.args[1] == second.args[1]:
        return _transposed_after(step, first.args[1], (first.args[0], second.args[0]), rewriting)
    if step.name != "+":
        return None
    for moved, other in ((first, step.args[1]), (second, step.args[0])):
        bias = _per_channel(other, moved, rewriting) if moved is not None else None
        if moved is not None and bias is not None:
            return _transposed_after(step, moved.args[1], (moved.args[0], bias), rewriting)
    return None


@CHANNELS_LAST.on("")
def part(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x.transpose(0, 2, 1)[:, :, 1:]` is `x[:, 1:].transpose(0, 2, 1)`."""
    moved = _moved(step.args[0], rewriting.producers) if step.form == "index" else None
    index = as_tuple(step.args[1])
    if moved is None or not all(isinstance(cut, slice) for cut in index):
        return None
    x, order = moved.args
    cuts = [*index, *[slice(None)] * (len(order) - len(index))]
    parts = index_of(*(cuts[order.index(axis)] for axis in range(len(order))))
    return _transposed_after(step, order, (x, parts), rewriting)


@CHANNELS_LAST.on("jnp.mean", "jnp.sum", "jnp.max", "jnp.min")
def reduction(step: Step, rewriting: StepRewriting) -> Step | None:
    """`max(x.transpose(0, 2, 1), axis=2)` is `max(x, axis=1)`."""
    moved = _moved(step.args[0], rewriting.producers) if len(step.args) == 1 else None
    axes = step.kwargs.get("axis")
    # Normalizations reduce and keep their axes; their recognisers know them with channels first.
    if moved is None or step.kwargs.keys() != {"axis"} or not isinstance(axes, int | tuple):
        return None
    x, order = moved.args
    places = [order[axis % len(order)] for axis in as_tuple(axes)]
    kept = [axis for axis in order if axis not in places]
    if kept != sorted(kept):
        return None
    axis = tuple(sorted(places)) if isinstance(axes, tuple) else places[0]
    return Step(step.form, step.name, (x,), {"axis": axis}, step.outputs, step.node)


@CHANNELS_LAST.on("lax.reduce_window", "helper.avg_pool")
def pool(step: Step, rewriting: StepRewriting) -> Step | None:
    """Return a pool of images that were transposed as one of the images themselves, and a transpose."""
    moved = _moved(step.args[0], rewriting.producers)
    if moved is None:
        return None
    x, order = moved.args

    def by_axis(values: Any) -> object:
        return values if isinstance(values, str) else tuple(values[order.index(axis)] for axis in range(len(order)))

    *others, window, strides, pads = step.args[1:]
    args = (x, *others, *map(by_axis, (window, strides, pads)))
    options = {key: by_axis(values) for key, values in step.kwargs.items()}
    return _transposed_after(step, order, args, rewriting, **options)


@CHANNELS_LAST.on("jnp.concatenate")
def concatenation(step: Step, rewriting: StepRewriting) -> Step | None:
    """`concatenate` of values that were transposed alike, along the axis that was moved."""
    if len(step.args) != 1 or step.kwargs.keys() != {"axis"}:
        return None
    made = (rewriting.producers.step(each, "jnp.transpose") for each in step.args[0])
    parts = [part for part in made if part is not None and len(part.args) == 2 and isinstance(part.args[0], Variable)]
    orders = {tuple(part.args[1]) for part in parts}
    if len(parts) != len(step.args[0]) or len(orders) != 1:
        return None
    order, origins = orders.pop(), tuple(part.args[0] for part in parts)
    return _transposed_after(step, order, (origins,), rewriting, axis=order[step.kwargs["axis"] % len(order)])


def _moved(value: object, producers: Producers) -> Step | None:
    """Return the transpose from channels last to channels first that a value is."""
    step = producers.step(value, "jnp.transpose")
    rank = len(value.shape) if isinstance(value, Variable) else 0
    if step is None or rank < 3 or step.args[1:] != (_first(rank),):
        return None
    return step if isinstance(step.args[0], Variable) else None


def _per_channel(value: Any, moved: Step, rewriting: StepRewriting) -> Variable | None:
    """Return the parameter of one element per channel that a value spreads over channels first."""
    shaped = rewriting.producers.step(value, "jnp.reshape")
    bias = shaped.args[0] if shaped is not None else None
    channels, rank = moved.args[0].shape[-1], len(moved.args[0].shape)
    spread = (channels, *[1] * (rank - 2))
    if isinstance(value, Variable) and value in rewriting.weights and value.shape in (spread, (1, *spread)):
        return rewriting.call(moved, "jnp.reshape", (value, (channels,)), (channels,))
    if not isinstance(bias, Variable) or bias not in rewriting.weights or bias.shape != (channels,):
        return None
    return bias if value.shape in (spread, (1, *spread)) else None


def _first(rank: int) -> tuple[int, ...]:
    """Return the order of axes that brings the last one to the second place."""
    return (0, rank - 1, *range(1, rank - 1))


def _last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)
