"""A generated table of operators at rare values of their attributes, in all versions and types, against other evaluators.

The rows, and how they are compared, are in `tests/importer/attributes.py`.
"""

from __future__ import annotations

import random
import re
import warnings

import pytest

from tests.importer.attributes import FINE, rows, seeds, verdict
from tests.importer.models import needs_newest_onnx

pytestmark = needs_newest_onnx

DIFFERENT: dict[str, str] = {
    "^AveragePool-1 ": "the reference counts the padding of version 1, whose documentation excludes it",
    "^(GRU|LSTM|RNN)-.* clip=": "the reference ignores `clip`; ONNX Runtime, where it has the version, does not",
    "^(GRU|LSTM|RNN)-.* layout=": "the states of the row have the shapes of the other layout",
    "^Hardmax-11 ": "the reference has version 13, which normalizes over one axis",
    "^Cast(Like)?-.* (to=6|T2=u?int)": "ONNX leaves open what NaN, infinities and floats beyond the integers become",
    "^CenterCropPad-18 axes=None": "the shape is for two axes, the operand has three",
    "^Col2Im-18 T=bool": "overlapping bools would have to be added",
    "^Resize-.* coordinate_transformation_mode=tf_crop_and_resize": "the mode needs `roi`, which the row lacks",
    "^Resize-.* T1=u?int": "interpolated integers are cut off, as by ONNX Runtime where it has the type; the reference rounds",
    "^GridSample-.* T1=u?int": "the reference casts the weights to the integers, too",
    "^LpNormalization-.* p=3": "ONNX defines the orders 1 and 2; any other one is refused",
    "^MaxUnpool-.* (kernel_shape|strides)=": "the positions are those of a larger result",
    "^PRelu-[16] ": "versions before 7 have a slope for each channel, the row has one for each element",
    "^QuantizeLinear-.* (T1=int32|precision=)": "quotients of integers are halves in one precision only",
    "^ReverseSequence-.* (batch|time)_axis=": "both axes are the same one, or the lengths are for another",
    "^STFT-17 T1=bfloat16": "bfloat16 cannot hold the sums of a window",
    "^TreeEnsemble-5 n_targets=1": "a leaf is of the second target; ONNX Runtime refuses it, too",
    "^TreeEnsemble-5 post_transform=1": "the scores are softmaxes; the reference ignores it, and ONNX Runtime's do not sum to one",
    "^Selu-1 ": "the reference has the defaults of version 6",
}
"""Rows by their text, and why another value is right, or a refusal."""


def reason(row: str) -> str | None:
    return next((why for pattern, why in DIFFERENT.items() if re.search(pattern, row)), None)


def check(table) -> None:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the evaluators say of infinities and overflows
        for row in table:
            what, made = verdict(row)
            if what not in FINE and reason(str(row)) is None:
                wrong.append(f"{row}: {what}: {' '.join(str(made).split())[:300]}")
    assert not wrong, "\n".join(wrong)


QUICK = "ReduceL1|ReduceL2|ReduceSumSquare|Shrink|ScatterND|LpPool|Hardmax|Gemm"


def test_a_sample_of_the_table() -> None:
    check(random.Random(0).sample(list(rows(f"^({QUICK})$")), 30))


@pytest.mark.slow
@pytest.mark.parametrize("operator", [name for _, name in seeds()])
def test_the_table(operator: str) -> None:
    check(rows(f"^{operator}$"))
