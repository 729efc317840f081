"""Make the long description of the package: the README, whose links are absolute on a package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<before>\]\()(?!https?://|#|mailto:)(?P<path>[^)\s]+)(?=\))")


def with_absolute_links(text: str, repository: str) -> str:
    """Return a page whose relative links lead to the files of the repository.

    >>> with_absolute_links("[docs](docs/mox.md), [Burn](https://burn.dev)", "https://example.org/jaxport")
    '[docs](https://example.org/jaxport/blob/main/docs/mox.md), [Burn](https://burn.dev)'
    """
    return _LINK.sub(lambda link: f"{link['before']}{repository}/blob/main/{link['path']}", text)


class CustomMetadataHook(MetadataHookInterface):
    """What hatchling runs while it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, repository)}
