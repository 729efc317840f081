"""What happens to images before and after a network: decoding files, choosing among boxes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from jaxport.errors import NotInstalled
from jaxport.importer.host import host
from jaxport.importer.registry import Host, Known, op


def _sides(boxes: np.ndarray, center: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest coordinates of boxes given by two corners, or by center and size."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _overlaps(boxes: np.ndarray, center: int) -> np.ndarray:
    """Intersection over union of all pairs of boxes; zero where a box has no area."""
    low, high = _sides(boxes, center)
    area = np.prod(high - low, axis=-1)
    inner = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    shared = np.prod(np.maximum(inner, 0), axis=-1)
    union = area[:, None] + area - shared
    valid = (shared > 0) & (area[:, None] > 0) & (area > 0) & (union > 0)
    return np.where(valid, shared / np.where(valid, union, 1), 0)


def _kept(scores: np.ndarray, overlaps: np.ndarray, most: int, iou_threshold: float) -> list[int]:
    """Boxes in the order of their scores, without those that overlap a better one too much."""
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == most:
            break
        if np.all(overlaps[box, kept] <= iou_threshold):
            kept.append(int(box))
    return kept


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Known,
    scores: Known,
    max_output_boxes_per_class: Host | None = None,
    iou_threshold: Host | None = None,
    score_threshold: Host | None = None,
    *,
    center_point_box=0,
):
    most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class)
    iou = 0.0 if iou_threshold is None else float(iou_threshold)
    selected = []
    for batch, (corners, classes) in enumerate(zip(boxes.data, scores.data, strict=True)):
        overlaps = _overlaps(corners, center_point_box)
        for label, values in enumerate(classes):
            good = np.arange(len(values)) if score_threshold is None else np.flatnonzero(values > score_threshold.data)
            kept = _kept(values[good], overlaps[np.ix_(good, good)], most, iou)
            selected += [(batch, label, good[box]) for box in kept]
    return host(np.array(selected, np.int64).reshape(-1, 3))


@op("ImageDecoder", since=20)
def image_decoder(encoded_stream: Host, *, pixel_format="RGB"):
    image = _opened(encoded_stream.data.tobytes())
    if pixel_format == "Grayscale":
        return host(np.array(image.convert("L"))[..., None])
    decoded = np.array(image.convert("RGB"))
    return host(decoded[..., ::-1] if pixel_format == "BGR" else decoded)


def _opened(data: bytes) -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise NotInstalled(
            "images cannot be decoded",
            where="`ImageDecoder`",
            why="Pillow reads them",
            instead="`pip install jaxport[images]`",
        ) from error
    return PIL.Image.open(io.BytesIO(data))
