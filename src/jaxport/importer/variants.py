"""Programs that compute the same as another one, of another graph or in another order of axes."""

from __future__ import annotations

import onnx_ir as ir

from jaxport.importer.interface import ImportedProgram

__all__ = ["in_model_order", "rebuilt", "with_all_weights"]


def rebuilt(program: ImportedProgram, model: ir.Model) -> ImportedProgram:
    """Return the program of another model that computes the same with the same parameters, under the same options."""
    return program._variant(model)


def in_model_order(program: ImportedProgram) -> ImportedProgram:
    """Return the same program with images and kernels in the order of axes that the model has: channels first."""
    return program._variant(keeps_order=True)


def with_all_weights(program: ImportedProgram) -> ImportedProgram:
    """Return the same program with the weights as parameters, too, that `trainable` leaves out; itself if there are none."""
    if program._trainable is None:
        return program
    weights = dict.fromkeys([*program._variant(trainable=None).weights, *program.weights])
    if len(weights) == len(program.weights):
        return program
    return program._variant(trainable=[*weights])
