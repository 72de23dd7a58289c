"""The site builds without a warning, is whole, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

from clefq.cli.main import app


class Page(HTMLParser):
    """Anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values["id"]} if "id" in values else set()
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_sphinx_has_nothing_to_warn_of(built: tuple[Path, str]) -> None:
    assert built[1] == ""


def test_every_link_and_anchor_is_there(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = target.is_file() and (
                not parts.fragment
                or target not in pages
                or unquote(parts.fragment) in pages[target].ids
            )
            if not found:
                broken.append(f"{path.name}: {link}")
    assert broken == []
    assert len(pages) > 15


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loads = [load for page in pages.values() for load in page.loads]
    assert loads
    assert [load for load in loads if urlsplit(load).netloc] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", styles) == []


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")

    def walk(command: object, name: str) -> None:
        for leaf, below in getattr(command, "commands", {}).items():
            walk(below, f"{name} {leaf}")
        if hasattr(command, "commands"):
            return
        assert f"<h2>{name}<" in text
        for option in command.params:  # type: ignore[attr-defined]
            if option.param_type_name == "option" and option.name != "help":
                assert option.opts[0] in text, (name, option.opts)

    walk(typer.main.get_command(app), "clefq")


def test_the_reference_has_the_formats(site: Path) -> None:
    text = (site / "reference" / "formats.html").read_text(encoding="utf-8")
    for name in ("logprobs", "model_sha256", "token_lengths", "min_n", "noise_floor", "exit_code"):
        assert name in text


def test_every_public_name_of_the_python_api_is_documented(site: Path) -> None:
    import clefq.serving

    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in clefq.serving.__all__:
        assert re.search(rf'id="clefq\.serving\.(\w+\.)?{name}"', text), name
