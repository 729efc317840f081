"""Losses of classification."""

from __future__ import annotations

from jaxport.importer.namespaces import cast, jnp, nn
from jaxport.importer.registry import op


@op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(input, target, weight=None, *, ignore_index=None, reduction="mean"):
    kept = None if ignore_index is None else target != ignore_index
    index = target if kept is None else jnp.where(kept, target, 0)
    loss = -jnp.squeeze(jnp.take_along_axis(input, jnp.expand_dims(index, 1), axis=1), 1)
    weights = None if weight is None else jnp.take(weight, index)
    if kept is not None:
        loss = jnp.where(kept, loss, 0)
        weights = cast(kept, input.dtype) if weights is None else jnp.where(kept, weights, 0)
    loss = loss if weights is None else loss * weights
    if reduction == "mean" and weights is not None:
        return jnp.sum(loss) / jnp.sum(weights)
    return {"none": lambda x: x, "sum": jnp.sum, "mean": jnp.mean}[reduction](loss)


@op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(scores, labels, weights=None, *, ignore_index=None, reduction="mean"):
    log_prob = nn.log_softmax(scores, axis=1)
    loss = negative_log_likelihood(log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob
