"""The page of third-party packages is that of the tests' sources."""

from __future__ import annotations

from scripts import clients_page


def test_the_page_is_current() -> None:
    assert clients_page.TARGET.read_text(encoding="utf-8") == clients_page.page(), "run scripts/clients_page.py"


def test_each_package_has_programs() -> None:
    assert {module for module, _ in clients_page.programs()} == {
        *map(clients_page.module_of, clients_page.requirements())
    }
