"""The documentation site: `make docs` builds it into site/, and fails on any warning."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from clefq import __version__  # noqa: E402

project = "clefq"
author = "the clefq authors"
copyright = "the clefq authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "clefq_reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static"]
root_doc = "index"

# the same anchors as the repository's host gives to headings
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "literal"  # docstrings put code between single backticks
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False

# commands with placeholders and output are no shell scripts
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

html_theme = "furo"
html_title = "clefq"
html_static_path = ["_static"]
html_css_files = ["clefq.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#b4450f",
        "color-brand-content": "#a33d0b",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
        "font-stack--monospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#ff9a5c",
        "color-brand-content": "#ff9a5c",
    },
    "top_of_page_buttons": [],
}
