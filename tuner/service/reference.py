"""The interface described for people, from its description for programs: nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response

from tuner.service.access import reads
from tuner.service.rendering import page
from tuner.service.tokens import Caller

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """Every route with its parameters, its body and an example."""
    app: FastAPI = request.app
    described = app.openapi()
    base = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            group = groups.setdefault(told["tags"][0].capitalize(), [])
            group.append(_route(base, path, method, told, described))
    values = {"groups": groups, "about": described["info"]["description"], "base": base}
    return page(request, "docs", caller, values)


def _route(
    base: str, path: str, method: str, told: Mapping[str, Any], described: Mapping[str, Any]
) -> dict[str, Any]:
    content = told.get("requestBody", {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}), described)
    return {
        "id": f"{method}-{path.strip('/').replace('/', '-')}", "method": method.upper(), "path": path,
        "summary": told.get("summary", ""), "description": told.get("description", ""),
        "parameters": [each | {"kind": _kind(each["schema"])} for each in told.get("parameters", [])],
        "body": list(_keys(schema)), "example": _example(base, path, method, told, schema),
    }  # fmt: skip


def _keys(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for name, each in schema.get("properties", {}).items():
        yield {"name": name, "kind": _kind(each), "description": each.get("description", "")}


def _resolved(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = described["components"]["schemas"][name] if name else schema
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _example(base: str, path: str, method: str, told: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A command for a shell that asks this."""
    given = [each for each in told.get("parameters", []) if "example" in each]
    query = "".join(f" --data-urlencode {each['name']}='{each['example']}'" for each in given)
    parts = ['curl -H "Authorization: Bearer $TUNER_TOKEN"']
    if method == "get" and query:
        parts.append(f"-G{query}")
    if method == "post" and "example" in schema:
        parts.append(f"-H 'Content-Type: application/json' -d '{json.dumps(schema['example'])}'")
    elif method == "post" and path.endswith("/records"):
        parts.append("--data-binary @records.jsonl.zst")
    elif method == "post":
        parts.append("-X POST")
    return f"{' '.join(parts)} {base}{path}"
