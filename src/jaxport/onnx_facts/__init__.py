"""What ONNX's operators have in common: the classes of operators that passes, the importer and the printers go by.

A class stands here once, however many files read it. A table that says what one operator becomes (a function of NumPy,
a rule) belongs to the file that uses it. Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from math import inf, pi

#: The metadata of a model that jaxport exported with the roles of its initializers.
ROLES = "jaxport.roles"
#: The metadata of a model that `from_torch` made: the names of all entries of the module's state dict, as a list.
STATE_DICT = "jaxport.state_dict"
#: The metadata of nodes that PyTorch's exporter has written: the modules around each of them.
OF_PYTORCH = "pkg.torch.onnx.name_scopes"

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

#: The four operations.
ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
#: Comparisons of two tensors, element by element.
COMPARISONS = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual".split())
#: The nonlinear functions between the layers of networks. A small error of the operand stays small: no slope is 2.
ACTIVATIONS = frozenset(
    """Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Sigmoid Softplus Softsign Swish
    Tanh""".split()
)

#: Operators whose results have no sign, so that none is -0.0.
UNSIGNED = frozenset("Abs Exp Sigmoid Softmax".split())
#: Operators that may round what is negative to -0.0, and nothing else to it unless an operand is.
ROUNDING_TO_ZERO = frozenset("Cast Div Mul ReduceSum".split())
#: Operators that change nothing but signs.
SIGN_CHANGES = frozenset({"Abs", "Neg"})

#: Operators whose attributes ONNX Runtime does not check: it ignores those that they do not have.
WITHOUT_ATTRIBUTE_CHECK = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})

#: Products of matrices, and of images with kernels.
MATRIX_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
KERNEL_PRODUCTS = frozenset({"Conv", "ConvTranspose"})
#: Products with weights, and look-ups in them, whose weights are stored in fewer bits.
QUANTIZED = frozenset({"Conv", "Gather", "Gemm", "MatMul"})
#: Convolutions by a kernel, which is the second input, and which inputs are images.
CONVOLUTIONS = {"Conv": (0,), "FusedConv": (0, 3)}

#: Pools over windows, and over all positions of an image.
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
GLOBAL_POOLS = frozenset(f"Global{name}" for name in POOLS)

#: Reductions over `axes`, which are an attribute or the second input.
REDUCTIONS = frozenset(f"Reduce{kind}" for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split())

#: Reductions along one `axis` to the position of an element.
POSITIONS = frozenset({"ArgMax", "ArgMin"})

#: Operators that make the elements along an axis shares of their sum, or the like. Before version 13 they flatten the
#: axes before `axis`, and those from it on.
SOFTMAXES = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
#: Normalizations of the last axes, from `axis` on.
ROW_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})
#: Normalizations: the result has the shape of the first operand.
NORMALIZATIONS = ROW_NORMALIZATIONS | frozenset(
    "BatchNormalization GroupNormalization InstanceNormalization LRN LpNormalization MeanVarianceNormalization".split()
)
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

#: Operators that look up elements of the first input at positions that the second one has.
LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
#: Operators that pick elements of the first input, in any order and number; other inputs say which.
SELECTIONS = (
    VIEWS | LOOKUPS | frozenset("Compress DepthToSpace Flatten ReverseSequence Slice SpaceToDepth Split Tile".split())
)
#: Operators whose first result consists of elements of the inputs; which ones may depend on their values.
CHOICES = SELECTIONS | frozenset(
    "Clip Concat GlobalMaxPool Max MaxPool Min OneHot ReduceMax ReduceMin TopK Where".split()
)
#: Operators that replace elements of the first input, which has the shape of the result.
SCATTERS = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
#: Operators of integers whose lower bits depend on the lower bits of the operands; a BitShift to the right is none of
#: them.
MODULAR = (
    SELECTIONS
    | MATRIX_PRODUCTS
    | frozenset(
        """Add BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Concat CumProd CumSum Mul Neg ReduceProd ReduceSum
        ReduceSumSquare Sub Where""".split()
    )
)
#: Operators of integers whose result may have more bits than the operands; ReduceMean adds them first.
GROWING = MATRIX_PRODUCTS | frozenset(
    """Add BitShift Col2Im CumProd CumSum Mul PRelu Pow ReduceL1 ReduceL2 ReduceMean ReduceProd ReduceSum
    ReduceSumSquare Sub""".split()
)
#: Operators that read the dims of their operand alone.
MEASURES = frozenset({"Shape", "Size"})

#: Operators whose first result has the shape of the first operand.
SHAPED_LIKE_THE_FIRST = (
    UNARY
    | LED_BY_THE_FIRST
    | NORMALIZATIONS
    | SCATTERS
    | SOFTMAXES
    | frozenset(
        """Bernoulli BitCast CausalConvWithState CumProd CumSum DequantizeLinear Dropout DynamicQuantizeLinear EyeLike
        QuantizeLinear ReverseSequence RotaryEmbedding Trilu""".split()
    )
)

#: The least and the greatest result of operators on floats, whatever the operands are. NaN is neither.
RANGES = {
    **dict.fromkeys("Abs Acosh Exp Relu Softplus Sqrt".split(), (0.0, inf)),
    **dict.fromkeys("HardSigmoid Hardmax Sigmoid Softmax".split(), (0.0, 1.0)),
    **dict.fromkeys("Cos Erf Sign Sin Softsign Tanh".split(), (-1.0, 1.0)),
    **dict.fromkeys("Asin Atan".split(), (-pi / 2, pi / 2)),
    "Acos": (0.0, pi),
    "Cosh": (1.0, inf),
    "Gelu": (-0.2, inf),
    "HardSwish": (-0.4, inf),
    "LogSoftmax": (-inf, 0.0),
    "Mish": (-0.4, inf),
}

#: The inputs that say how an operator computes, rather than what it applies: statistics, exponents, bounds, scales.
SETTINGS = {
    "Clip": {1, 2},
    "DequantizeLinear": {1, 2},
    "Dropout": {1},
    "GroupQueryAttention": {7, 8, 12, 13},
    "MatMulNBits": {1, 2, 3, 4},
    "Pad": {2},
    "Pow": {1},
    "QLinearConv": set(range(9)),
    "QLinearMatMul": set(range(8)),
    "QuantizeLinear": {1, 2},
    "Resize": {1, 2},
    "RotaryEmbedding": {1, 2, 3},
    "Where": {0},
}

#: The inputs that are statistics of data, which training does not change but calls do.
STATISTICS = {"BatchNormalization": {3, 4}}
#: The inputs that are the state before the first step.
INITIAL_STATES = {"GRU": {5}, "LSTM": {5, 6}, "RNN": {5}}
#: The inputs that are weights if they are stored, whatever their size.
WEIGHTS = {
    **dict.fromkeys("BatchNormalization GroupNormalization InstanceNormalization LayerNormalization".split(), {1, 2}),
    **dict.fromkeys("Conv ConvTranspose FusedConv Gemm FusedGemm".split(), {1, 2}),
    **dict.fromkeys("BiasGelu FastGelu PRelu RMSNormalization SimplifiedLayerNormalization".split(), {1}),
    **dict.fromkeys("Einsum FusedMatMul MatMul".split(), {0, 1}),
    "GRU": {1, 2, 3},
    "LSTM": {1, 2, 3, 7},
    "RNN": {1, 2, 3},
    "SkipLayerNormalization": {2, 3, 4},
    "SkipSimplifiedLayerNormalization": {2, 3},
}

#: Operators whose result does not depend on the order of the operands.
COMMUTATIVE = frozenset("Add And BitwiseAnd BitwiseOr BitwiseXor Equal Max Mean Min Mul Or Sum Xor".split())
#: Operators that give another result each time.
RANDOM = frozenset(
    "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)

#: Operators that are about one primitive of JAX each, which an export turns into the operator again.
PRIMITIVES = (
    (ARITHMETIC - {"Div"})
    | COMPARISONS
    | MOVEMENTS
    | MEASURES
    | frozenset(
        """Abs And Ceil Concat Constant ConstantOfShape Cos Erf Exp Expand Floor Flatten Identity Log Max Min Neg Not Or
        Range Relu Sigmoid Sign Sin Slice Split Sqrt Sum Tanh Where Xor""".split()
    )
)

#: Operators between numbers and the integers that they are rounded to.
QUANTIZING = frozenset("DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeLinear QuantizeLinear".split())
#: Operators whose results for some integers ONNX leaves open: by zero, and beyond the range.
OPEN_ON_INTEGERS = frozenset({"Div", "Mod", "Pow"})

#: Operators that make large values of stored ones that are small: models have the small ones.
DECODERS = frozenset({"DequantizeLinear"})

#: Values of attributes that ONNX Runtime has no kernel for.
UNSERVED = frozenset((name, "layout", 1) for name in INITIAL_STATES)

#: The operators of the default domain that have subgraphs.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

#: The domain of ONNX Runtime's own operators, its attention to a key-value cache, and its mixtures of experts, in
#: floats and in fewer bits.
RUNTIME_DOMAIN, CACHED_ATTENTION = "com.microsoft", "GroupQueryAttention"
EXPERT_LAYER, QUANTIZED_EXPERT_LAYER = "MoE", "QMoE"
#: Operators of mixtures of experts, beside elementwise ones, views and look-ups.
EXPERT_PARTS = frozenset("MatMul ReduceSum ScatterElements Slice Softmax Split".split())
#: Operators of that domain all of whose integers are int32: none of them was wider before.
OF_INT32 = frozenset({"Attention", CACHED_ATTENTION, "MultiHeadAttention"})
#: What compilers for small devices have in common: layers, arithmetic, comparisons, reductions and movements.
EDGE_OPERATORS = frozenset(
    """Abs Acos Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast Ceil Clip Concat Constant Conv
    ConvTranspose Cos DepthToSpace DequantizeLinear Div Elu Equal Erf Exp Expand Flatten Floor GRU Gather GatherElements
    Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization
    LSTM LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mul Neg Not Or PRelu Pad Pow
    QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Reshape Resize Round Selu Sigmoid Sign Sin Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum
    Tan Tanh Tile TopK Transpose Unsqueeze Where Xor""".split()
)
