"""Sequences, which are Python lists on the host, and optionals, for which None is an empty one."""

from __future__ import annotations

from jaxport.importer.limits import budget_in_force
from jaxport.importer.resolving.registry import REQUIRED, Host, earlier, op
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import host
from jaxport.importer.values.namespaces import jnp


@op("SequenceConstruct", since=11)
def sequence_construct(*inputs):
    return list(inputs)


@op("SequenceEmpty", since=11)
def sequence_empty(*, dtype=1):
    dtype_of(dtype)
    return []


@op("SequenceInsert", since=11)
def sequence_insert(input_sequence, tensor, position: Host | None = None):
    at = len(input_sequence) if position is None else int(position)
    return [*input_sequence[:at], tensor, *input_sequence[at:]]


@op("SequenceErase", since=11)
def sequence_erase(input_sequence, position: Host | None = None):
    at = (-1 if position is None else int(position)) % len(input_sequence)
    return [*input_sequence[:at], *input_sequence[at + 1 :]]


@op("SequenceAt", since=11)
def sequence_at(input_sequence, position: Host):
    return input_sequence[int(position)]


@op("SequenceLength", since=11)
def sequence_length(input_sequence):
    return host(len(input_sequence))


@op("ConcatFromSequence", since=11)
def concat_from_sequence(input_sequence, *, axis, new_axis=0):
    return jnp.stack(input_sequence, axis=axis) if new_axis else jnp.concatenate(input_sequence, axis=axis)


@op("SplitToSequence", since=11)
def split_to_sequence(input, split: Host | None = None, *, axis=0, keepdims=1):
    size = input.shape[axis]
    if split is None:
        budget_in_force().check_elements(size)
        parts = list(jnp.split(input, size, axis=axis))
        return parts if keepdims else [jnp.squeeze(part, axis) for part in parts]
    ends = (
        range(int(split), size, int(split)) if split.ndim == 0 else [sum(split[: i + 1]) for i in range(len(split) - 1)]
    )
    budget_in_force().check_elements(len(ends) + 1)
    return list(jnp.split(input, list(ends), axis=axis))


@op("SequenceMap", since=17)
def sequence_map(input_sequence, *additional_inputs, body):
    rows = [
        body(element, *(other[i] if isinstance(other, list) else other for other in additional_inputs))
        for i, element in enumerate(input_sequence)
    ]
    return tuple(list(column) for column in zip(*rows, strict=True))


@op("Optional", since=15)
def optional(input=None, *, type=None):
    return input


@op("OptionalHasElement", since=18)
def optional_has_element(input=None):
    return host(input is not None)


earlier("OptionalHasElement", since=15, until=17, input=REQUIRED)


@op("OptionalGetElement", since=15)
def optional_get_element(input):
    return input
