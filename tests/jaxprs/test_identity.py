"""Mappings and sets of objects that are told apart by identity."""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp

from jaxport.jaxprs.identity import IdentityMap, IdentitySet


class _Part:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("parts do not compare")


def test_a_mapping_takes_keys_that_neither_hash_nor_compare() -> None:
    one, other, array = _Part(), _Part(), jnp.ones(2)
    names: IdentityMap[object, str] = IdentityMap([(one, "one"), (array, "array")])
    assert one in names
    assert other not in names
    assert names.setdefault(one, "again") == "one"
    assert names.setdefault(other, "other") == "other"
    del names[array]
    assert list(map(id, names)) == [id(one), id(other)]
    assert len(names) == 2


def test_a_set_keeps_the_order_of_insertion_and_drops_what_is_discarded() -> None:
    parts = [_Part(), _Part(), _Part()]
    seen = IdentitySet([parts[2], parts[0], parts[2]])
    seen.add(parts[1])
    seen.discard(parts[0])
    seen.discard(_Part())
    assert [id(part) for part in seen] == [id(parts[2]), id(parts[1])]
    assert len(seen) == 2


def test_keys_stay_alive() -> None:
    part = _Part()
    seen, names, alive = IdentitySet([part]), IdentityMap([(part, 1)]), weakref.ref(part)
    del part
    gc.collect()
    assert alive() in seen
    assert alive() in names
