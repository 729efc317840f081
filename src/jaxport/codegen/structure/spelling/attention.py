"""The layout of rotary embeddings before an attention, and the names of masks."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxport.codegen.structure.spelling.spellings import StepRules, call_step
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Step, Variable

__all__ = ["Attentions"]


@dataclass(eq=False)
class Attentions(StepRules):
    """Rules on the rotary embeddings before an attention, and on the names of its masks."""

    expanded: dict[Variable, Variable] = field(default_factory=dict)

    def rotary(self, step: Step) -> Step | None:
        """`rotary(x.transpose(0, 2, 1, 3), cos, sin)` is `rotary(x, cos, sin).transpose(0, 2, 1, 3)`."""
        x, *angles = step.args
        turned = self.spellings.step(x, "jnp.transpose")
        if turned is None or turned.args[1:] != ((0, 2, 1, 3),) or not isinstance(turned.args[0], Variable):
            return None
        for_all_heads = []
        for angle, role in zip(angles, ("cos", "sin"), strict=True):
            added = self.spellings.step(angle, "jnp.expand_dims")
            if added is None or added.args[1:] != (1,) or len(added.outputs.shape) != 4:
                return None
            for_all_heads.append(self._expanded(added, role))
        shape = turned.args[0].shape
        rotated = self.call(step, "helper.rotary", (turned.args[0], *for_all_heads), shape)
        return call_step(step, "jnp.transpose", rotated, (0, 2, 1, 3))

    def _expanded(self, added: Step, role: str) -> Variable:
        """Return cosines or sines of (batch, length, size) with an axis of heads, once for all that rotate by them."""
        angle = added.args[0]
        if angle not in self.expanded:
            batch, length, size = angle.shape
            made = self.call(added, "jnp.expand_dims", (angle, 2), (batch, length, 1, size))
            made.hint = role
            self.expanded[angle] = made
        return self.expanded[angle]

    def mask_of_sum(self, step: Step) -> None:
        """Name the addend of the scores of an attention `mask`."""
        total = self.spellings.step(step.args[0], "+")
        if total is not None and len(step.outputs.shape) > 2:
            for mask, scores in (total.args, total.args[::-1]):
                if isinstance(mask, Variable) and self._is_product(scores):
                    mask.hint = "mask"
                    return

    def mask(self, step: Step) -> None:
        """Name what is added to the scores of an attention, or hides them, `mask`."""
        for mask in (step.kwargs.get("bias"), step.kwargs.get("mask")):
            if isinstance(mask, Variable):
                mask.hint = "mask"

    def _is_product(self, value: RuntimeValue) -> bool:
        """Whether a value is a product of two activations, perhaps scaled."""
        product = self.spellings.step(self.spellings.scaled(value)[0], "@")
        return product is not None and all(isinstance(operand, Variable) for operand in product.args)
