"""Steps as a person would have written them: one function instead of several operators, and no operator without effect.

Each rule looks at one step and at those that make its operands, and returns steps that compute the same values; steps
without a reader are dropped afterwards. Rules that reorder arithmetic apply to float32 only, where they change no more
than the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from jaxport.codegen.structure.spelling.attention import Attentions
from jaxport.codegen.structure.spelling.channels import ELEMENTWISE, Channels
from jaxport.codegen.structure.spelling.groups import Groups
from jaxport.codegen.structure.spelling.lookups import Lookups
from jaxport.codegen.structure.spelling.rows import Rows
from jaxport.codegen.structure.spelling.spellings import Spellings, added_axes, bounds, call_step, number, only_axis
from jaxport.codegen.structure.steps import renamed
from jaxport.codegen.tree import Op
from jaxport.importer.values.host import Dim, HostValue, RuntimeValue, Shape
from jaxport.importer.values.recording import Step, Variable, map_leaves

__all__ = ["MOVING", "ROLES", "rewritten"]

ROLES = frozenset({"mask", "cos", "sin"})
"""Names of values that keep their meaning in every module."""

MOVING = frozenset({"jnp.reshape", "jnp.transpose", "jnp.expand_dims", "jnp.squeeze", "astype"})
"""Functions whose result is named as their operand."""

REDUCTIONS = ("jnp.mean", "jnp.sum", "jnp.max", "jnp.min")
"""Functions that reduce axes."""

Rule = Callable[[Step], "Variable | Step | None"]


def rewritten(
    ops: Iterable[Op], result: RuntimeValue, weights: Collection[Variable], channels_last: bool = True
) -> tuple[list[Step], RuntimeValue]:
    """Return the steps of operators with idioms in place of spelled-out ones, and the result in terms of them.

    Args:
      ops: the operators, in order.
      result: the values that they compute.
      weights: the parameters.
      channels_last: whether convolutions and normalizations of groups have their channels last, or first, as in files.
    """
    rewriting = _Rewriting(weights, channels_last)
    for op in ops:
        rewriting.add(op.step)
    return rewriting.steps, map_leaves(rewriting.current, result)


@dataclass(eq=False)
class _Rewriting:
    """The steps so far.

    Attributes:
      steps: in order.
      same: the values that another one, or a constant, stands for.
      spellings: the step that made each value.
      channels: the rules on layouts.
      attentions: the rules on attention.
      groups: the rule on normalizations of groups of channels.
      rows: the rules on products with a matrix.
      lookups: the rules on parts of values.
    """

    weights: InitVar[Collection[Variable]]
    channels_last: bool = True
    steps: list[Step] = field(default_factory=list)
    same: dict[Variable, Variable | HostValue] = field(default_factory=dict)
    spellings: Spellings = field(default_factory=Spellings)
    channels: Channels = field(init=False)
    attentions: Attentions = field(init=False)
    groups: Groups = field(init=False)
    rows: Rows = field(init=False)
    lookups: Lookups = field(init=False)
    concatenations: dict[tuple[int | Variable, ...], Variable] = field(default_factory=dict)

    def __post_init__(self, weights: Collection[Variable]) -> None:
        self.channels = Channels(self.spellings, self._made, weights)
        self.attentions = Attentions(self.spellings, self._made, weights)
        self.groups = Groups(self.spellings, self.channels, weights, self.channels_last)
        self.rows = Rows(self.spellings, self._made, weights)
        self.lookups = Lookups(self.spellings, self._made, weights)

    def _made(self, step: Step) -> Variable:
        self.add(step)
        return self.current(step.outputs)

    def current(self, leaf: RuntimeValue) -> RuntimeValue:
        return self.same.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    def add(self, step: Step) -> None:
        """Add a step, as the first rule that knows it writes it."""
        step = renamed(step, self.same)
        output = step.outputs
        if isinstance(output, Variable):
            for rule in self._rules(step):
                if not self.channels_last and getattr(rule, "__self__", None) is self.channels:
                    continue
                rewritten = rule(step)
                if isinstance(rewritten, Variable):
                    self.same[output] = rewritten
                    return
                if rewritten is not None:
                    self.add(rewritten)
                    return
            source = step.args[0] if step.name in MOVING and step.args else None
            if isinstance(source, Variable) and source.hint in ROLES:
                output.hint = source.hint
        self.steps.append(step)
        self.spellings.note(step)

    def _rules(self, step: Step) -> Sequence[Rule]:
        if step.name in ELEMENTWISE:
            return (self.channels.elementwise,)
        return {
            "+": (self._plus_nothing, self.groups.normalization, self.channels.together),
            "lax.conv_general_dilated": (self.channels.convolution,),
            "helper.depthwise_convolution": (self.channels.convolution,),
            "jnp.matmul": (self._matmul,),
            "@": (self._scaled_product, self.rows.of_columns),
            "jnp.squeeze": (self._squeeze, self._squeeze_added, self.lookups.element_of_split, self._squeeze_reduced),
            "jnp.expand_dims": (self._expand,),
            "jnp.logical_and": (self._and_true,),
            "jnp.take": (self.lookups.take_all, self.lookups.take, self.lookups.take_first_rows),
            "helper.gather_nd": (self.lookups.gather,),
            "": (
                self.channels.part,
                self.lookups.part_of_part,
                self.lookups.part_of_uniform,
                self.lookups.part_of_transposed,
            ),
            "jnp.transpose": (self._transpose, self.channels.flattened),
            "helper.resized_along": (self.lookups.repeat,),
            "helper.rotary": (self.attentions.rotary,),
            "jnp.swapaxes": (self._swapped,),
            "mT": (self._swapped,),
            **dict.fromkeys(REDUCTIONS, (self._reduction, self.channels.reduction)),
            "jnp.reshape": (self.rows.of_rows, self._reshape, self._split_before),
            "jnp.reciprocal": (self._reciprocal,),
            "jnp.negative": (self._negative,),
            "jnp.arange": (self._arange,),
            "jnp.where": (self._where,),
            "*": (self._times_one, self.channels.together),
            "-": (self.channels.together,),
            "/": (self._over_root, self.channels.together),
            "jnp.tile": (self._tile,),
            "jnp.pad": (self._pad_nothing,),
            "==": (self._lower_triangle,),
            "nn.softmax": (self.attentions.mask_of_sum, self._over_last_axis),
            "nn.dot_product_attention": (self.attentions.mask,),
            "jnp.concatenate": (self._stack, self._roll, self.channels.concatenation, self._continued),
            "lax.reduce_window": (self.channels.pool,),
            "helper.avg_pool": (self.channels.pool,),
            "jnp.cos": (self._angle,),
            "jnp.sin": (self._angle,),
        }.get(step.name, ())

    def _make(
        self, like: Step, name: str, args: tuple[RuntimeValue, ...], shape: Sequence[Dim], **kwargs: RuntimeValue
    ) -> Variable:
        """Add a call whose result has the dtype of a step, and return its result."""
        return self._made(Step("call", name, args, kwargs, Variable(tuple(shape), like.outputs.dtype), like.node))

    def _stack(self, step: Step) -> Step | None:
        """`concatenate([expand_dims(a, 0), expand_dims(b, 0)], axis=0)` is `stack([a, b], axis=0)`."""
        added = [self.spellings.step(part, "jnp.expand_dims") for part in step.args[0]]
        axis, rank = step.kwargs.get("axis", 0), len(step.outputs.shape)
        if len(step.args) != 1 or step.kwargs.keys() - {"axis"} or len(added) < 2:
            return None
        if any(one is None or only_axis(one) != axis % rank for one in added):
            return None
        parts = [one.args[0] for one in added if one is not None]
        if not all(isinstance(part, Variable) for part in parts):
            return None
        return Step("call", "jnp.stack", (parts,), {"axis": axis} if axis else {}, step.outputs, step.node)

    def _matmul(self, step: Step) -> Step | None:
        return _operator(step, "@", *step.args) if not step.kwargs else None

    def _negative(self, step: Step) -> Step | None:
        return _operator(step, "-", *step.args) if not step.kwargs else None

    def _reciprocal(self, step: Step) -> Step | None:
        root = self.spellings.step(step.args[0], "jnp.sqrt")
        return call_step(step, "lax.rsqrt", *root.args) if root is not None and _is_single(step.outputs) else None

    def _over_root(self, step: Step) -> Step | None:
        """`1 / sqrt(x)` is `rsqrt(x)`."""
        return self._reciprocal(call_step(step, "jnp.reciprocal", step.args[1])) if number(step.args[0]) == 1 else None

    def _pad_nothing(self, step: Step) -> Variable | None:
        x, widths = step.args if len(step.args) == 2 else (None, None)
        nothing = isinstance(widths, list | tuple) and all(tuple(pair) == (0, 0) for pair in widths)
        return x if nothing and isinstance(x, Variable) else None

    def _tile(self, step: Step) -> Step | None:
        """`tile(x, [1, 2])` is `broadcast_to(x, [n, 2])`, of axes of one element."""
        x, repeats = step.args if len(step.args) == 2 and not step.kwargs else (None, None)
        if not isinstance(x, Variable) or not isinstance(repeats, list | tuple) or len(repeats) != len(x.shape):
            return None
        if any(size != 1 and times != 1 for size, times in zip(x.shape, repeats, strict=True)):
            return None
        return call_step(step, "jnp.broadcast_to", x, tuple(step.outputs.shape))

    def _continued(self, step: Step) -> Step | None:
        """`concatenate((a, b, c), axis=1)` is `concatenate((ab, c), axis=1)` if `ab` is those two already."""
        (parts, *others), axis = step.args, step.kwargs.get("axis", 0) % len(step.outputs.shape)
        if others or step.kwargs.keys() - {"axis"} or not all(isinstance(part, Variable) for part in parts):
            return None
        for length in range(len(parts) - 1, 1, -1):
            whole = self.concatenations.get((axis, *parts[:length]))
            if whole is not None:
                rest = (whole, *parts[length:])
                return Step("call", step.name, (rest,), {"axis": axis}, step.outputs, step.node)
        self.concatenations[axis, *parts] = step.outputs
        return None

    def _roll(self, step: Step) -> Step | None:
        """`concatenate((x[:, 2:], x[:, :2]), axis=1)` is `roll(x, -2, axis=1)`."""
        axis, rank = step.kwargs.get("axis", 0), len(step.outputs.shape)
        first, second = (
            (self.spellings.step(part, "") for part in step.args[0]) if len(step.args[0]) == 2 else (None, None)
        )
        if first is None or second is None or first.args[0] is not second.args[0] or len(step.args) != 1:
            return None
        x, axis = first.args[0], axis % rank
        size = x.shape[axis] if isinstance(x, Variable) and len(x.shape) == rank else None
        if not isinstance(size, int):
            return None
        cut, end = bounds(first.args[1], axis, size) or (0, 0)
        if end != size or bounds(second.args[1], axis, size) != (0, cut):
            return None
        shift = min(-cut, size - cut, key=abs)
        return Step("call", "jnp.roll", (x, shift), {"axis": axis}, step.outputs, step.node)

    def _reduction(self, step: Step) -> Step | None:
        """`mean(x, axis=(1,), keepdims=False)` is `mean(x, axis=1)`."""
        if step.kwargs.get("keepdims") is not False or not isinstance(step.kwargs.get("axis"), tuple):
            return None
        axes = step.kwargs["axis"]
        options = {key: value for key, value in step.kwargs.items() if key != "keepdims"}
        options["axis"] = axes[0] if len(axes) == 1 else axes
        return Step("call", step.name, step.args, options, step.outputs, step.node)

    def _squeeze(self, step: Step) -> Step | None:
        """`squeeze(x[0:1], 0)` is `x[0]`."""
        cut = self.spellings.step(step.args[0], "")
        if cut is None or len(step.args) != 2:
            return None
        index = cut.args[1] if isinstance(cut.args[1], tuple) else (cut.args[1],)
        axes = step.args[1]
        if not isinstance(axes, tuple) or len(axes) != 1 or not 0 <= axes[0] < len(index):
            return None
        part = index[axes[0]]
        begin, end = (part.start, part.stop) if isinstance(part, slice) and part.step in (None, 1) else (None, None)
        if type(begin) is not int or type(end) is not int or end != begin + 1 or begin < 0:
            return None
        if not all(isinstance(other, slice) for other in index):
            return None
        chosen = tuple(begin if axis == axes[0] else other for axis, other in enumerate(index))
        return Step("index", "", (cut.args[0], chosen if len(chosen) > 1 else begin), {}, step.outputs, step.node)

    def _squeeze_added(self, step: Step) -> Step | None:
        """`squeeze(expand_dims(x, 0).transpose(1, 0, 2), 1)` is `x`, with its axes in the order of the transpose."""
        moved = self.spellings.step(step.args[0], "jnp.transpose")
        added = self.spellings.step(moved.args[0], "jnp.expand_dims") if moved is not None else None
        axis, axes = (only_axis(added) if added is not None else None), step.args[1] if len(step.args) == 2 else None
        if moved is None or added is None or axis is None or not isinstance(axes, tuple) or len(axes) != 1:
            return None
        order = moved.args[1]
        if order[axes[0]] != axis or not isinstance(added.args[0], Variable):
            return None
        return call_step(step, "jnp.transpose", added.args[0], tuple(at - (at > axis) for at in order if at != axis))

    def _split_before(self, step: Step) -> Step | None:
        """`x.reshape(n, a * b, m).transpose(1, 0, 2).reshape(a, b, n, m)` is `x.reshape(n, a, b, m).transpose(1, 2, 0, 3)`."""
        moved = self.spellings.step(step.args[0], "jnp.transpose")
        shaped = self.spellings.step(moved.args[0], "jnp.reshape") if moved is not None else None
        if moved is None or shaped is None or len(moved.args) != 2 or not isinstance(shaped.args[0], Variable):
            return None
        whole, parts, order = moved.outputs.shape, step.outputs.shape, moved.args[1]
        place = next((at for at, (one, other) in enumerate(zip(whole, parts, strict=False)) if one != other), None)
        if place is None or len(parts) != len(whole) + 1 or whole[place + 1 :] != parts[place + 2 :]:
            return None
        if parts[place] * parts[place + 1] != whole[place]:
            return None
        axis = order[place]
        shape = [*shaped.outputs.shape]
        shape[axis : axis + 1] = parts[place : place + 2]
        further = [at + (at > axis) for at in order]
        further[place : place + 1] = [axis, axis + 1]
        x = self._make(step, "jnp.reshape", (shaped.args[0], shape), shape)
        return call_step(step, "jnp.transpose", x, tuple(further))

    def _expand(self, step: Step) -> Step | None:
        """`expand_dims(expand_dims(x, 1), 2)` is `expand_dims(x, (1, 2))`."""
        inner = self.spellings.step(step.args[0], "jnp.expand_dims")
        axes, first = added_axes(step), added_axes(inner) if inner is not None else None
        if inner is None or axes is None or first is None:
            return None
        kept = [axis for axis in range(len(step.outputs.shape)) if axis not in axes]
        return call_step(
            step, "jnp.expand_dims", inner.args[0], tuple(sorted([*axes, *(kept[axis] for axis in first)]))
        )

    def _and_true(self, step: Step) -> Variable | None:
        """`a & True` is `a`."""
        for true, other in (step.args, step.args[::-1]):
            known = isinstance(true, HostValue) and true.dtype == bool and true.size == 1 and bool(true.data.all())
            if known and isinstance(other, Variable) and other.shape == step.outputs.shape and other.dtype == bool:
                return other
        return None

    def _plus_nothing(self, step: Step) -> Variable | None:
        """`i + 0` is `i`, of integers."""
        for zero, other in (step.args, step.args[::-1]):
            if isinstance(other, Variable) and np.dtype(other.dtype).kind in "iu" and number(zero) == 0:
                return other if other.shape == step.outputs.shape else None
        return None

    def _times_one(self, step: Step) -> Variable | None:
        """`x * ones` is `x`: normalizations without a scale have one of ones."""
        for one, other in (step.args, step.args[::-1]):
            is_one = isinstance(one, HostValue) and not one.symbolic and one.size and (one.data == 1).all()
            if is_one and isinstance(other, Variable) and (other.shape, other.dtype) == _type(step.outputs):
                return other
        return None

    def _transpose(self, step: Step) -> Variable | Step | None:
        x, order = step.args if len(step.args) == 2 and not step.kwargs else (None, None)
        if not isinstance(x, Variable) or not isinstance(order, tuple):
            return None
        if order == tuple(range(len(order))):
            return x
        before = self.spellings.step(x, "jnp.transpose")
        if before is None or len(before.args) != 2 or not isinstance(before.args[1], tuple):
            return None
        return call_step(step, "jnp.transpose", before.args[0], tuple(before.args[1][axis] for axis in order))

    def _swapped(self, step: Step) -> Step | None:
        """`swapaxes(x, 1, 2)` and `x.mT` are transposes, which the rules on those see."""
        (x, *axes), rank = step.args, len(step.outputs.shape)
        if not isinstance(x, Variable) or step.kwargs or rank < 2:
            return None
        first, second = (axis % rank for axis in (axes or (-2, -1)))
        order = list(range(rank))
        order[first], order[second] = second, first
        return call_step(step, "jnp.transpose", x, tuple(order))

    def _reshape(self, step: Step) -> Variable | Step | None:
        """A reshape to the shape that is there; of a reshape; and axes swapped while those before them are one."""
        x, to = step.args[0], step.outputs.shape
        if not isinstance(x, Variable) or step.kwargs or not isinstance(step.args[1], list | tuple):
            return None
        if x.shape == to:
            return x
        swapped = self.spellings.step(x, "jnp.transpose")
        merged = self.spellings.step(swapped.args[0], "jnp.reshape") if swapped is not None else None
        if swapped is not None and merged is not None and swapped.args[1:] == ((0, 2, 1),):
            origin, rank = merged.args[0], len(to)
            rows, columns = swapped.args[0].shape[1:]
            if isinstance(origin, Variable) and rank > 2 and to[-2:] == (columns, rows):
                shape = (*to[:-2], rows, columns)
                origin = self._make(step, "jnp.reshape", (origin, list(shape)), shape)
                return call_step(step, "jnp.transpose", origin, (*range(rank - 2), rank - 1, rank - 2))
        units = self._without_units(x, to) or self._squeeze_reduced(step)
        if units is not None:
            return units
        before = self.spellings.step(x, "jnp.reshape")
        return call_step(step, "jnp.reshape", before.args[0], step.args[1]) if before is not None else None

    def _squeeze_reduced(self, step: Step) -> Step | None:
        """`mean(x, axis=1, keepdims=True)` without the axis that is kept is `mean(x, axis=1)`."""
        moved = self.spellings.step(step.args[0], "jnp.transpose")
        kept = self.spellings.step(moved.args[0] if moved is not None else step.args[0], *REDUCTIONS)
        if kept is None or kept.kwargs.get("keepdims") is not True or kept.kwargs.keys() != {"axis", "keepdims"}:
            return None
        rank, axis = len(kept.outputs.shape), kept.kwargs["axis"]
        axes = (
            {*range(rank)} if axis is None else {one % rank for one in (axis if isinstance(axis, tuple) else (axis,))}
        )
        order = [place for place in (moved.args[1] if moved is not None else range(rank)) if place not in axes]
        if order != sorted(order) or step.outputs.shape != tuple(kept.outputs.shape[place] for place in order):
            return None
        options = {"axis": tuple(sorted(axes)) if len(axes) > 1 else axes.pop()} if order else {}
        return Step(kept.form, kept.name, kept.args, options, step.outputs, step.node)

    def _without_units(self, x: Variable, shape: Shape) -> Variable | None:
        """Return the value before axes of one element were added and moved, if it has this shape."""
        moved = self.spellings.step(x, "jnp.transpose")
        added = self.spellings.step(moved.args[0] if moved is not None else x, "jnp.expand_dims", "jnp.stack")
        if added is None or len(added.outputs.shape) != len(shape) + 1:
            return None
        origin = added.args[0]
        if added.name == "jnp.stack":
            origin = origin[0] if isinstance(origin, list | tuple) and len(origin) == 1 else None
        if not isinstance(origin, Variable) or origin.shape != shape:
            return None
        axis = only_axis(added)
        if axis is None:
            return None
        order = moved.args[1] if moved is not None else tuple(range(len(shape) + 1))
        kept = [place for place in order if place != axis]
        return origin if kept == sorted(kept) else None

    def _arange(self, step: Step) -> Step | None:
        if len(step.args) != 3 or step.kwargs.keys() != {"dtype"} or np.dtype(step.kwargs["dtype"]) != np.int64:
            return None
        begin, end, by = step.args
        whole = isinstance(end, HostValue) and end.ndim == 0 and end.dtype == np.int64
        if (number(begin), number(by)) != (0, 1) or not whole:
            return None
        return Step("call", "jnp.arange", (end.item(),), {}, step.outputs, step.node)

    def _lower_triangle(self, step: Step) -> Step | None:
        """`tril(ones) == 0` is `~tri(n, m, dtype=bool)`."""
        a, b = step.args
        made = self.spellings.step(a, "jnp.tril") if number(b) == 0 else None
        if made is None or len(made.args) != 2 or made.kwargs or number(made.args[1]) != 0:
            return None
        full, shape = made.args[0], made.outputs.shape
        if isinstance(full, Variable):
            cause = self.spellings.step(full, "jnp.broadcast_to")
            full = cause.args[0] if cause is not None else None
        if len(shape) != 2 or not isinstance(full, HostValue) or full.symbolic or full.dtype.kind not in "iuf":
            return None
        if not full.size or not full.data.ravel()[0] or not (full.data == full.data.ravel()[0]).all():
            return None
        output = Variable(shape, np.dtype(bool), "mask")
        sizes = shape if shape[0] is not shape[1] and shape[0] != shape[1] else shape[:1]
        self.add(Step("call", "jnp.tri", tuple(sizes), {"dtype": np.dtype(bool)}, output, step.node))
        return _operator(step, "~", self.current(output))

    def _where(self, step: Step) -> Step | None:
        """`where(~a, x, y)` is `where(a, y, x)`, and numbers are no arrays of one element."""
        condition, *others = step.args
        if len(others) == 2 and isinstance(condition, Variable) and len(condition.shape) == len(step.outputs.shape):
            plain = [_without_unit_axis(other) for other in others]
            if any(one is not other for one, other in zip(plain, others, strict=True)):
                return call_step(step, "jnp.where", condition, *plain)
        negated = self.spellings.step(step.args[0], "~") if len(step.args) == 3 and not step.kwargs else None
        if negated is None or np.dtype(negated.args[0].dtype) != bool:
            return None
        return call_step(step, "jnp.where", negated.args[0], step.args[2], step.args[1])

    def _over_last_axis(self, step: Step) -> Step | None:
        """`softmax(x, axis=3)` is `softmax(x, axis=-1)`, of four axes."""
        if step.kwargs != {"axis": len(step.outputs.shape) - 1}:
            return None
        return Step("call", "nn.softmax", step.args, {"axis": -1}, step.outputs, step.node)

    def _angle(self, step: Step) -> None:
        """Name cosines and sines so in every module."""
        step.outputs.hint = step.name.removeprefix("jnp.")

    def _scaled_product(self, step: Step) -> Step | None:
        """`(a * c) @ (b * d)` is `a @ b * (c * d)`, of activations."""
        if not _is_single(step.outputs) or not all(isinstance(arg, Variable) for arg in step.args):
            return None
        (a, c), (b, d) = map(self.spellings.scaled, step.args)
        if c == 1 or d == 1 or len(step.outputs.shape) < 3:
            return None
        output = Variable(step.outputs.shape, step.outputs.dtype)
        self.add(Step("operator", "@", (a, b), {}, output, step.node))
        factor = HostValue(np.asarray(np.float32(c * d)))
        return _operator(step, "*", self.current(output), factor)


def _without_unit_axis(value: RuntimeValue) -> RuntimeValue:
    """Return an array of one axis and one element as a number; any other value as it is."""
    if isinstance(value, HostValue) and value.shape == (1,) and not value.symbolic and not value.name:
        return HostValue(value.data.reshape(()))
    return value


def _type(variable: Variable) -> tuple[Shape, np.dtype]:
    return variable.shape, variable.dtype


def _is_single(variable: Variable) -> bool:
    return variable.dtype == np.float32


def _operator(step: Step, symbol: str, *args: RuntimeValue) -> Step:
    return Step("operator", symbol, args, {}, step.outputs, step.node)
