"""Padding: around, between the elements, and by negative amounts, which crop."""

from __future__ import annotations

from jaxport.export import dims
from jaxport.export.registry import rule


@rule("pad")
def pad(op, x, value, *, padding_config):
    lows, highs, gaps = (list(column) for column in zip(*padding_config, strict=True)) if x.rank else ([], [], [])
    axes = range(x.rank)
    spread = [axis for axis, gap in enumerate(gaps) if gap and not dims.same(x.shape[axis], 0)]
    if spread:
        filled = all(dims.known(lambda a=axis: x.shape[a] >= 1) for axis in spread)
        x = spread_out(op, x, value, {axis: gaps[axis] for axis in spread})
        if filled:  # the gap after the last element is padding already
            highs = [high - gaps[axis] if axis in spread else high for axis, high in enumerate(highs)]
        else:
            x = op.slice(x, [0] * len(spread), [-gaps[axis] for axis in spread], spread)
    shrinking = [axis for axis in axes if not (not_negative(lows[axis]) and not_negative(highs[axis]))]
    if not all(dims.known(lambda d=d: d <= 0) for d in (*lows, *highs)):
        amounts = op.dims([*lows, *highs])
        x = op.Pad(x, op.Max(amounts, (0,)) if shrinking else amounts, value)
    if shrinking:
        begins = op.Max(op.dims([-lows[axis] for axis in shrinking]), (0,))
        ends = op.Add(begins, tuple(op.out.shape[axis] for axis in shrinking))
        x = op.emit("Slice", x, begins, ends, tuple(shrinking), results=[(x.dtype, op.out.shape)])
    return x


def not_negative(dim):
    return dims.known(lambda: dim >= 0)


def spread_out(op, x, value, gaps):
    """Return `x` with padding elements inserted after each element, as many as `gaps` has for the axis."""
    apart, merged = [], []
    for axis, size in enumerate(x.shape):
        apart += [size, 1] if axis in gaps else [size]
        merged.append(size * (1 + gaps[axis]) if axis in gaps else size)
    added = [
        gaps[axis] if last else 0 for axis in range(x.rank) for last in ((False, True) if axis in gaps else (False,))
    ]
    x = op.Pad(op.reshape(x, apart), (*[0] * len(added), *added), value)
    x.shape = tuple(size + gap for size, gap in zip(apart, added, strict=True))
    return op.reshape(x, merged)
