"""Attention as one call, however its products, scale, masks and shared heads are spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from jaxport.codegen.structure.spellings import StepRules, call_step, number
from jaxport.importer.host import Dim, HostValue, RuntimeValue, Shape
from jaxport.importer.recording import Step, Variable

__all__ = ["Attentions"]


@dataclass(frozen=True, eq=False)
class Attended:
    """`softmax(query @ keyᵀ * scale + sum(biases)) @ value`, of (batch, heads, positions, features).

    If it `is_causal`, each query sees the keys up to its own position.
    """

    query: Variable
    key: Variable
    value: Variable
    scale: float
    biases: tuple[Variable, ...]
    is_causal: bool = False


@dataclass(eq=False)
class Attentions(StepRules):
    """Rules on softmax of scores, on products with it, and on rotary embeddings before."""

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

    def mask_of(self, step: Step) -> None:
        """Name the addend of the scores of an attention `mask`."""
        total = self.spellings.step(step.args[0], "+")
        if total is not None and len(step.outputs.shape) > 2:
            for mask, scores in (total.args, total.args[::-1]):
                if isinstance(mask, Variable) and self._is_scores(scores):
                    mask.hint = "mask"
                    return

    def attention(self, step: Step) -> Step | None:
        """`softmax(q @ k.mT * scale + bias) @ v` is an attention of JAX, for which heads are after positions."""
        scores = self._attended(step)
        if scores is None:
            return None
        turned = [
            self.call(step, "jnp.transpose", (x, (0, 2, 1, 3)), [x.shape[axis] for axis in (0, 2, 1, 3)])
            for x in (scores.query, scores.key, scores.value)
        ]
        options: dict[str, RuntimeValue] = {}
        if scores.biases:
            bias = scores.biases[0]
            for other in scores.biases[1:]:
                bias = self.add(
                    Step("operator", "+", (bias, other), {}, Variable(_broadcast(bias, other), bias.dtype), step.node)
                )
            missing = 4 - len(bias.shape)
            if missing:
                shape = (*[1] * missing, *bias.shape)
                bias = self.call(step, "jnp.expand_dims", (bias, tuple(range(missing))), shape)
            bias.hint, options["bias"] = "mask", bias
        if abs(scores.scale * scores.query.shape[-1] ** 0.5 - 1) > 1e-6:
            options["scale"] = scores.scale
        if scores.is_causal:
            options["is_causal"] = True
        shape = [step.outputs.shape[axis] for axis in (0, 2, 1, 3)]
        attended = self.call(step, "nn.dot_product_attention", tuple(turned), shape, **options)
        return call_step(step, "jnp.transpose", attended, (0, 2, 1, 3))

    def _is_scores(self, value: RuntimeValue) -> bool:
        """Whether a value is a product of two activations."""
        return self._operands(self._made_by(self.spellings.scaled(value)[0])) is not None

    def _attended(self, product: Step) -> Attended | None:
        """Return the attention that a step ends: a product, or the reshape of one to all heads."""
        weights, value = self._operands(product) or (None, None)
        softmax = self.spellings.step(weights, "nn.softmax")
        if softmax is None or value is None or softmax.kwargs.get("axis") not in (-1, 3):
            return None
        scores = softmax.args[0]
        if not isinstance(scores, Variable) or len(scores.shape) != 4 or softmax.kwargs.keys() != {"axis"}:
            return None
        visible = self._without_future(scores)
        is_causal, scores = visible is not None, visible or scores
        scores, biases = self._without_biases(scores) or (scores, ())
        scores, scale = self.spellings.scaled(scores)
        inner = self._operands(self._made_by(scores))
        if inner is None or not isinstance(scores, Variable):
            return None
        (query, of_query), (turned, of_key) = map(self.spellings.scaled, inner)
        scale *= of_query * of_key
        key = self._with_last_axes_swapped(turned)
        if key is None or not isinstance(query, Variable) or scale <= 0:
            return None
        every = (query, key, value, *biases)
        if any(x.dtype != np.float32 for x in every) or any(len(x.shape) != 4 for x in (query, key, value)):
            return None
        batch, heads, _, features = query.shape
        if key.shape != value.shape or key.shape[0] != batch or key.shape[3] != features:
            return None
        if not _is_multiple(heads, key.shape[1]) or not all(_fits(bias.shape, scores.shape) for bias in biases):
            return None
        if not isinstance(features, int) or features < 1:
            return None
        few_keys, few_values = self._repeated(key), self._repeated(value)
        if few_keys is not None and few_values is not None and few_keys.shape[1] == few_values.shape[1]:
            key, value = few_keys, few_values
        return Attended(query, key, value, scale, biases, is_causal)

    def _made_by(self, value: RuntimeValue) -> Step | None:
        return self.spellings.made.get(value) if isinstance(value, Variable) else None

    def _operands(self, product: Step | None) -> tuple[Variable, Variable] | None:
        """Return the operands of a product of activations; or of one in which a head of the second serves several of the first."""
        if product is None or product.form == "vmap":
            return None
        if product.name == "@":
            a, b = product.args
            return (a, b) if isinstance(a, Variable) and isinstance(b, Variable) else None
        inner = self.spellings.step(product.args[0], "@") if product.name == "jnp.reshape" else None
        rows = self.spellings.step(inner.args[0], "jnp.reshape") if inner is not None else None
        if inner is None or rows is None:
            return None
        left, right = rows.args[0], inner.args[1]
        if not all(isinstance(x, Variable) and len(x.shape) == 4 for x in (left, right, inner.args[0])):
            return None
        batch, heads, length, _ = left.shape
        few = right.shape[1]
        together = (batch, few, heads // few * length, left.shape[3]) if _is_multiple(heads, few) else None
        is_whole = product.outputs.shape == (batch, heads, length, right.shape[3])
        return (left, right) if inner.args[0].shape == together and is_whole else None

    def _without_future(self, value: RuntimeValue) -> Variable | None:
        """Return the scores from which `where(causal, scores, -inf)` hides the keys behind each query."""
        hidden = self.spellings.step(value, "jnp.where")
        if hidden is None or len(hidden.args) != 3 or hidden.kwargs or number(hidden.args[2]) != -math.inf:
            return None
        mask, scores, _ = hidden.args
        ahead = self.spellings.step(mask, ">=")
        distance = self.spellings.step(ahead.args[0], "-") if ahead is not None and number(ahead.args[1]) == 0 else None
        if distance is None or not isinstance(scores, Variable) or scores.shape != value.shape:
            return None
        rows, columns = distance.args
        added = self.spellings.step(rows, "jnp.expand_dims")
        is_column = added is not None and added.args[1:] in ((1,), ((1,),))
        queries = self._counted(added.args[0]) if added is not None and is_column else None
        lengths = queries, self._counted(columns)
        return scores if lengths == tuple(scores.shape[-2:]) else None

    def _counted(self, value: RuntimeValue) -> Dim | None:
        """Return how many numbers from zero a value counts, in order."""
        if isinstance(value, HostValue):
            counts = value.ndim == 1 and not value.symbolic and np.array_equal(value.data, np.arange(value.size))
            return value.size if counts else None
        step = self.spellings.step(value, "jnp.arange")
        return step.args[0] if step is not None and len(step.args) == 1 and not step.kwargs else None

    def _without_biases(self, value: RuntimeValue) -> tuple[RuntimeValue, tuple[Variable, ...]] | None:
        """Return the scores that a value is the sum of, and what is added to them; None if it has no scores."""
        if self._is_scores(value):
            return value, ()
        total = self.spellings.step(value, "+")
        for bias, other in (total.args, total.args[::-1]) if total is not None else ():
            unbiased = self._without_biases(other) if isinstance(bias, Variable) else None
            if unbiased is not None:
                return unbiased[0], (*unbiased[1], bias)
        return None

    def _repeated(self, value: Variable) -> Variable | None:
        """Return the value whose heads another repeats, each several times in a row, as grouped queries need them."""
        merged = self.spellings.step(value, "jnp.reshape")
        broad = self.spellings.step(merged.args[0], "jnp.broadcast_to") if merged is not None else None
        added = self.spellings.step(broad.args[0], "jnp.expand_dims") if broad is not None else None
        if added is None or broad is None or len(broad.outputs.shape) != 5 or len(added.args) != 2:
            return None
        origin, axes = added.args
        heads, times = broad.outputs.shape[1:3]
        known = isinstance(heads, int) and isinstance(times, int) and heads * times == value.shape[1]
        if not isinstance(origin, Variable) or axes not in (2, (2,)) or not known:
            return None
        return origin if origin.shape == (value.shape[0], heads, *value.shape[2:]) else None

    def _with_last_axes_swapped(self, value: RuntimeValue) -> Variable | None:
        """Return a value whose last two axes are those of another in the other order, as that other value.

        Its own axes may have been brought into their order from any other: it is a transpose then as well.
        """
        turned = self.spellings.step(value, "jnp.transpose")
        if turned is None or len(turned.args) != 2 or len(turned.args[1]) != 4:
            return None
        origin, order = turned.args
        if order == (0, 1, 3, 2):
            return origin
        shape = tuple(origin.shape[axis] for axis in (*order[:2], order[3], order[2]))
        swapped = Variable(shape, origin.dtype)
        step = Step("call", "jnp.transpose", (origin, (*order[:2], order[3], order[2])), {}, swapped, turned.node)
        self.spellings.note(step)
        return swapped


def _broadcast(a: Variable, b: Variable) -> Shape:
    """Return the shape of the sum of two values, each axis of which has one element or all."""
    rank = max(len(a.shape), len(b.shape))
    pairs = zip(*((*[1] * (rank - len(x.shape)), *x.shape) for x in (a, b)), strict=True)
    return tuple(second if isinstance(first, int) and first == 1 else first for first, second in pairs)


def _is_multiple(many: Dim, few: Dim) -> bool:
    """Whether a number of heads is the other one, or a multiple of it."""
    return many is few or (isinstance(many, int) and isinstance(few, int) and few > 0 and many % few == 0)


def _fits(shape: Shape, whole: Shape) -> bool:
    """Whether a bias can be broadcast to scores: each axis has one element, or all."""
    return len(shape) <= 4 and all(a == b or a == 1 for a, b in zip(shape[::-1], whole[::-1], strict=False))
