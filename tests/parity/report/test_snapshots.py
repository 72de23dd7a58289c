"""The views of one stored report, word for word; a stored report stays readable.

After a wanted change: CLEFQ_UPDATE_SNAPSHOTS=1 pytest tests/parity/report/test_snapshots.py
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clefq.parity.report.documents import check_document
from clefq.parity.report.html_page import index_html, report_html
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.markdown import report_markdown
from clefq.parity.report.parity_json import read_parity
from clefq.parity.report.summary import Sizes, summary_document

FOLDER = Path(__file__).parent / "snapshots"
SIZES = Sizes({"bf16": 18_800_000_000, "nvfp4": 12_100_000_000})


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return read_parity(FOLDER / "parity.json")


VIEWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "report.md": report_markdown,
    "report.html": lambda stored: report_html(stored, []),
    "index.html": lambda stored: index_html(summary_document([stored], SIZES)),
    "junit.xml": lambda stored: junit_xml([stored]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(name: str, stored: dict[str, Any]) -> None:
    path = FOLDER / name
    text = VIEWS[name](stored)
    if os.environ.get("CLEFQ_UPDATE_SNAPSHOTS"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_summary_follows_its_schema(stored: dict[str, Any]) -> None:
    check_document(summary_document([stored], SIZES), "summary", "summary.json")
