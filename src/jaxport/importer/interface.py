"""An imported program as what records, prints, verifies and explains it sees it: `jaxport.importer.program.Program`;
and programs that compute the same as another one, of another graph or in another order of axes.

`Program` has methods that print and verify it. What does either takes this interface, so that imports form no circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
import onnx_ir as ir

from jaxport.importer.modules import NodeModule, NodePlace
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.tensors.weights import Weights
from jaxport.importer.values.host import Key, RuntimeValue, Tensor
from jaxport.jaxprs import Array


class ImportedProgram(Protocol):
    """A function of the inputs of a model, and the graph that it computes.

    Attributes:
      model: the model.
      body: its graph, with each node bound to the function of its operator.
      weights: its parameters, and how they are stored.
      inputs: the inputs of the graph that are no initializers.
    """

    model: ir.Model
    body: Body
    weights: Weights
    inputs: list[ir.Value]
    _trainable: Collection[str] | None

    @property
    def name(self) -> str:
        """The name of the model's graph."""
        ...

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        ...

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        ...

    @cached_property
    def static_inputs(self) -> tuple[str, ...]:
        """The inputs whose values decide shapes."""
        ...

    @cached_property
    def modules(self) -> NodeModule:
        """The tree of the modules that the file names."""
        ...

    @property
    def places(self) -> Mapping[BoundNode, NodePlace]:
        """The place of each node in the tree of modules."""
        ...

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters, each read when it is looked up."""
        ...

    @property
    def param_specs(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The shape and dtype of each parameter."""
        ...

    @cached_property
    def constants(self) -> dict[str, np.ndarray]:
        """The initializers that are not parameters."""
        ...

    @property
    def untied(self) -> Mapping[str, str]:
        """The parameters that share a tensor of the file with others, with that tensor's name."""
        ...

    def apply(
        self,
        params: Mapping[str, Array],
        /,
        *inputs: object,
        rng: Key | None = None,
        **named: object,
    ) -> Any:
        """Return the outputs as a caller gets them."""
        ...

    def _variant(self, model: ir.Model | None = None, **options: object) -> ImportedProgram:
        """Return the program of another model, or with other options: its own are what is left out."""
        ...

    def evaluate(
        self, params: Mapping[str, Array | Tensor], inputs: Mapping[str, object], rng: Key | None = None
    ) -> Sequence[RuntimeValue]:
        """Return the outputs in the evaluator's form."""
        ...


def rebuilt(program: ImportedProgram, model: ir.Model) -> ImportedProgram:
    """Return the program of another model that computes the same with the same parameters, under the same options."""
    return program._variant(model)


def in_model_order(program: ImportedProgram) -> ImportedProgram:
    """Return the same program with images and kernels in the order of axes that the model has: channels first."""
    return program._variant(keeps_order=True)


def with_states(program: ImportedProgram, has_left_out: bool) -> ImportedProgram:
    """Return the same program with its statistics as arguments beside the parameters; itself if nothing is added.

    If it `has_left_out`, the weights that `trainable` leaves out are parameters, too.
    """
    if has_left_out and program._trainable is not None:
        weights = dict.fromkeys([*program._variant(trainable=None).weights, *program.weights])
        program = program if len(weights) == len(program.weights) else program._variant(trainable=[*weights])
    states = [name for name, role in program.weights.roles.items() if role == "statistic"]
    return program._variant(states=states) if states else program
