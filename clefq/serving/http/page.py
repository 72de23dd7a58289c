"""The API's description as one HTML page, made from the same document as `/openapi.json`.

The usual page loads its scripts from another host, and stays empty where there is none to reach.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:2rem 1rem;
color:#1d1d1f;background:#fff}
h1{font-size:1.7rem}h2{margin-top:2.5rem;font-size:1.2rem;border-top:1px solid #ddd;
padding-top:1.5rem}h3{font-size:1rem;margin:1.4rem 0 .4rem}
code,pre{font:14px/1.45 ui-monospace,Menlo,monospace}code{background:#f3f1ee;padding:.1em .3em;
border-radius:3px}pre{background:#f3f1ee;padding:1rem;overflow:auto;border-radius:6px}
pre code{padding:0}table{border-collapse:collapse;width:100%}td,th{text-align:left;
vertical-align:top;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #e6e3df}
td:first-child{white-space:nowrap}th{font-weight:600}.verb{color:#b4450f}
@media(prefers-color-scheme:dark){body{background:#161618;color:#e8e6e3}code,pre{background:#242428}
td,th,h2{border-color:#38383d}.verb{color:#ff9a5c}}
"""


def page(document: Mapping[str, Any]) -> str:
    """The HTML page of an OpenAPI document.

    Args:
        document: As `FastAPI.openapi` gives it.
    """
    document = _resolved(document, document)
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        *(f"<p>{_text(block)}</p>" for block in info["description"].strip().split("\n\n")),
        "<p>This page as a document for tools: <a href='openapi.json'>openapi.json</a></p>",
    ]
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            parts += _operation(verb, path, operation)
    head = (
        f"<meta charset='utf-8'><title>{escape(info['title'])}</title>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style>"
    )
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def _resolved(value: Any, document: Mapping[str, Any]) -> Any:
    """The value with what its references mean in their place; none of ours is circular."""
    if isinstance(value, list):
        return [_resolved(item, document) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: _resolved(item, document) for key, item in value.items() if key != "components"}
    reference = found.pop("$ref", None)
    if reference is None:
        return found
    target = document["components"]["schemas"][reference.rpartition("/")[2]]
    return {**_resolved(target, document), **found}


def _operation(verb: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code><span class='verb'>{verb.upper()}</span> {escape(path)}</code></h2>"
    yield f"<p>{_text(operation.get('summary', ''))}</p>"
    headers = [
        (item["name"], _values(item["schema"]), item.get("description", ""))
        for item in operation.get("parameters", ())
    ]
    if headers:
        yield "<h3>Request headers</h3>" + _table(("header", "values", ""), headers)
    body = operation.get("requestBody")
    if body:
        yield from _body(body["content"]["application/json"])
    rows = [
        (status, response.get("description", ""))
        for status, response in sorted(operation["responses"].items())
    ]
    yield "<h3>Answers</h3>" + _table(("status", "meaning"), rows)
    answered = operation["responses"].get("200", {}).get("headers", {})
    rows = [(name, header["description"]) for name, header in answered.items()]
    if rows:
        yield "<h3>Headers of an answer</h3>" + _table(("header", ""), rows)


def _body(content: Mapping[str, Any]) -> Iterator[str]:
    schema = content["schema"]
    needed = schema.get("required", ())
    rows = [
        (name, "required" if name in needed else "", _described(field))
        for name, field in schema["properties"].items()
    ]
    yield "<h3>Body</h3>" + _table(("field", "", ""), rows)
    kinds = schema["properties"]["questions"]["additionalProperties"]["anyOf"]
    rows = [(kind["title"], _described(kind["properties"]["criteria"]), kind["description"])
            for kind in kinds]  # fmt: skip
    yield "<h3>Questions</h3>" + _table(("type", "criteria", ""), rows)
    for example in content.get("examples", {}).values():
        text = json.dumps(example["value"], indent=2, ensure_ascii=False)
        yield f"<h3>Example</h3><pre><code>{escape(text)}</code></pre>"


def _described(schema: Mapping[str, Any]) -> str:
    forms = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    limits = [
        f"{least}–{form[most]}" if (least := form.get(low)) else f"at most {form[most]}"
        for form in forms
        for low, most in (("minProperties", "maxProperties"), ("minItems", "maxItems"))
        if most in form
    ]
    kinds = " or ".join(str(form["type"]) for form in forms if "type" in form)
    text = str(schema.get("description", ""))
    return ". ".join(part for part in (" ".join((kinds, *limits)).strip(), text) if part)


def _values(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum", ())
    return ", ".join(f"`{value}`" for value in values) or "text"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        f"<tr><td><code>{escape(row[0])}</code></td>"
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _text(text: str) -> str:
    """Escaped, with `code` and **bold** as such."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", marked)
