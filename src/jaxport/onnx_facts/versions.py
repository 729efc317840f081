"""Whether a node means the same in two versions of its operator."""

from __future__ import annotations

from collections.abc import Collection

from jaxport.onnx_facts import schema

#: The newest opset whose operators were compared with their older versions; a newer version is taken for another
#: operator.
COMPARED = 28

#: The versions of operators that gave nodes another meaning, though their attributes and inputs may look the same.
REDEFINED = {
    "BatchNormalization": (6, 7, 9),
    "Cast": (6,),
    "GRU": (3, 7),
    "Gemm": (7,),
    "GridSample": (20,),
    "GroupNormalization": (21,),
    "Hardmax": (13,),
    "LSTM": (7,),
    "LogSoftmax": (13,),
    "PRelu": (7,),
    "RNN": (7,),
    "Resize": (11,),
    "RoiAlign": (16,),
    "Softmax": (13,),
    "Upsample": (7, 9),
    **dict.fromkeys(("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"), (7,)),
}


def means_the_same(name: str, attributes: Collection[str], one: int, other: int) -> str:
    """Return why a node means something else in another opset of the default domain; an empty text if it does not.

    Args:
      name: its operator.
      attributes: the names of its attributes.
      one: the opset of its model.
      other: the other opset.

    >>> means_the_same("Softmax", ["axis"], 17, 23), means_the_same("Softmax", ["axis"], 11, 23)
    ('', 'Softmax means something else since opset 13')
    """
    old, new = schema.find("", name, one), schema.find("", name, other)
    if new is None:
        return f"opset {other} has no {name}"
    low, high = sorted((one if old is None else old.since, new.since))
    changed = [version for version in REDEFINED.get(name, ()) if low < version <= high]
    changed += [high] * (low < high and high > COMPARED)
    if changed:
        return f"{name} means something else since opset {changed[0]}"
    inputs = {formal.name for formal in new.inputs}
    lacking = [attribute for attribute in attributes if attribute not in new.attributes and attribute not in inputs]
    return f"{name} has no attribute `{lacking[0]}` at opset {other}" if lacking else ""
