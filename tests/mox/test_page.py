"""The page of a Mox: its structure, and in a browser where there is one."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from urllib.parse import quote

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from lxml import etree

import jaxport
from jaxport.mox import lora
from tests.mox.models import CASES

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(params=CASES)
def mox(request):
    case = CASES[request.param]()
    return jaxport.make_mox(case.fn)(*case.args).sub(case.dense, lora(rank=2))


def test_there_is_a_row_for_each_element(mox, tmp_path):
    mox.show().save(tmp_path / "model.html")
    page = (tmp_path / "model.html").read_text(encoding="utf-8")
    tree = etree.HTML(page)
    rows = tree.xpath("//*[contains(concat(' ', @class, ' '), ' row ')]")
    assert len(rows) == len(mox.tree.nodes)
    for row, node in zip(rows, mox.tree.nodes, strict=True):
        assert (node.path if node.block is not None else node.equation.primitive.name) in "".join(row.itertext())
    hues = set(re.findall(r"--hue: (\d+)", page))
    assert len(hues) > 2
    assert "config" in page
    assert "http" not in page.replace("https://www.w3.org", "")


def test_arrays_are_summarised():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    model.kernel[...] = jnp.asarray([[0.0, 1, 2], [3, 4, 5]])
    model.bias[...] = jnp.asarray([jnp.nan, 0, 0])
    shown = html.unescape(jaxport.make_mox(model)(jnp.ones((1, 2))).show().data)
    assert "kernel: f32[2,3] mean 2.5, 0 to 5 █" in shown
    assert "bias: f32[3] with infinities or NaN" in shown


def test_names_do_not_end_the_script(tmp_path):
    mox = jaxport.make_mox(jax.jit(lambda x: jnp.sin(x)))(jnp.ones(2))
    object.__setattr__(mox, "name", "</script><b>")
    mox.show().save(tmp_path / "model.html")
    page = (tmp_path / "model.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 1


def test_a_file_that_cannot_be_written(tmp_path):
    mox = jaxport.make_mox(jnp.sin)(jnp.ones(2))
    with pytest.raises(jaxport.errors.SaveError, match="cannot be written"):
        mox.show().save(tmp_path / "missing" / "model.html")


@pytest.mark.skipif(BROWSER is None, reason="no browser")
@pytest.mark.parametrize(("query", "count"), [("//Linear[@path='layers.0.up']", 2), ("//LayerNorm", 2), ("relu", 2)])
def test_a_browser_finds_what_a_query_hits(query, count, tmp_path):
    case = CASES["nnx"]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    mox.show().save(tmp_path / "model.html")
    address = f"{(tmp_path / 'model.html').as_uri()}#{quote(query)}"
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
        address,
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=60)
    wanted = mox.select(query).count() if query.startswith("/") else count
    assert f'<span id="count">{wanted} found</span>' in done.stdout, done.stderr[-2000:]
    tree = etree.HTML(done.stdout)
    assert len(tree.xpath("//*[contains(concat(' ', @class, ' '), ' hit ')]")) == wanted
