"""What ONNX's operators have in common: the classes of operators that passes, the importer and the printers go by.

A class stands here once, however many files read it. A table that says what one operator becomes (a function of NumPy,
a rule) belongs to the file that uses it. Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

#: Elementwise operators of one tensor.
UNARY = frozenset(
    """Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu""".split()
)
#: Elementwise operators of tensors that are broadcast against one another.
BROADCASTING = frozenset(
    """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min
    Mod Mul Or Pow Sub Sum Where Xor""".split()
)
#: Elementwise operators whose result has the shape of the first operand: the others broadcast to it, or have it too.
LED_BY_THE_FIRST = frozenset({"Clip", "PRelu", "SwiGLU"})
#: Operators that compute each element of the result from the operands' elements at the same place.
ELEMENTWISE = UNARY | BROADCASTING | LED_BY_THE_FIRST
#: The version from which on an elementwise operator broadcasts as NumPy does, if its first one does otherwise and does
#: not say so by an attribute.
BROADCASTS_SINCE = {"PRelu": 7}

#: Convolutions by a kernel, which is the second input, and which inputs are images.
CONVOLUTIONS = {"Conv": (0,), "FusedConv": (0, 3)}

#: Reductions over `axes`, which are an attribute or the second input.
REDUCTIONS = frozenset(f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split())

#: Operators along one `axis`: the inputs that have it (None for all), and the default if there is one.
ALONG_AXIS = {
    "Concat": (None, None),
    "GatherElements": ((0, 1), 0),
    "Hardmax": ((0,), -1),
    "LogSoftmax": ((0,), -1),
    "ScatterElements": ((0, 1, 2), 0),
    "Softmax": ((0,), -1),
    "Split": ((0,), 0),
    "TopK": ((0,), -1),
}

#: Operators that keep the order of the elements and change the shape only.
RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
#: Operators that keep every element, in another order or shape.
MOVEMENTS = RESHAPING | {"Transpose"}
#: Operators whose result has the elements of the first input, some of them more than once.
VIEWS = MOVEMENTS | {"Expand", "Identity"}

#: Operators that pick elements of the first input, in any order and number.
SELECTIONS = VIEWS | {"Flatten", "Gather", "GatherElements", "GatherND", "Slice", "Tile"}

#: Operators whose result does not depend on the order of the operands.
COMMUTATIVE = frozenset("Add And BitwiseAnd BitwiseOr BitwiseXor Equal Max Mean Min Mul Or Sum Xor".split())
#: Operators that give another result each time.
RANDOM = frozenset(
    "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)

#: The operators of the default domain that have subgraphs.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
