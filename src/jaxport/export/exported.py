"""The result of `to_onnx`: the model, callable like the JAX function that it was exported from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxport import saving
from jaxport.blocks.callables.values import is_tracer
from jaxport.errors import InvalidArgument
from jaxport.export import specs
from jaxport.export.delivery.requirements import Requirements
from jaxport.export.explain import Explanation
from jaxport.export.exported_model import ExportedModel
from jaxport.export.generation import decoders, encoders
from jaxport.export.passes.inlining import inlining
from jaxport.export.ports import Port
from jaxport.jaxprs import Parameters, dims
from jaxport.jaxprs.alike import misfit, same_value
from jaxport.printable import printable, shown

if TYPE_CHECKING:
    import onnx

    from jaxport.verify import Report


@dataclass(eq=False, repr=False)
class Exported(ExportedModel):
    """An exported model.

    >>> import numpy as np
    >>> import jax.numpy as jnp, jaxport
    >>> exported = jaxport.to_onnx(jnp.tanh, [("B", 3)], input_names=["x"])
    >>> exported
    <Exported tanh: (x: float32[B, 3]) -> (output: float32[B, 3]), 1 node, opset 18>
    >>> exported(np.zeros((1, 3), np.float32))
    array([[0., 0., 0.]], dtype=float32)

    Attributes:
      model: the `onnx_ir.Model`. The first run loads it, so make changes before.
      fn: the exported JAX callable, with the static parameters bound.
      inputs, outputs: the ports of the model, in order.
      defaults: the values of the weights that are inputs of the graph, by name.
      traced: the traced program, with its pytrees.
      state: how changes of state were treated: "refuse", "outputs" or "discard".
      flags: the positions, among the leaves of the arguments, of the Python bools that are inputs of the model.
      x64: whether 64-bit types were enabled.
      records: how each equation was exported.
      function_calls: the calls of ONNX functions, and why each shares a function or has its own.
      pass_reports: the report of each graph pass.
      precision: the reduced precision of the model; None if it has the function's own precision.
      session: the model in ONNX Runtime, which loads it on first use.
      again: a function that exports another trace with the same options, in the precision of the JAX function unless
        `reduced=True`; `passes=n` runs only the first `n` passes.
    """

    def __repr__(self) -> str:
        count = sum(1 for _ in self.model.graph.all_nodes())
        text = printable(
            f"<Exported {self.model.graph.name}: ({_signature(self._ports)}) -> ({_signature(self.outputs)}), "
            f"{count} {'node' if count == 1 else 'nodes'}, opset {self.model.opset_imports['']}>"
        )
        return shown(text)

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message.

        Raises:
          SaveError: it is larger than 2 GB; use `save`, which then writes the weights to a separate file.
        """
        return saving.to_proto(self.model)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs without a default, in order."""
        return [port.name for port in self._ports]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [port.name for port in self.outputs]

    def save(self, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
        """Write the model to a file, atomically; the weights are streamed from JAX's memory.

        Args:
          path: the file, in a folder that exists.
          external_data: whether the weights go to a file beside it, `<path>.<digest>.data`, named by a digest of its
            content; by default only above 2 GB.

        Raises:
          SaveError: the path cannot be written, or the disk is full; no partial file is left behind, and an existing
            file is kept.
        """
        saving.save(self.model, path, external_data)

    def save_genai(
        self,
        folder: str | os.PathLike[str],
        *,
        context_length: int,
        eos_token_id: int | Sequence[int],
        bos_token_id: int | None = None,
        pad_token_id: int | None = None,
        search: Parameters | None = None,
        encoder: Exported | None = None,
        external_data: bool | None = None,
    ) -> None:
        """Write a decoder step as a folder that onnxruntime-genai can load: `model.onnx` and `genai_config.json`.

        With an encoder, the folder has `encoder_model.onnx` and `decoder_model.onnx` in place of `model.onnx`. Put the
        tokenizer's files into the same folder yourself.

        Args:
          folder: created if it does not exist; its parent has to exist.
          context_length: the maximum number of tokens that the model takes, including those that it generates.
          eos_token_id: the token, or tokens, that end a text.
          bos_token_id, pad_token_id: by default the (first) end token.
          search: options of the search: `{"do_sample": True, "top_k": 50}`.
          encoder: the encoder whose result the decoder attends to, also exported for "genai".
          external_data: as in `save`.

        Raises:
          InvalidArgument: the model's inputs and outputs are not those of `jaxport.decoder_inputs` or
            `jaxport.encoder_decoder_inputs`, or the encoder does not fit.
          SaveError: the folder cannot be written.
        """
        decoder = decoders.Decoder.of(self.model, self.inputs, self.outputs)
        before = None if encoder is None else encoders.Encoder.of(encoder.model, encoder.inputs, encoder.outputs)
        text = encoders.config_text(
            decoder,
            before,
            context_length=context_length,
            eos_token_id=eos_token_id,
            bos_token_id=bos_token_id,
            pad_token_id=pad_token_id,
            search=search or {},
        )
        models = {decoder.filename: self.model}
        if encoder is not None and before is not None:
            models[before.filename] = encoder.model
        saving.save_folder(models, folder, {"genai_config.json": text}, external_data)

    def run(self, inputs: Mapping[str, ArrayLike]) -> list[np.ndarray]:
        """Run the model in ONNX Runtime on inputs in its own names and layout; return a list of arrays.

        Weights that are inputs of the graph take their default values unless `inputs` gives others.

        Raises:
          InvalidArgument: a name is unknown or missing, or a shape or dtype does not fit.
          RunError: ONNX Runtime refuses the model, or fails.
          NotInstalled: ONNX Runtime is not installed.
        """
        if not isinstance(inputs, Mapping):
            raise InvalidArgument(
                f"the inputs are a `{type(inputs).__name__}`",
                where="`exported.run`",
                why="it takes the model's inputs by name",
                instead=f"`exported.run({{{', '.join(f'{name!r}: ...' for name in self.input_names)}}})`, or call the "
                "export like the JAX function: `exported(...)`",
            )
        unknown = sorted(set(map(str, inputs)) - {port.name for port in self.inputs})
        missing = [name for name in self.input_names if name not in inputs]
        if unknown or missing:
            wrong = (
                f"`{unknown[0]}` is not an input of the model" if unknown else f"the input `{missing[0]}` is missing"
            )
            raise InvalidArgument(
                wrong, where="`exported.run`", instead=f"the inputs are {', '.join(self.input_names) or 'none'}"
            )
        ports = [port for port in self.inputs if port.name in inputs]
        arrays = {port.name: port.checked(inputs[port.name], self.x64) for port in ports}
        specs.sizes_of({port.name: port.model_shape for port in ports}, arrays)
        return self.session.run({**self.defaults, **arrays})

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the model with the signature, the layout and the pytrees of the JAX function.

        Returns NumPy arrays in the pytree of the function's result; with `state="outputs"`, a pair of this result and a
        dict of the new state by path.

        Raises:
          InvalidArgument: the arguments do not match those that the function was exported with.
          RunError: ONNX Runtime refuses the model, or fails.
          NotInstalled: ONNX Runtime is not installed.
        """
        return self.unflatten(self.session.run({**self.defaults, **self.flatten(args, kwargs)}))

    def flatten(self, args: Sequence[object], kwargs: Parameters) -> dict[str, np.ndarray]:
        """Return the arguments of the JAX function as inputs of the model, by name.

        Raises:
          InvalidArgument: the structure, a shape or a dtype differs from that of the export.
        """
        traced = self.traced
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        if any(map(is_tracer, leaves)):
            raise InvalidArgument(
                "an export is called inside a JAX transformation",
                where=f"`{self.model.graph.name}`",
                why="it runs in ONNX Runtime, which JAX cannot trace, differentiate or map",
                instead="use the JAX function (`exported.fn`), or `jaxport.from_onnx(exported)`, which JAX can trace",
            )
        if tree != traced.in_tree:
            raise InvalidArgument(
                "the arguments are not those that the function was exported with",
                where=f"the call of `{self.model.graph.name}`",
                why=misfit(traced.in_tree, tree),
                instead="pass the same positional and keyword arguments, static ones left out",
            )
        for index, value in traced.static_inputs.items():
            if not same_value(leaves[index], value):
                raise InvalidArgument(
                    f"an argument is {leaves[index]!r}",
                    why=f"the function was exported with {value!r}, which is baked in",
                    instead="pass that, or export again",
                )
        arrays = [leaf for index, leaf in enumerate(leaves) if index not in traced.static_inputs]
        named = {
            port.name: leaf if hasattr(leaf, "shape") else np.asarray(leaf)
            for port, leaf in zip(self._ports, arrays, strict=True)
        }
        specs.sizes_of({port.name: port.shape for port in self._ports}, named)
        return {port.name: port.to_model(leaf, self.x64) for port, leaf in zip(self._ports, arrays, strict=True)}

    def unflatten(self, results: Sequence[np.ndarray]) -> Any:
        """Return outputs of the model as the JAX function returns them, with the new state if it is among the
        outputs.
        """
        traced = self.traced
        values = [port.to_jax(result) for port, result in zip(self.outputs, results, strict=True)]
        count = traced.out_tree.num_leaves - len(traced.static_outputs)
        arrays = iter(values[:count])
        leaves = [
            traced.static_outputs[index] if index in traced.static_outputs else next(arrays)
            for index in range(traced.out_tree.num_leaves)
        ]
        value = jax.tree.unflatten(traced.out_tree, leaves)
        if self.state != "outputs":
            return value
        return value, dict(zip(traced.state_outputs, values[count:], strict=True))

    def verify(
        self,
        inputs: Any = None,
        *,
        check: bool = True,
        sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        avoid: Mapping[str, Iterable[int]] | None = None,
        seed: int = 0,
        per_block: bool = False,
    ) -> Report:
        """Compare the JAX function and the model on the same inputs: see `jaxport.verify.verify`.

        Raises:
          VerificationFailed: the results differ, and `check` is true.
        """
        from jaxport.verify import verify

        return verify(
            self, inputs, check=check, sizes=sizes, rtol=rtol, atol=atol, avoid=avoid, seed=seed, per_block=per_block
        )

    def __deepcopy__(self, _: dict[int, object]) -> Exported:
        """Return the same export with a model of its own, which shares the weights."""
        return replace(self, model=self.model.clone())

    def __copy__(self) -> Exported:
        return replace(self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: the JAX function and what was traced of it live in this process.

        Raises:
          InvalidArgument: always.
        """
        raise InvalidArgument(
            "an export cannot be pickled",
            where=f"`{self.model.graph.name}`",
            why="it holds the JAX function that it was exported from",
            instead="`exported.save(path)`, and `jaxport.from_onnx(path)` in the other process; or pickle what that "
            "returns",
        )

    def inlined(self) -> Exported:
        """Return the same export without ONNX functions: calls are replaced by their bodies, without copying
        weights.
        """
        copy = self.model.clone()  # which shares the weights
        inlining(copy)
        return replace(self, model=copy)

    @property
    def requirements(self) -> Requirements:
        """What a runtime needs to run the model: opset, kernels, control flow, dtypes; print it."""
        return Requirements.of(self.model)

    def explain(self) -> Explanation:
        """Return a report on how each equation was exported: the user's line, the block's path, the rule, the nodes."""
        return Explanation.of(self.records, self.function_calls, self.pass_reports, self.requirements)


def _signature(ports: Sequence[Port]) -> str:
    return ", ".join(
        f"{port.name}: {(port.declared or port.dtype).name}[{', '.join(str(dims.label(d)) for d in port.shape)}]"
        for port in ports
    )
