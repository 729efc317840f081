"""`from_onnx` and the program that it returns."""

from __future__ import annotations

import os
import warnings
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import numpy as np
import onnx_ir as ir

from jaxport import saving
from jaxport.arguments import takes
from jaxport.blocks.marking.window import current_recorder
from jaxport.errors import AGAIN, boundary
from jaxport.importer.arguments import by_name, checked, external
from jaxport.importer.batching import Batches
from jaxport.importer.explain import GraphExplanation, explain, summary
from jaxport.importer.limits import Limits, budget
from jaxport.importer.loading.load import ModelSource, load
from jaxport.importer.modules import NodeModule, NodePlace, Parameters
from jaxport.importer.names import Classes, Folder, Framework, Given, unique_identifiers
from jaxport.importer.resolving.exact_sizes import with_exact_sizes
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.layouts import keep_order
from jaxport.importer.resolving.node_settings import set_bounds, set_deciding_inputs
from jaxport.importer.resolving.resolve import resolve
from jaxport.importer.resolving.result_sizes import bytes_of
from jaxport.importer.resolving.unchecked import tell_ignored
from jaxport.importer.resolving.x64_outputs import warning_of
from jaxport.importer.running.compiling import Calls
from jaxport.importer.running.evaluate import evaluate, evaluate_blocks
from jaxport.importer.segments import Item, arranged
from jaxport.importer.tensors import weights
from jaxport.importer.tensors.origins import read_back
from jaxport.importer.tensors.roles import Role, static_values
from jaxport.importer.ties import Ties, tie_transposed, untie
from jaxport.importer.traced.bounds import bounds_are_told
from jaxport.importer.values.host import Key, RuntimeValue, Tensor
from jaxport.jaxprs import Array
from jaxport.phases import phase
from jaxport.printable import shown

if TYPE_CHECKING:
    from jaxport.codegen.printing import AnySource, CrateSource, ModuleSource, Source
    from jaxport.verify.report import Report


@takes(
    "from_onnx",
    trainable="some names",
    ties="mode or names",
    sizes="counts",
    limits=Limits,
    batch="axes",
    shardings="chosen by name",
    strict="flag",
)
def from_onnx(
    source: ModelSource,
    *,
    trainable: Collection[str] | None = None,
    ties: Ties = "auto",
    sizes: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    batch: bool | Mapping[str, int | None] = False,
    shardings: weights.Shardings | None = None,
    strict: bool = False,
) -> Program:
    """Import an ONNX model as a JAX function.

    Args:
      source: the path of the model, its bytes, a `ModelProto`, an `onnx_ir.Model`, or what `to_onnx` returned.
      trainable: the names of the initializers that are parameters. By default, what the metadata of a file of ours
        says, or the floating-point tensors that no node uses as a constant, such as an exponent or a mask. See
        `Program.roles`.
      ties: which uses of one tensor are one parameter; exporters write equal tensors once, such as the zeros of all
        biases. `"auto"`: a vector of one repeated value is a parameter of each layer that uses it, unless the file says
        which tensors are parameters; `"keep"`: what the file stores; `"none"`: each use; or names of tensors that stay
        tied.
      sizes: the maximum number of rows of nodes whose size depends on data (NonZero, NonMaxSuppression, Compress,
        Unique, a Loop that stacks outputs), by the name of the node or of its output, so that `jax.jit` can trace them.
        The results are padded to this size: NonZero and NonMaxSuppression with positions outside the array, Unique with
        its smallest element, the others with zeros. Further rows are dropped. For a Loop whose end depends on data, it
        is the maximum number of iterations, and makes the Loop differentiable.
      limits: the resource limits of the model: memory, nesting depth, and number of operations and iterations.
      batch: whether calls may have a different number of rows than the file fixes. The model is mapped over batches of
        its own size (`jax.vmap`), so the results are those of separate calls. Rows are counted along the first axis; a
        mapping from names of inputs and outputs gives other axes, or None for an input that all rows share.
      shardings: where parameters are placed: a `jax.sharding.Sharding` by name, or a function that returns one (or
        None) for the name and the `jax.ShapeDtypeStruct` of each. Each device reads only its part of the file.
      strict: refuse attributes that operators do not define but ONNX Runtime ignores; by default a warning names them.

    Returns:
      A `Program`: a callable that works with `jax.jit`, `jax.grad` and `jax.vmap`, with its weights in `params`.

    Raises:
      ModelError: the model is damaged or malformed.
      Unsupported: it has operators that cannot be imported; all of them are listed.
      InvalidArgument: `source` is not a model, there is no such file, no initializer has a given name, or a sharding
        does not split a parameter evenly.

    >>> import numpy as np
    >>> import jax
    >>> from jaxport import from_onnx
    >>> import onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[N, 2] x) => (float[N, 2] y) <float[2] bias = {1, 2}> { y = Add(x, bias) }''')
    >>> program = from_onnx(model)
    >>> program(np.zeros((1, 2), np.float32))
    Array([[1., 2.]], dtype=float32)
    >>> jax.grad(lambda params: program.apply(params, np.ones((3, 2), np.float32)).sum())(program.params)
    {'bias': Array([3., 3.], dtype=float32)}
    """
    where = f"`{source}`" if isinstance(source, str | os.PathLike) else ""
    with boundary("the model is malformed", where=where, instead=AGAIN), phase("Importing"):
        model = load(source, limits)
        tell_ignored(model, strict)
        return Program(
            model, trainable=trainable, ties=ties, sizes=sizes, batch=batch, limits=limits, shardings=shardings
        )


def _unpickled(model: bytes, options: Mapping[str, Any]) -> Program:
    """Return the program that was pickled as this model and these options."""
    return Program(load(model, options["limits"]), **options)


class Program:
    """An imported ONNX model: a function of its inputs, with its weights in `params`.

    `from_onnx` makes it of a file, and explains the options. Two more are for a graph that is at hand:

    Args:
      keeps_order: whether images and kernels keep the order of axes of the file, channels first.
      states: the names of statistics that are arguments of `apply` beside the parameters.

    >>> import jax
    >>> import numpy as np
    >>> from jaxport import from_onnx
    >>> import onnx.parser
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[N] x, float[N] y) => (float[N] z) { z = Mul(x, y) }''')
    ... )
    >>> program.input_names, program.output_names
    (('x', 'y'), ('z',))
    >>> jax.jit(program)(y=np.full(2, 3, np.float32), x=np.ones(2, np.float32))
    Array([3., 3.], dtype=float32)
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        trainable: Collection[str] | None = None,
        ties: Ties = "auto",
        sizes: Mapping[str, int] | None = None,
        limits: Limits | None = None,
        batch: bool | Mapping[str, int | None] = False,
        shardings: weights.Shardings | None = None,
        keeps_order: bool = False,
        states: Collection[str] = (),
    ):
        model = with_exact_sizes(model)
        model, self._untied = untie(tie_transposed(model) if ties == "auto" else model, ties)
        self.model = model
        self._options = {"ties": "keep", "sizes": sizes, "limits": limits, "batch": batch, "shardings": shardings}
        self._options |= {"keeps_order": keeps_order, "states": states}
        self._trainable = trainable
        self.limits = limits or Limits()
        self.body: Body = resolve(model, self.limits)
        set_bounds(self.body, sizes or {})
        self._static = static_values(self.body)
        self.weights = weights.Weights(self.body, model, self._static, trainable, shardings, states)
        if keeps_order:
            keep_order(self.body)
            self.weights.kernels = set()
        self.inputs = [value for value in self.body.inputs if value not in self.body.initializers]
        self.keywords = tuple(unique_identifiers(value.name or "" for value in self.inputs))
        self._keywords = dict(zip(self.keywords, self.inputs, strict=True))
        self._keywords |= {value.name or "": value for value in self.inputs}
        axes = batch if isinstance(batch, Mapping) else {}
        self._batches = None if batch is False else Batches(self.inputs, self.body.outputs, axes, self._static)
        self._warned = False
        self._asked: dict[frozenset[str], Program] = {}
        self._calls = Calls(self._run, self.static_inputs, set_deciding_inputs(self.body))

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, as in the model."""
        return tuple(value.name or "" for value in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, as in the model."""
        return tuple(value.name or "" for value in self.body.outputs)

    @cached_property
    def static_inputs(self) -> tuple[str, ...]:
        """The inputs whose values decide shapes: under `jax.jit`, close over them instead of passing them."""
        return tuple(value.name or "" for value in self.inputs if value in self._static)

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by name, each read when it is looked up; two-dimensional kernels as (height, width, in,
        out).
        """
        return self.weights.parameters

    @cached_property
    def modules(self) -> NodeModule:
        """The tree of those modules that the model's file names.

        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
        ...     agraph (float[N] x) => (float[N] y) { y = Relu(x) }''')
        >>> model.graph.node[0].name = "/encoder/act/Relu"
        >>> [module.path for module in from_onnx(model).modules.walk()]
        ['', 'encoder', 'encoder.act']
        """
        return self._modules[0]

    @cached_property
    def _modules(self) -> tuple[NodeModule, dict[BoundNode, NodePlace], tuple[Item, ...]]:
        sizes: Parameters = {v: (n, self.body.initializers[v].size) for n, v in self.weights.initializers.items()}
        return arranged(self.body, sizes)

    @property
    def places(self) -> dict[BoundNode, NodePlace]:
        """The place of each of the model's nodes in the tree of `modules`."""
        return self._modules[1]

    @property
    def name(self) -> str:
        """The name of the model's graph."""
        return self.model.graph.name or ""

    @overload
    def to_source(
        self, folder: Folder = None, *, inputs: Given = None, framework: Classes = "nnx", strict: bool = False
    ) -> ModuleSource: ...
    @overload
    def to_source(
        self, folder: Folder = None, *, inputs: Given = None, framework: Literal["jax"], strict: bool = False
    ) -> Source: ...
    @overload
    def to_source(
        self, folder: Folder = None, *, inputs: Given = None, framework: Literal["burn"], strict: bool = False
    ) -> CrateSource: ...
    @overload
    def to_source(
        self, folder: Folder = None, *, inputs: Given = None, framework: Framework, strict: bool = False
    ) -> AnySource: ...
    @takes("to_source", inputs="named", framework="text", strict="flag")
    def to_source(
        self, folder: Folder = None, *, inputs: Given = None, framework: Framework = "nnx", strict: bool = False
    ) -> AnySource:
        """Print the program, with its values for finite inputs, as source that needs only the framework and
        safetensors.

        Args:
          folder: where to write `model.py` and its weights; nothing is written if None.
          inputs: by name, sizes that differ from the declared ones, such as `("b", 3, "32*h", "32*w")`, and arrays for
            inputs whose values decide shapes, which become constants. Constraints on sizes that arithmetic decides are
            inferred.
          framework: `"nnx"` and `"equinox"` print classes: the modules, layers and loops that the file identifies, a
            function `load()`, and `model.safetensors` with module paths as keys. `"jax"` prints one function of the
            weights and the inputs, with `model.py.<digest>.safetensors`; `"burn"` prints a Rust crate with a test of
            its own.
          strict: keep guards that act on NaN alone, such as `where(isnan(x), 0, x)`. By default, those of classes and
            crates go where finite inputs and weights give no NaN.

        Returns:
          The source: its text in `code`, its weights in `tensors`.

        Raises:
          ValueNotKnown: a shape depends on an input that has no array in `inputs`.
          InvalidArgument: an input has no declared shape and is not in `inputs`, or the framework is unknown.
          SaveError: a file cannot be written, or there is a `model.py` that was not generated.

        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> program = from_onnx(onnx.parser.parse_model(text))
        >>> print(program.to_source(framework="jax").code.splitlines()[-1])
            return nn.relu(x)
        """
        from jaxport.codegen import printed
        from jaxport.verify.importing import sample_of

        with boundary("the program cannot be printed as source", where=f"`{self.name}`"):

            def sample(names: Collection[str], elements: Mapping[str, np.ndarray]) -> Any:
                return sample_of(self, names, {**(inputs or {}), **elements})

            source = printed(self, inputs, framework, sample, strict=strict)
            if folder is not None:
                source.save(folder)
            return source

    def explain(self, inputs: Mapping[str, object] | None = None) -> GraphExplanation:
        """Return the graph after each phase of the import: loaded, resolved, folded, finalized.

        Args:
          inputs: as for `to_source`: sizes that differ from those that the model declares, and arrays for inputs whose
            values decide shapes. If the program cannot be traced, the last phase names the node at which tracing stops.

        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> program = from_onnx(onnx.parser.parse_model(text))
        >>> print(program.explain()["resolved"])
        resolved: 1 operation
          operation   served by   since
          Relu        nn.relu     6
        """
        with boundary("the program cannot be explained", where=f"`{self.name}`"):
            return explain(self, inputs)

    def verify(self, inputs: Sequence[object] | Mapping[str, object] | None = None, **options: Any) -> Report:
        """Run the program in JAX and the model in ONNX Runtime on the same inputs, and compare every output.

        Args:
          inputs: the inputs by position or by name; omitted ones are sampled.
          options: `sizes`, `rtol`, `atol`, `avoid`, `seed`, `check`, as for `jaxport.verify.verify_program`.

        Raises:
          VerificationFailed: the two sides disagree, unless `check` is false.
          InvalidArgument: the inputs or sizes do not fit the model, or an input cannot be sampled.
          RunError: ONNX Runtime refuses the model, or fails.

        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> program = from_onnx(onnx.parser.parse_model(text))
        >>> program.verify().ok
        True
        """
        from jaxport.verify import verify_program

        return verify_program(self, inputs, **options)

    def save(self, path: str | os.PathLike[str], params: Mapping[str, Array] | None = None) -> None:
        """Write the model with these parameters as an ONNX file, with its graph unchanged.

        Args:
          path: the file; if the weights are too large for it, they go into `<path>.<digest>.data`.
          params: arrays for all parameters, as `params` has them; the model's own if None.

        Raises:
          InvalidArgument: parameters are missing, unknown, or of another shape.
          SaveError: the path cannot be written, or the disk is full; an existing file is kept.

        >>> from jaxport import from_onnx
        >>> import onnx.parser, tempfile
        >>> program = from_onnx(
        ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
        ...     agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }''')
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program.save(f"{folder}/doubled.onnx", {"w": 2 * program.params["w"]})
        ...     print(from_onnx(f"{folder}/doubled.onnx").params)
        {'w': Array([2., 4.], dtype=float32)}
        """
        with boundary("the program cannot be saved", where=f"`{self.name}`"):
            saving.save(self.weights.written(self.model, self.params if params is None else params), path)

    def with_params(self, params: Mapping[str, Array] | str | os.PathLike[str]) -> Program:
        """Return the program with other values of its parameters.

        Args:
          params: arrays for some or all parameters, as in `params`; or the path of a file that printed Burn source has
            saved in the folder of its crate, which also contains statistics.

        Raises:
          InvalidArgument: a parameter is unknown or of another shape; the file's weights are not those of this model.

        >>> import numpy as np
        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> program = from_onnx(
        ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
        ...     agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }''')
        ... )
        >>> program.with_params({"w": 2 * program.params["w"]})(np.ones(2, np.float32))
        Array([2., 4.], dtype=float32)
        """
        with boundary("the program cannot have these parameters", where=f"`{self.name}`"):
            if isinstance(params, Mapping):
                model = self.weights.written(self.model, {**self.weights.arrays, **params})
            else:
                model = self.weights.filled(self.model, read_back(params, self.weights.tensors))
            return self._variant(model)

    def _variant(self, model: ir.Model | None = None, **options: object) -> Program:
        """Return the program of another model, or with other options: its own are what is left out."""
        trained = [name for name in self.weights if name not in self.weights.states]
        changed: dict[str, Any] = {"trainable": trained, **self._options, **options}
        return Program(self.model if model is None else model, **changed)

    def __reduce__(self) -> tuple:
        """Pickle the model as ONNX, and the options of the import; a model of over 2 GB has to be saved instead."""
        options = {"trainable": list(self.weights), **self._options}
        return _unpickled, (saving.to_proto(self.model).SerializeToString(), options)

    def __copy__(self) -> Program:
        return self

    def __deepcopy__(self, _: dict[int, object]) -> Program:
        return self

    @property
    def param_specs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shape and dtype of each parameter, without reading any."""
        return self.weights.specs

    @cached_property
    def roles(self) -> dict[str, Role]:
        """What each initializer is, by name: a "parameter", a "statistic", or a "constant".

        Training changes parameters. Statistics are other state of the model: what calls in training mode change, such
        as the averages of batch normalization, and the buffers in the state dict of a module of PyTorch. In
        a file that jaxport exported, the metadata says which is which. In other files it follows from the way
        operators use a tensor, and from the names that exporters give.

        >>> from jaxport import from_onnx
        >>> import onnx.parser
        >>> program = from_onnx(
        ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
        ...     agraph (float[1, 2, n] x) => (float[1, 2, n] y) <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m =
        ...     {0, 0}, float[2] v = {1, 1}> { y = BatchNormalization(x, s, b, m, v) }''')
        ... )
        >>> program.roles
        {'s': 'parameter', 'b': 'parameter', 'm': 'statistic', 'v': 'statistic'}
        """
        return self.weights.roles

    @property
    def untied(self) -> dict[str, str]:
        """The parameters that share a tensor of the file with others, by name, with that tensor's name (see `ties`)."""
        return {name: tensor for name, tensor in self._untied.items() if name in self.weights}

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """All other initializers, by name: statistics, exponents, scales, masks, integer tables, shapes. They are not
        trained.
        """
        return self.weights.constants

    def __call__(self, /, *inputs: object, **named: Any) -> Any:
        """Return the outputs with the program's own parameters, as `apply(program.params, …)` does."""
        try:
            outputs = self._calls.again((*inputs, *named.values()), named)
        except Exception:
            with boundary("the program cannot be called with these inputs", where=f"`{self.name}`"):
                raise
        if outputs is not None:
            return self._packed(*outputs)
        rng = named.pop("rng", None)
        return self._applied(None, inputs, named, rng)

    def apply(
        self,
        params: Mapping[str, Array],
        /,
        *inputs: object,
        rng: Key | None = None,
        **named: object,
    ) -> Any:
        """Return the outputs of the model.

        Args:
          params: arrays for the initializers, by name, as `Program.params` has them.
          inputs: the inputs in the model's order: arrays, lists of arrays for sequences, None for an absent optional.
            Under `jax.jit`, the values of a closed-over NumPy array are known: shapes, loops and branches may depend on
            them.
          named: inputs by name, or by the name made into a Python identifier; and initializers that are inputs of the
            graph, too, whose values are the defaults of these.
          rng: a `jax.random` key for the model's random operators; without one they draw the same numbers each time. If
            the model has an input named `rng`, it is that input instead.

        Returns:
          An array if the model has one output, otherwise a NamedTuple in the model's order. Sequences are lists,
          tensors of strings are NumPy arrays.

        Raises:
          InvalidArgument: inputs are missing, unknown, or not of the type that the model declares.
          ModelError: an operator cannot be computed for these inputs.
          ValueNotKnown: a shape depends on values that `jax.jit` does not know.
        """
        return self._applied(params, inputs, named, rng)

    def _applied(
        self,
        params: Mapping[str, Array] | None,
        inputs: Sequence[object],
        named: Mapping[str, object],
        rng: Key | None,
    ) -> object:
        """Return what `apply` returns, for the program's own parameters if `params` is None."""
        if given := {self._defaults[name] for name in named if name in self._defaults}:
            program = self._asking_for(frozenset(given))
            params = None if params is None else {name: array for name, array in params.items() if name not in given}
            by_place = {value.name or "": array for value, array in zip(self.inputs, inputs, strict=False)}
            rest = inputs[len(self.inputs) :]
            named = by_place | {self._defaults.get(name, name): array for name, array in named.items()}
            return program._applied(params, rest, named, rng)
        self._warn_of_narrowing()
        if rng is not None and "rng" in self._keywords:
            rng, named = None, {**named, "rng": rng}
        where = f"`{self.name}`"
        with boundary("the program cannot be called with these inputs", where=where), bounds_are_told(self) as taken:
            given = by_name(self.inputs, self._keywords, inputs, named)
            inputs_taken = self._taken(given)
            taken |= inputs_taken
            arrays = self.weights.arrays if params is None else dict(params)
            outputs = self._calls(arrays, inputs_taken, rng, given if params is None else None, named)
            return self._packed(*map(external, outputs))

    def evaluate(
        self, params: Mapping[str, Array | Tensor], inputs: Mapping[str, object], rng: Key | None = None
    ) -> tuple[RuntimeValue, ...]:
        """Return the outputs in the evaluator's form: host values stay on the host, and uses of recorded inputs are
        recorded.

        Arguments and errors are those of `apply`, with the inputs by name.
        """
        return self._run(params, self._taken(inputs), rng)

    def _taken(self, inputs: Mapping[str, object]) -> dict[str, RuntimeValue]:
        """Return the inputs as the evaluator takes them, by name."""
        given = [(value, value.name or "") for value in self.inputs]
        return {n: checked(v, inputs.get(n), v in self._static, self._batches or ()) for v, n in given}

    def _run(
        self, params: Mapping[str, Array | Tensor], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> tuple[RuntimeValue, ...]:
        if self._batches is None:
            return self._run_once(params, inputs, rng)
        return self._batches.run(lambda batch: self._run_once(params, batch, rng), inputs)

    def _run_once(
        self, params: Mapping[str, Array | Tensor], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> tuple[RuntimeValue, ...]:
        values = {value: inputs[value.name or ""] for value in self.inputs}
        values |= self.weights.values_of(params)
        size = self.weights.constant_bytes + sum(map(bytes_of, jax.tree.leaves(list(values.values()))))
        with budget(self.limits, size):
            # A caller records the modules as blocks, and what is not trained by name.
            if current_recorder() is not None:
                values |= self.weights.untrained
                return evaluate_blocks(self.body, self._modules[2], values, rng)
            return evaluate(self.body, values, rng)

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The initializers that a call may replace, as they are inputs of the graph, too, by the names that it may
        use.
        """
        names = [value.name or "" for value in self.model.graph.inputs if value.name in self.model.graph.initializers]
        return {**dict(zip(unique_identifiers(names), names, strict=True)), **{name: name for name in names}}

    def _asking_for(self, names: frozenset[str]) -> Program:
        """Return the program of which some initializers are inputs."""
        if names not in self._asked:
            model = self.model.clone()
            for name in names:
                model.graph.initializers.pop(name)
            weights = [name for name in self.weights if name not in names]
            self._asked[names] = self._variant(model, trainable=weights)
        return self._asked[names]

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What the file says of itself, by key: its `metadata_props`, and the descriptions of the model and of its
        graph.

        >>> import jaxport, onnx.parser
        >>> model = onnx.parser.parse_model(
        ...     '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
        ... )
        >>> model.metadata_props.add(key="author", value="Ada")  # doctest: +ELLIPSIS
        key: "author"...
        >>> jaxport.from_onnx(model).metadata
        {'author': 'Ada'}
        """
        texts = {"doc_string": self.model.doc_string, "graph.doc_string": self.model.graph.doc_string}
        return {**self.model.metadata_props, **{key: text for key, text in texts.items() if text}}

    @cached_property
    def _packed(self) -> Callable[..., object]:
        """The type of several results; of one, what returns it."""
        names = unique_identifiers(self.output_names, "output")
        return namedtuple("Outputs", names) if len(names) != 1 else lambda output: output

    def _warn_of_narrowing(self) -> None:
        """Warn once about the outputs that are affected by 64-bit types being off."""
        if self._warned or jax.config.read("jax_enable_x64"):
            return
        self._warned = True
        if told := warning_of(self.body, self._static):
            warnings.warn(told, stacklevel=4)

    # `jax.jit` names a callable by these; without them it takes the text of the whole program, for nothing.
    __name__ = "Program"

    @property
    def __code__(self) -> CodeType:
        return type(self).__call__.__code__

    def __repr__(self) -> str:
        return shown(summary(self, str(self._calls)))
