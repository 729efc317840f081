"""A recorded program without operations that have no effect, and with JAX's own calls in place of what an export
spelled out.

Every printer gets the program in this form. A rule rewrites a step only if the result has the same bits for every
input, NaN and -0.0 included. So `x + 0.0`, which makes 0.0 of -0.0, goes only where `x` cannot be -0.0, or where all
that read the sum do not tell one zero from the other; `x - 0.0` and `x * 1.0` always do.
"""

from __future__ import annotations

from dataclasses import replace

from jaxport.codegen.rewriting.same_bits import SAME_BITS
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import readers_of, variables, with_nested
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.recording import map_leaves


def simplified(recorded: RecordedProgram) -> RecordedProgram:
    """Return a recorded program that computes the same with fewer operations.

    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> from jaxport.importer.traced.recorded_program import record
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[n] x) => (float[n] y) <float one = {1}> { h = Mul(x, one) y = Tanh(h) }''')
    ... )
    >>> [step.name for step in simplified(record(program)).steps]
    ['jnp.tanh']
    """
    results = {*variables(recorded.outputs)}
    rewriting = StepRewriting([SAME_BITS], readers=readers_of(with_nested(recorded.steps)), results=results)
    steps = rewriting.all(recorded.steps)
    return replace(recorded, steps=steps, outputs=map_leaves(rewriting.current, recorded.outputs))
