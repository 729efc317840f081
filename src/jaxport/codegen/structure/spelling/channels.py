"""Convolutions with their channels last, as the frameworks have them, and transposes moved out of their way."""

from __future__ import annotations

from collections.abc import Sequence

from jaxport.codegen.structure.spelling.spellings import StepRules
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Step, Variable

__all__ = ["ELEMENTWISE", "LAYOUTS", "Channels"]

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


class Channels(StepRules):
    """Rules on transposes between channels first and channels last."""

    def convolution(self, step: Step) -> Step | None:
        """Return a convolution of channels first as a transpose, one of channels last, and a transpose."""
        rank = len(step.outputs.shape)
        x, kernel, strides, pads = step.args if len(step.args) == 4 else (None,) * 4
        turned = self.spellings.step(kernel, "helper.transposed_kernel")
        if rank not in LAYOUTS or not isinstance(kernel, Variable) or (turned is None and not self._is_kernel(kernel)):
            return None
        options = dict(step.kwargs)
        if not isinstance(x, Variable) or options.pop("dimension_numbers", None) is not None:
            return None
        x = self.transposed(x, _last(rank), step)
        images, kernels, _ = LAYOUTS[rank]
        if turned is not None:
            kernels = f"OI{images[1:-1]}"
        else:
            kernel = self.transposed(kernel, (*range(2, rank), 1, 0), step)
        shape = tuple(step.outputs.shape[axis] for axis in _last(rank))
        result = Variable(shape, step.outputs.dtype)
        options["dimension_numbers"] = (images, kernels, images)
        args = (x, kernel, strides, pads)
        result = self.add(Step("call", "lax.conv_general_dilated", args, options, result, step.node))
        return _transpose(step, result, _first(rank))

    def _is_kernel(self, kernel: Variable) -> bool:
        """Whether a value is a parameter, or one without axes of one element: the kernel of an image that is a line."""
        squeezed = self.spellings.step(kernel, "jnp.squeeze")
        return (squeezed.args[0] if squeezed is not None else kernel) in self.weights

    def transposed(self, value: Variable, order: Sequence[int], like: Step) -> Variable:
        """Return a value with its axes in another order."""
        result = Variable(tuple(value.shape[axis] for axis in order), value.dtype)
        return self.add(Step("call", "jnp.transpose", (value, tuple(order)), {}, result, like.node))

    def flattened(self, step: Step) -> Step | None:
        """Spatial axes that are merged or split between two transposes, without the transposes."""
        shaped = self.spellings.step(step.args[0], "jnp.reshape")
        moved = self._moved(shaped.args[0]) if shaped is not None else None
        if shaped is None or moved is None or step.args[1:] != (_last(len(step.outputs.shape)),):
            return None
        if shaped.outputs.shape[:2] != shaped.args[0].shape[:2]:
            return None
        first, *rest = step.outputs.shape
        sizes = [-1 if not isinstance(first, int) and all(isinstance(n, int) for n in rest) else first, *rest]
        return Step("call", "jnp.reshape", (moved.args[0], sizes), {}, step.outputs, step.node)

    def elementwise(self, step: Step) -> Step | None:
        """`f(x.transpose(0, 2, 1))` is `f(x).transpose(0, 2, 1)`."""
        moved = self._moved(step.args[0]) if step.args else None
        if moved is None or any(isinstance(arg, Variable) for arg in step.args[1:]):
            return None
        inner = Variable(moved.args[0].shape, step.outputs.dtype)
        args = (moved.args[0], *step.args[1:])
        result = self.add(Step(step.form, step.name, args, step.kwargs, inner, step.node))
        return _transpose(step, result, moved.args[1])

    def together(self, step: Step) -> Step | None:
        """Return an operator of two values that were transposed alike; and the sum of one and a bias per channel."""
        first, second = map(self._moved, step.args) if len(step.args) == 2 else (None, None)
        if first is not None and second is not None and first.args[1] == second.args[1]:
            return self._both(step, first.args[0], second.args[0], first.args[1])
        if step.name != "+":
            return None
        for moved, other in ((first, step.args[1]), (second, step.args[0])):
            bias = self._per_channel(other, moved) if moved is not None else None
            if moved is not None and bias is not None:
                return self._both(step, moved.args[0], bias, moved.args[1])
        return None

    def part(self, step: Step) -> Step | None:
        """`x.transpose(0, 2, 1)[:, :, 1:]` is `x[:, 1:].transpose(0, 2, 1)`."""
        moved = self._moved(step.args[0]) if step.form == "index" else None
        index = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
        if moved is None or not all(isinstance(cut, slice) for cut in index):
            return None
        x, order = moved.args
        cuts = [*index, *[slice(None)] * (len(order) - len(index))]
        shape, parts = [*x.shape], [slice(None)] * len(order)
        for axis, size, cut in zip(order, step.outputs.shape, cuts, strict=True):
            shape[axis], parts[axis] = size, cut
        while len(parts) > 1 and parts[-1] == slice(None):
            parts.pop()
        result = Variable(tuple(shape), step.outputs.dtype)
        chosen = tuple(parts) if len(parts) > 1 else parts[0]
        return _transpose(step, self.add(Step("index", "", (x, chosen), {}, result, step.node)), order)

    def reduction(self, step: Step) -> Step | None:
        """`max(x.transpose(0, 2, 1), axis=2)` is `max(x, axis=1)`."""
        moved = self._moved(step.args[0]) if len(step.args) == 1 else None
        axes = step.kwargs.get("axis")
        # Normalizations reduce and keep their axes; their recognisers know them with channels first.
        if moved is None or step.kwargs.keys() != {"axis"} or not isinstance(axes, int | tuple):
            return None
        x, order = moved.args
        places = [order[axis % len(order)] for axis in (axes if isinstance(axes, tuple) else (axes,))]
        kept = [axis for axis in order if axis not in places]
        if kept != sorted(kept):
            return None
        axis = tuple(sorted(places)) if isinstance(axes, tuple) else places[0]
        return Step(step.form, step.name, (x,), {"axis": axis}, step.outputs, step.node)

    def pool(self, step: Step) -> Step | None:
        """Return a pool of images that were transposed as one of the images themselves, and a transpose."""
        moved = self._moved(step.args[0])
        if moved is None:
            return None
        x, order = moved.args

        def by_axis(values: RuntimeValue) -> RuntimeValue:
            return values if isinstance(values, str) else tuple(values[order.index(axis)] for axis in range(len(order)))

        *others, window, strides, pads = step.args[1:]
        args = (x, *others, *map(by_axis, (window, strides, pads)))
        options = {key: by_axis(values) for key, values in step.kwargs.items()}
        result = Variable(by_axis(step.outputs.shape), step.outputs.dtype)
        return _transpose(step, self.add(Step(step.form, step.name, args, options, result, step.node)), order)

    def concatenation(self, step: Step) -> Step | None:
        """`concatenate` of values that were transposed alike, along the axis that was moved."""
        if len(step.args) != 1 or step.kwargs.keys() != {"axis"}:
            return None
        parts = [self._moved(part) for part in step.args[0]]
        if not all(part is not None for part in parts):
            return None
        orders = {part.args[1] for part in parts if part is not None}
        origins = tuple(part.args[0] for part in parts if part is not None)
        order = orders.pop()
        if orders:
            return None
        axis, rank = order[step.kwargs["axis"] % len(order)], len(order)
        shape = tuple(step.outputs.shape[order.index(place)] for place in range(rank))
        result = Variable(shape, step.outputs.dtype)
        whole = self.add(Step(step.form, step.name, (origins,), {"axis": axis}, result, step.node))
        return _transpose(step, whole, order)

    def _both(self, step: Step, a: Variable, b: Variable, order: tuple[int, ...]) -> Step:
        shape = tuple(step.outputs.shape[order.index(axis)] for axis in range(len(order)))
        result = self.add(Step("operator", step.name, (a, b), {}, Variable(shape, step.outputs.dtype), step.node))
        return _transpose(step, result, order)

    def _moved(self, value: RuntimeValue) -> Step | None:
        """Return the transpose from channels last to channels first that a value is."""
        step = self.spellings.step(value, "jnp.transpose")
        rank = len(value.shape) if isinstance(value, Variable) else 0
        if step is None or rank < 3 or step.args[1:] != (_first(rank),):
            return None
        return step if isinstance(step.args[0], Variable) else None

    def _per_channel(self, value: RuntimeValue, moved: Step) -> Variable | None:
        """Return the parameter of one element per channel that a value spreads over channels first."""
        shaped = self.spellings.step(value, "jnp.reshape")
        bias = shaped.args[0] if shaped is not None else None
        channels, rank = moved.args[0].shape[-1], len(moved.args[0].shape)
        spread = (channels, *[1] * (rank - 2))
        if isinstance(value, Variable) and value in self.weights and value.shape in (spread, (1, *spread)):
            flat = Variable((channels,), value.dtype)
            return self.add(Step("call", "jnp.reshape", (value, (channels,)), {}, flat, moved.node))
        if not isinstance(bias, Variable) or bias not in self.weights or bias.shape != (channels,):
            return None
        return bias if value.shape in (spread, (1, *spread)) else None


def _first(rank: int) -> tuple[int, ...]:
    """Return the order of axes that brings the last one to the second place."""
    return (0, rank - 1, *range(1, rank - 1))


def _last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _transpose(step: Step, value: Variable, order: tuple[int, ...]) -> Step:
    return Step("call", "jnp.transpose", (value, order), {}, step.outputs, step.node)
