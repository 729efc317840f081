"""Parts of values: lookups of rows, slices, and single elements of an axis."""

from __future__ import annotations

import numpy as np

from jaxport.codegen.structure.spelling.spellings import StepRules, call_step, only_axis
from jaxport.importer.values.host import HostValue, RuntimeValue, is_dim
from jaxport.importer.values.namespaces import HELPERS
from jaxport.importer.values.recording import Step, Variable

__all__ = ["Lookups"]

REPEATED = 5
"""The elements of an axis by which a repetition is told, if positions are the same from element to element."""

OF_WHOLE = ("align_corners", "tf_crop_and_resize")
"""Coordinates of a Resize that depend on the number of elements."""


class Lookups(StepRules):
    """Rules on parts of values."""

    def take_all(self, step: Step) -> Step | None:
        """`take(flat, indices)` of all indices in order is a reshape: exporters write views with other strides so."""
        flat, indices = step.args if len(step.args) == 2 else (None, None)
        if not isinstance(flat, Variable) or len(flat.shape) != 1 or step.kwargs != {"axis": 0}:
            return None
        if not self.spellings.counts(indices, flat.shape[0]):
            return None
        return call_step(step, "jnp.reshape", flat, list(step.outputs.shape))

    def take(self, step: Step) -> Step | None:
        """`take(x, 0, axis=1)` is `x[:, 0]`."""
        x, at = step.args if len(step.args) == 2 else (None, None)
        axis = step.kwargs.get("axis")
        if not isinstance(x, Variable) or not isinstance(at, HostValue) or at.ndim or at.symbolic or axis is None:
            return None
        index, size = int(at.item()), x.shape[axis]
        inside = -size <= index < size if isinstance(size, int) else is_dim(size) and index in (0, -1)
        if step.kwargs != {"axis": axis} or not inside:
            return None
        whole = (slice(None),) * (axis % len(x.shape))
        return Step("index", "", (x, (*whole, index) if whole else index), {}, step.outputs, step.node)

    def take_first_rows(self, step: Step) -> Step | None:
        """A lookup of known positions 0, 1 … in a parameter, as that of `arange`: a table of positions is an embedding."""
        x, at = step.args if len(step.args) == 2 else (None, None)
        if not isinstance(x, Variable) or x not in self.weights:
            return None
        if not isinstance(at, HostValue) or at.symbolic or at.dtype.kind not in "iu":
            return None
        if at.size < 2 or at.shape not in ((at.size,), (1, at.size)) or step.kwargs != {"axis": 0}:
            return None
        if not np.array_equal(at.data.ravel(), np.arange(at.size)):
            return None
        positions = Variable((at.size,), at.dtype)
        indices = self.add(Step("call", "jnp.arange", (at.size,), {}, positions, step.node))
        if at.ndim == 2:
            expanded = Step("call", "jnp.expand_dims", (indices, 0), {}, Variable(at.shape, at.dtype), step.node)
            indices = self.add(expanded)
        return Step("call", "jnp.take", (x, indices), {"axis": 0}, step.outputs, step.node)

    def gather(self, step: Step) -> Step | None:
        """`gather_nd(x, expand_dims(i, -1))` is `take(x, i, axis=0)`."""
        x, at, paired = step.args if len(step.args) == 3 else (None, None, None)
        added = self.spellings.step(at, "jnp.expand_dims")
        if added is None or paired != 0 or not isinstance(x, Variable) or not isinstance(added.args[0], Variable):
            return None
        if only_axis(added) != len(added.outputs.shape) - 1:
            return None
        return Step("call", "jnp.take", (x, added.args[0]), {"axis": 0}, step.outputs, step.node)

    def element_of_split(self, step: Step) -> Step | None:
        """`squeeze(split(x, 3, axis=1)[2], 1)` is `x[:, 2]`."""
        part, axes = step.args if len(step.args) == 2 else (None, None)
        if not isinstance(part, Variable) or not isinstance(axes, tuple) or len(axes) != 1:
            return None
        split, place = self.spellings.parts.get(part, (None, 0))
        if split is None or split.name != "jnp.split":
            return None
        (x, _), rank = split.args, len(part.shape)
        axis = axes[0] % rank
        if not isinstance(x, Variable) or split.kwargs.get("axis", 0) % rank != axis:
            return None
        if any(one.shape[axis] != 1 for one in split.outputs):
            return None
        return Step("index", "", (x, (*(slice(None),) * axis, place) if axis else place), {}, step.outputs, step.node)

    def part_of_part(self, step: Step) -> Step | None:
        """`x[:, 1:][:, :, 2:]` is `x[:, 1:, 2:]`."""
        inner = self.spellings.step(step.args[0], "") if step.form == "index" else None
        cuts = _slices(inner.args[1]) if inner is not None else None
        further = _slices(step.args[1])
        if inner is None or cuts is None or further is None or inner.form != "index":
            return None
        whole, length = slice(None), max(len(cuts), len(further))
        pairs = [*zip(*([*part, *[whole] * (length - len(part))] for part in (cuts, further)), strict=True)]
        if any(first != whole and second != whole for first, second in pairs):
            return None
        chosen = tuple(first if second == whole else second for first, second in pairs)
        return Step("index", "", (inner.args[0], chosen if length > 1 else chosen[0]), {}, step.outputs, step.node)

    def part_of_uniform(self, step: Step) -> Step | None:
        """Make a part of a tensor whose elements are all the same a smaller one."""
        full = self.spellings.step(step.args[0], "jnp.broadcast_to") if step.form == "index" else None
        if full is None or not isinstance(full.args[0], HostValue) or full.args[0].ndim:
            return None
        return call_step(step, "jnp.broadcast_to", full.args[0], tuple(step.outputs.shape))

    def part_of_transposed(self, step: Step) -> Step | None:
        """`x.transpose(2, 0, 1)[0]` is `x[:, :, 0]`."""
        moved = self.spellings.step(step.args[0], "jnp.transpose") if step.form == "index" else None
        if moved is None or len(moved.args) != 2 or not isinstance(moved.args[0], Variable):
            return None
        index = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
        if not all(part == slice(None) for part in index[:-1]) or type(index[-1]) is not int:
            return None
        (origin, order), at = moved.args, len(index) - 1
        axis = order[at]
        rest = tuple(other - (other > axis) for place, other in enumerate(order) if place != at)
        shape = tuple(size for place, size in enumerate(origin.shape) if place != axis)
        output = Variable(shape, origin.dtype)
        chosen = (*(slice(None),) * axis, index[-1]) if axis else index[-1]
        part = self.add(Step("index", "", (origin, chosen), {}, output, step.node))
        return call_step(step, "jnp.transpose", part, rest)

    def repeat(self, step: Step) -> Step | None:
        """`resized_along(x, 1, 2 * n, mode="nearest")` is `repeat(x, 2, axis=1)`, if each element is taken twice."""
        x, axis, size, *scale = step.args
        times = size // x.shape[axis]
        if step.kwargs.get("mode") != "nearest" or step.kwargs.get("transform") in OF_WHOLE:
            return None
        if not isinstance(times, int) or times * x.shape[axis] != size:
            return None
        row = np.arange(REPEATED)
        resized = HELPERS["resized_along"].function(row, 0, times * row.size, *scale, **step.kwargs)
        if not np.array_equal(resized, row.repeat(times)):
            return None
        return Step("call", "jnp.repeat", (x, times), {"axis": axis}, step.outputs, step.node)


def _slices(index: RuntimeValue) -> list[slice] | None:
    parts = [*index] if isinstance(index, tuple) else [index]
    return parts if all(isinstance(part, slice) for part in parts) else None
