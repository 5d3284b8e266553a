"""The OpenAPI document of the control API, made of its operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .._version import __version__
from . import wire
from .operation import Operation

Json = dict[str, Any]

_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation], prefix: str) -> Json:
    """Returns the document. `prefix`: the path below which the operations are served."""
    types = [type_ for row in operations for type_ in (row.query, row.body, row.answer) if type_ is not None]
    types = list(dict.fromkeys([*types, wire.Failure]))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Json] = {}
    for row in operations:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Interlingua control API",
            "version": __version__,
            "description": "Agents, runs, questions and threads of a server, for owners and their programs.",
        },
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"key": []}, {"bearer": []}, {}],
    }


def _operation(row: Operation, types: dict[Any, Json], components: Json) -> Json:
    answer: Json = {"description": row.summary}
    if row.answer is not None:
        answer["content"] = {row.media: {"schema": types[row.answer]}}
        if row.streams:
            answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    elif row.status != 204:
        answer["content"] = {row.media: {"schema": {}}}
    shown: Json = {
        "operationId": f"{row.handler.__module__.rpartition('_')[2]}_{row.handler.__name__}",
        "summary": row.summary,
        "tags": [row.path.split("/")[1]],
        "parameters": [*_path_parameters(row.path), *_query_parameters(row, components)],
        "responses": {
            str(row.status): answer,
            "4XX": {"description": "Refused", "content": {"application/json": {"schema": types[wire.Failure]}}},
            "503": {
                "description": "Not available now",
                "content": {"application/json": {"schema": types[wire.Failure]}},
            },
        },
    }
    if row.body is not None:
        content = {"application/json": {"schema": types[row.body]}}
        shown["requestBody"] = {"required": not row.optional, "content": content}
    return shown


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(row: Operation, components: Json) -> list[Json]:
    if row.query is None:
        return []
    members: Json = components[row.query.__name__].get("properties", {})
    shown = []
    for name, schema in members.items():
        if name == "metadata":
            continue  # its members are parameters of their own: metadata.NAME
        parameter: Json = {"name": name, "in": "query", "required": False, "schema": schema}
        if schema.get("type") == "array":
            parameter |= {"style": "form", "explode": True}
        if "description" in schema:
            parameter["description"] = schema["description"]
        shown.append(parameter)
    return shown
