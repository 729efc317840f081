"""The site is built and looked at: on a phone and on a screen, in light and in dark."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.docs.browser import BROWSER, opened

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "out" / "site"
PAGES = {
    "home": "",
    "getting-started": "getting-started/",
    "export": "export/",
    "import": "import/",
    "mox": "mox/",
    "examples": "examples/",
    "coverage": "coverage/",
    "migrating": "migrating/",
}
# Pictures are loaded when they come into sight: all are asked for.
BROKEN = """
Promise.all([...document.images].map(async (image) => {
  image.loading = "eager";
  await image.decode().catch(() => {});
  return image.naturalWidth ? "" : image.src;
})).then((sources) => sources.filter(Boolean))
"""
# What sticks out of the page, unless something around it scrolls by itself.
WIDE = """
[...document.querySelectorAll("article *")].filter((element) => {
  if (element.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false;
  for (let e = element; e.tagName !== "ARTICLE"; e = e.parentElement)
    if (getComputedStyle(e).overflowX !== "visible") return false;
  return true;
}).map((element) => element.outerHTML.slice(0, 120))
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the built site is served."""
    if BROWSER is None:
        pytest.skip("there is no Chromium on PATH")
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(address, tmp_path_factory):
    with opened(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_the_pages_are_whole(page, address, width, height, scheme):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.look(width, height, scheme)
    for name, path in PAGES.items():
        page.visit(f"{address}/{path}")
        shown = page.value("document.body.dataset.mdColorScheme")
        assert shown == ("slate" if scheme == "dark" else "default"), name
        assert page.value("document.documentElement.scrollWidth") <= width, (name, page.value(WIDE))
        assert not page.value(WIDE), name
        assert not page.value(BROKEN), name
        assert not page.errors, (name, page.errors)
        page.picture(SCREENSHOTS / f"{name}-{width}-{scheme}.png")


@pytest.mark.slow
def test_the_browser_sees_what_is_wrong(page, address):
    page.look(390, 844, "light")
    page.visit(f"{address}/")
    page.value("void document.querySelector('article').insertAdjacentHTML('beforeend', '<p style=width:900px>wide')")
    page.value("void document.querySelector('article').insertAdjacentHTML('beforeend', '<img src=/missing.png>')")
    assert len(page.value(WIDE)) == 1
    assert [source.rpartition("/")[2] for source in page.value(BROKEN)] == ["missing.png"]
    page.value("void console.error('wrong')")
    assert any("wrong" in error for error in page.errors)
