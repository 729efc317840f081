"""Programs that compute the same as another one, of another graph or in another order of axes."""

from __future__ import annotations

import onnx_ir as ir

from jaxport.importer.program import Program

__all__ = ["in_model_order", "rebuilt", "with_all_weights"]


def rebuilt(program: Program, model: ir.Model) -> Program:
    """Return the program of another model that computes the same with the same parameters, under the same options."""
    return Program(model, trainable=list(program.weights), **program._options)


def in_model_order(program: Program) -> Program:
    """Return the same program with images and kernels in the order of axes that the model has: channels first."""
    return Program(program.model, trainable=list(program.weights), **{**program._options, "keeps_order": True})


def with_all_weights(program: Program) -> Program:
    """Return the same program with the weights as parameters, too, that `trainable` leaves out; itself if there are none."""
    if program._trainable is None:
        return program
    weights = dict.fromkeys([*Program(program.model, **program._options).weights, *program.weights])
    if len(weights) == len(program.weights):
        return program
    return Program(program.model, trainable=[*weights], **program._options)
