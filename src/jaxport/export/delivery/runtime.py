"""Run a model in ONNX Runtime, with any dtype that it supports and any size that fits into memory."""

from __future__ import annotations

import ctypes
import importlib
import math
import os
from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport import saving
from jaxport.errors import NotInstalled, RunError
from jaxport.export.delivery import opsets
from jaxport.export.delivery.requirements import SLOW_ON_CPUS
from jaxport.export.generation import buffers
from jaxport.graph.editing import unpacked
from jaxport.jaxprs import Array
from jaxport.onnx_facts import QUANTIZING

_IN_MEMORY = "weights of this process"


def newest_opset() -> int:
    """Return the newest opset that both the installed ONNX Runtime and the installed onnx support.

    Raises:
      NotInstalled: ONNX Runtime is not installed.
    """
    return min(opsets.loaded_by(_onnxruntime().__version__), opsets.NEWEST)


def is_quantized(model: ir.Model) -> bool:
    """Whether a model rounds values to integers."""
    return any(node.op_type in QUANTIZING for node in model.graph.all_nodes())


def as_written(model: ir.Model, threads: int | None = None) -> Session:
    """Return a session that computes the operators of a model as they are written, quantized ones too.

    ONNX Runtime's fusions of those change values by a step, and each of its threads quantizes the states of a recurrent
    layer for its share of the batch on a scale of its own.
    """
    shared = any(node.op_type == "DynamicQuantizeLSTM" for node in model.graph.all_nodes())
    return Session(model, threads=1 if shared and threads is None else threads, optimize=not is_quantized(model))


class Session:
    """A model loaded in ONNX Runtime's CPU provider.

    The weights are not serialized: the runtime reads them from JAX's memory.

    Args:
      model: a model, or the path of an ONNX file.
      threads: the maximum number of threads of one operator; by default the runtime decides.
      optimize: whether the runtime may rewrite the graph. Its fusions of quantized operators change values by a
        quantization step, so comparisons of those turn it off.
      packs: whether the runtime keeps weights of products in another order, too, which makes runs faster and takes as
        much memory as the weights.

    Raises:
      NotInstalled: ONNX Runtime is not installed.
      RunError: the runtime refuses the model.

    >>> import jaxport
    >>> session = Session(jaxport.to_onnx(lambda x: -x, [("B", 2)]).model, threads=1)
    >>> session.run({"x": np.float32([[1, -2]])})
    [array([[-1.,  2.]], dtype=float32)]
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str],
        *,
        threads: int | None = None,
        optimize: bool = True,
        packs: bool = True,
    ):
        self._runtime = _onnxruntime()
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3  # its warnings are about missed optimizations
        # Otherwise a product with int8 weights also rounds its operand to int8, which no operator specifies.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if not packs:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not optimize:
            options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        source = self._in_memory(model, options) if isinstance(model, ir.Model) else os.fspath(model)
        try:
            self._session = self._runtime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"], disabled_optimizers=SLOW_ON_CPUS
            )
        except _failures() as error:
            opset = model.opset_imports.get("", 0) if isinstance(model, ir.Model) else 0
            unchecked = f"{opsets.unchecked(opset)}\n" if opset > opsets.CHECKED else ""
            needed = opsets.first_release(opset) if opset > opsets.loaded_by(self._runtime.__version__) else None
            raise RunError(
                "ONNX Runtime cannot load the model",
                where="" if isinstance(source, bytes) else f"`{source}`",
                why=unchecked + _message(error),
                instead=f"this is ONNX Runtime {self._runtime.__version__}; "
                + (f"opset {opset} needs {needed}" if needed else "a newer release, or another opset, may work"),
            ) from error
        self.input_names = [value.name for value in self._session.get_inputs()]
        self.output_names = [value.name for value in self._session.get_outputs()]
        ports = (*self._session.get_inputs(), *self._session.get_outputs())
        self._has_texts = any(port.type == "tensor(string)" for port in ports)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self._shared = buffers.shared(metadata, (self.input_names, self.output_names))

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the model."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, inputs: Mapping[str, Array]) -> list[np.ndarray]:
        """Return the outputs for these inputs, by name.

        Args:
          inputs: anything that NumPy takes; bfloat16 and the types below 8 bits as `ml_dtypes`.

        Raises:
          RunError: the runtime fails, or an input does not fit the model.
        """
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        try:
            if self._has_texts:  # its own values hold none
                texts = {name: array.astype(object) for name, array in arrays.items() if array.dtype.kind in "SUT"}
                return list(self._session.run(self.output_names, {**arrays, **texts}))
            return self._run({name: self._ort_value(array) for name, array in arrays.items()})
        except _failures() as error:
            raise RunError("ONNX Runtime cannot run the model", where=_given(arrays), why=_message(error)) from error

    def _run(self, values: Any) -> list[np.ndarray]:
        """Run with one buffer for each static cache, as the past and the present: a copy of the input."""
        if not self._shared:
            return [_array(result) for result in self._session.run_with_ort_values(self.output_names, values)]
        binding = self._session.io_binding()
        # These arrays own the memory, and get the results.
        copies = {output: _array(values[past]).copy() for output, past in self._shared.items()}
        shared = {output: self._ort_value(array) for output, array in copies.items()}
        for name, value in {**values, **{past: shared[output] for output, past in self._shared.items()}}.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.output_names:
            if name in shared:
                binding.bind_ortvalue_output(name, shared[name])
            else:
                binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        results = dict(zip(self.output_names, binding.get_outputs(), strict=True))
        return [copies[name] if name in copies else _array(result) for name, result in results.items()]

    def _in_memory(self, model: ir.Model, options: Any) -> bytes:
        """Return the model as bytes that refer to weights, which `options` take from the model's arrays."""
        parts = saving.frame(model)
        values = model.graph.initializers
        # The runtime removes what no node reads, and then misses it among what it was given.
        read = [bool(values[h.name].uses()) or values[h.name].is_graph_output() for h in parts.headers]
        parts.headers[:], parts.tensors[:] = compress(parts.headers, read), compress(parts.tensors, read)
        for header, tensor in zip(parts.headers, parts.tensors, strict=True):
            initializer = parts.proto.graph.initializer.add()
            initializer.CopyFrom(header)
            if tensor.dtype.bitwidth < 8:  # NumPy's memory layout of these differs from the runtime's
                initializer.raw_data = tensor.tobytes()
            else:
                saving.refer(initializer, _IN_MEMORY, 0, tensor.nbytes)
        pairs = zip(parts.headers, parts.tensors, strict=True)
        referred = [(header.name, tensor) for header, tensor in pairs if tensor.dtype.bitwidth >= 8]
        self._weights = [self._ort_value(tensor.numpy()) for _, tensor in referred]  # the runtime does not own them
        options.add_external_initializers([name for name, _ in referred], self._weights)
        return parts.proto.SerializeToString()

    def _ort_value(self, array: np.ndarray) -> Any:
        """Return an array as the runtime takes it, without a copy if it is in row-major order."""
        array = np.ascontiguousarray(array).reshape(array.shape)  # the former makes a scalar a vector
        make = self._runtime.OrtValue
        if array.dtype.isbuiltin == 1:
            return make.ortvalue_from_numpy(array)
        dtype = ir.DataType.from_numpy(array.dtype)
        if dtype.bitwidth >= 8:  # NumPy lacks the dtype, so the bits are passed
            return make.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.dtype.itemsize}"), int(dtype))
        value, packed = make.ortvalue_from_shape_and_type(array.shape, int(dtype)), ir.Tensor(array).tobytes()
        ctypes.memmove(value.data_ptr(), packed, len(packed))
        return value


def _array(value: Any) -> np.ndarray:
    """Return a result as an array of any dtype; the runtime's binding only supports those of NumPy."""
    dtype, shape = ir.DataType(value.element_type()), tuple(value.shape())
    if dtype.numpy().isbuiltin == 1:
        return value.numpy()
    size = math.ceil(math.prod(shape) * dtype.bitwidth / 8)
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", np.uint8)
    if dtype.bitwidth < 8:
        return unpacked(data, dtype, shape)
    return data.view(dtype.numpy()).reshape(shape)


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise NotInstalled(
            "ONNX Runtime is not installed",
            why="running and verifying a model needs it; exporting and saving do not",
            instead='install it: `pip install "jaxport[runtime]"`',
        ) from error
    return onnxruntime


def _failures() -> tuple[type[Exception], ...]:
    """Return the runtime's exceptions: several classes without a common base, and those of its binding."""
    state = vars(importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state"))
    own = [value for value in state.values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*own, RuntimeError, ValueError)


def _given(arrays: Mapping[str, np.ndarray], most: int = 4) -> str:
    """Return what a model was run on.

    >>> _given({"x": np.zeros((2, 3)), "step": np.zeros(())})
    'x[2, 3], step[]'
    """
    shapes = [f"{name}{list(array.shape)}" for name, array in arrays.items()]
    return ", ".join([*shapes[:most], *([f"{len(shapes) - most} more"] if len(shapes) > most else [])])


def _message(error: Exception) -> str:
    return str(error).removeprefix("[ONNXRuntimeError] : ").strip()
