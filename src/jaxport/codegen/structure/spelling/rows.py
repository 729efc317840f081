"""Products of matrices that exporters write for linear layers: of flattened rows, and of columns."""

from __future__ import annotations

from jaxport.codegen.structure.spelling.spellings import StepRules
from jaxport.importer.values.recording import Step, Variable

__all__ = ["Rows"]


class Rows(StepRules):
    """Rules on products with a matrix."""

    def of_rows(self, step: Step) -> Variable | Step | None:
        """`(x.reshape(-1, n) @ w + b).reshape(batch, length, m)` is `x @ w + b`."""
        rows, shape = step.args[0], step.outputs.shape
        if not isinstance(rows, Variable) or len(rows.shape) != 2 or len(shape) < 3 or rows.shape[-1] != shape[-1]:
            return None
        total = self.spellings.step(rows, "+")
        for product, bias in (total.args, total.args[::-1]) if total is not None else [(rows, None)]:
            made = self.spellings.step(product, "@")
            flat = self.spellings.step(made.args[0], "jnp.reshape") if made is not None else None
            is_bias = bias is None or (isinstance(bias, Variable) and bias.shape == shape[-1:])
            if made is None or flat is None or not is_bias or not isinstance(made.args[1], Variable):
                continue
            x, kernel = flat.args[0], made.args[1]
            if not isinstance(x, Variable) or len(kernel.shape) != 2:
                continue
            whole, output = (*shape[:-1], kernel.shape[0]), Variable(shape, step.outputs.dtype)
            if x.shape != whole:
                x = self.call(flat, "jnp.reshape", (x, [*whole]), whole)
            y = self.add(Step("operator", "@", (x, kernel), {}, output, made.node))
            if bias is None:
                return y
            return Step("operator", "+", (y, bias), {}, step.outputs, step.node)
        return None

    def of_columns(self, step: Step) -> Step | None:
        """`w @ x.transpose(0, 2, 1)` is `(x @ w.T).transpose(0, 2, 1)`, of a parameter."""
        kernel, columns = step.args
        moved = self.spellings.step(columns, "jnp.transpose")
        if not isinstance(kernel, Variable) or kernel not in self.weights or len(kernel.shape) != 2:
            return None
        if moved is None or step.kwargs:
            return None
        x, order = moved.args if len(moved.args) == 2 else (None, ())
        if not isinstance(x, Variable) or order != (0, 2, 1):
            return None
        turned = self.call(step, "jnp.transpose", (kernel, (1, 0)), kernel.shape[::-1])
        shape = (*x.shape[:-1], kernel.shape[0])
        y = self.add(Step("operator", "@", (x, turned), {}, Variable(shape, step.outputs.dtype), step.node))
        return Step("call", "jnp.transpose", (y, (0, 2, 1)), {}, step.outputs, step.node)
