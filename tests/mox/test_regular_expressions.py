"""`matches` in queries: what Python's own expressions match, in bounded time."""

import re
import time

import jax.numpy as jnp
import pytest

import jaxport
from jaxport.blocks.marking.boundary import boundary
from jaxport.mox.querying import regex
from jaxport.mox.querying.regex import matches

TEXTS = ["", "a", "ab", "layers.10.mlp", "aaab", "A b_1", "é名", "a\nb", "q-k", "x" * 20, "0", "_", "a.b.c\n"]
PATTERNS = [
    "", "a", "^a", "b$", "^$", r"\d+", r"^\w+\.\d{1,2}\.", "[a-c]+b", "[^a-z]", "a|b", "(a|aa)+b", "(?:x+)+$", r"\bmlp\b",
    r"\Bb", "(?i)LAYERS", "(?i)[A-C]B", ".b", "(?s)a.b", "(?m)^b", r"\A\w", r"\w\Z", "a*?b", "x{20}", "x{21}", "x{,3}$",
    "(a*)*", "(a*)*b", r"\s", r"[\d_]", r"[^\W\d]", "a(?=b)", "a(?!b)", "(a{0,3}b?){2}", r"\S\D", "((a?)b?)+c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_python(pattern):
    found = [matches(text, pattern) for text in TEXTS]
    assert found == [re.search(pattern, text) is not None for text in TEXTS]


@pytest.mark.parametrize(
    "pattern", [r"(a+)+b", r"(a|a)*b", r"(a|aa)+$b", r"a*a*a*a*a*a*b", r"(.*)*(.*)*(.*)*x$", "(a?){60}a{60}b"]
)
def test_no_pattern_takes_minutes(pattern):
    mox = jaxport.make_mox(lambda x: boundary(jnp.sin, target="m." + "a" * 60)(x))(1.0)
    start = time.process_time()
    assert mox.select(f"//*[matches(@target, '{pattern}')]", strict=False).count() == 0
    assert time.process_time() - start < 5


def test_what_is_refused():
    mox = jaxport.make_mox(jnp.sin)(1.0)
    for pattern, why in (("(a)\\1", "back reference"), ("(?<=a)b", "looks behind"), ("(?i:a)b", "flags")):
        with pytest.raises(jaxport.QueryError, match=why):
            matches("aab", pattern)
    with pytest.raises(jaxport.QueryError, match="cannot be evaluated"):
        mox.select("//sin[matches(@tag, '(')]", strict=False)


def test_the_number_of_steps_has_a_bound(monkeypatch):
    monkeypatch.setattr(regex, "_MOST", 10)
    with pytest.raises(jaxport.QueryError, match="takes too long"):
        matches("a", "a?" * 100)
