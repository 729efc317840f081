"""Image operators around networks: decoding files, and non-maximum suppression of boxes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from jaxport.errors import NotInstalled
from jaxport.importer.ops.indexing import gather_nd
from jaxport.importer.resolving.registry import Host, Known, SizeBound, op
from jaxport.importer.values.host import host, is_dim
from jaxport.importer.values.namespaces import at_once, cast, helper, jnp, lax
from jaxport.jaxprs.dims import min_dim

if TYPE_CHECKING:
    from PIL.Image import Image


@helper
def best_apart(low, high, scores, good, most, threshold, count):
    """Select boxes by score, skipping those whose intersection over union with a selected one exceeds `threshold`.

    `low` and `high` (n, 2) are the corners of the boxes; only boxes in the mask `good` are selected, at most `most`.
    Return `count` indices, padded with n.
    """
    n = scores.shape[0]
    area = jnp.prod(high - low, axis=1)
    rank = n - jnp.argsort(jnp.argsort(-scores))

    def choose(left, index):
        best = jnp.argmax(jnp.where(left, rank, 0))
        sides = jnp.minimum(high, high[best]) - jnp.maximum(low, low[best])
        shared = jnp.prod(jnp.maximum(sides, 0), axis=1)
        overlap = shared / jnp.where(shared > 0, area + area[best] - shared, 1)
        rest = left & (overlap <= threshold) & (jnp.arange(n) != best)
        return rest, jnp.where(left.any() & (index < most), best, n)

    return lax.scan(choose, good, jnp.arange(count))[1]


@helper
def suppressed(boxes, scores, most, iou_threshold, score_threshold, center, count, size):
    """Return the rows (batch, class, box) that non-maximum suppression selects, limited by `count` and `size`.

    `count` limits each class, `size` all. Unless `size` is None, padding rows point outside the scores, so
    that gathers ignore them.
    """
    chosen = chosen_boxes(boxes, scores, most, iou_threshold, score_threshold, center, count)
    batch, label, place = jnp.nonzero(chosen < scores.shape[2], size=size, fill_value=scores.shape)
    box = chosen.at[batch, label, place].get(mode="fill", fill_value=scores.shape[2])
    return jnp.stack([batch, label, box], axis=1)


@helper
def chosen_boxes(boxes, scores, most, iou_threshold, score_threshold, center, count):
    """Return the boxes (batch, class, count) that non-maximum suppression selects, best first, padded with the number
    of boxes.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        first, second = first - second / 2, first + second / 2
    good = jnp.full(scores.shape, True) if score_threshold is None else scores > score_threshold
    choose = lambda *parts: best_apart(*parts, most, iou_threshold, count)
    low, high = jnp.minimum(first, second)[:, None], jnp.maximum(first, second)[:, None]
    return jnp.vectorize(choose, signature="(n,d),(n,d),(n),(n)->(k)")(low, high, scores, good)


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Known,
    scores: Known,
    max_output_boxes_per_class: Host | None = None,
    iou_threshold: Known | None = None,
    score_threshold: Known | None = None,
    *,
    center_point_box=0,
    bound: SizeBound = None,
):
    if bound == 0:
        return host(np.zeros((0, 3)), np.int64)
    most = 0 if max_output_boxes_per_class is None else max_output_boxes_per_class.item()
    iou, score = (None if x is None else jnp.reshape(x, ()) for x in (iou_threshold, score_threshold))
    arguments = (boxes, scores, most, 0.0 if iou is None else iou, score, bool(center_point_box))
    if is_dim(bound):
        count = scores.shape[2]
        chosen = chosen_boxes(*arguments, min_dim(most, count))
        rows = jnp.argwhere(chosen < count, size=bound)
        box = gather_nd(chosen, rows, 0)
        return cast(jnp.concatenate([rows[:, :2], jnp.expand_dims(box, 1)], axis=1), np.int64)
    if bound is not None:
        return cast(suppressed(*arguments, min(most, bound), bound), np.int64)
    return host(np.asarray(at_once(suppressed, *arguments, min(most, scores.shape[2]), None)), np.int64)


@op("ImageDecoder", since=20)
def image_decoder(encoded_stream: Host, *, pixel_format="RGB"):
    image = _opened(encoded_stream.data.tobytes())
    if pixel_format == "Grayscale":
        return host(np.array(image.convert("L"))[..., None])
    decoded = np.array(image.convert("RGB"))
    return host(decoded[..., ::-1] if pixel_format == "BGR" else decoded)


def _opened(data: bytes) -> Image:
    try:
        import PIL.Image
    except ImportError as error:
        raise NotInstalled(
            "images cannot be decoded",
            where="`ImageDecoder`",
            why="Pillow reads them",
            instead='install it: `pip install "jaxport[images]"`',
        ) from error
    return PIL.Image.open(io.BytesIO(data))
