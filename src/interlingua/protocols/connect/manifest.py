"""Agent manifests: the descriptor of an agent (its abilities) and its deployment (how to get it), as one file.

Today's form is an agent record with an extension, which has had two names. The earlier form, `metadata`, `specs` and
`deployment` side by side, and a bare descriptor can be checked as well. Pure: the caller reads files and addresses.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from ...model.card import AgentCard
from ...model.errors import DefinitionError
from ...model.schemas import Validator, check_refs_local
from . import translate

EXTENSION = "schema.oasf.agntcy.org/features/runtime/manifest"
OLD_EXTENSION = "oasf.agntcy.org/feature/runtime/manifest"  # before June 2025
SCHEMA_VERSION = "0.3.1"  # of the record that is written here

Form = Literal["manifest", "earlier manifest", "descriptor"]
Schema = dict[str, Any]
Text = Annotated[str, msgspec.Meta(min_length=1)]


# -- the parts, with exactly the fields that they have on paper -----------------------------------------------


class Streaming(msgspec.Struct):
    values: bool | None = None
    custom: bool | None = None


class Capabilities(msgspec.Struct):
    threads: bool | None = None
    interrupts: bool | None = None
    callbacks: bool | None = None
    streaming: Streaming | None = None


class Interrupt(msgspec.Struct):
    interrupt_type: Text
    interrupt_payload: Schema
    resume_payload: Schema


class Specs(msgspec.Struct):
    capabilities: Capabilities
    input: Schema
    output: Schema
    config: Schema
    custom_streaming_update: Schema | None = None
    thread_state: Schema | None = None
    interrupts: list[Interrupt] | None = None


class Ref(msgspec.Struct):
    name: Text
    version: Text
    url: str | None = None


class Metadata(msgspec.Struct):
    ref: Ref
    description: str


class LangGraph(msgspec.Struct, tag_field="framework_type", tag="langgraph"):
    graph: Text


class InterruptRefs(msgspec.Struct):
    interrupt_ref: Text
    resume_ref: Text


class LlamaIndex(msgspec.Struct, tag_field="framework_type", tag="llamaindex"):
    path: Text
    interrupts: dict[str, InterruptRefs] | None = None


class SourceCode(msgspec.Struct, tag_field="type", tag="source_code"):
    url: Text
    framework_config: LangGraph | LlamaIndex
    name: str | None = None


class Protocol(msgspec.Struct):
    type: Literal["ACP"]
    url: Text
    agent_id: str | None = None
    authentication: dict[str, Any] | None = None  # an OpenAPI security scheme


class RemoteService(msgspec.Struct, tag_field="type", tag="remote_service"):
    protocol: Protocol
    name: str | None = None


class Docker(msgspec.Struct, tag_field="type", tag="docker"):
    image: Text
    name: str | None = None


class EnvVar(msgspec.Struct):
    name: Text
    desc: str
    required: bool | None = None
    defaultValue: str | None = None


class EnvVarValues(msgspec.Struct):
    name: str | None = None
    values: dict[str, str] | None = None
    env_deps: list[EnvVarValues] | None = None


class Dependency(msgspec.Struct):
    name: Text
    ref: Ref
    deployment_option: str | None = None
    env_var_values: EnvVarValues | None = None


class Deployment(msgspec.Struct):
    deployment_options: Annotated[list[SourceCode | RemoteService | Docker], msgspec.Meta(min_length=1)]
    env_vars: list[EnvVar] | None = None
    agent_deps: list[Dependency] | None = None


class EarlierDeployment(Deployment):
    dependencies: list[Dependency] | None = None


class Data(msgspec.Struct):
    acp: Specs
    deployment: Deployment


class Skill(msgspec.Struct):
    class_uid: int | str  # texts of digits are about too
    class_name: str | None = None
    category_uid: int | str | None = None
    category_name: str | None = None
    annotations: dict[str, str] | None = None


class Locator(msgspec.Struct):
    url: Text
    type: Literal["binary", "unspecified", "helm-chart", "docker-image", "py-package", "source-code"]
    annotations: dict[str, str] | None = None
    digest: str | None = None
    size: int | None = None


class Extension(msgspec.Struct):
    name: Text
    data: dict[str, Any]  # `Data` describes that of our own extension
    version: str | None = None


class Record(msgspec.Struct):
    name: Text
    version: Text
    description: str
    schema_version: Text
    authors: list[str]
    skills: list[Skill]
    locators: Annotated[list[Locator], msgspec.Meta(min_length=1)]  # published servers read the first one unasked
    extensions: Annotated[list[Extension], msgspec.Meta(min_length=1)]
    created_at: datetime.datetime | None = None
    annotations: dict[str, str] | None = None


class Descriptor(msgspec.Struct):
    metadata: Metadata
    specs: Specs


class Earlier(Descriptor):
    deployment: EarlierDeployment


# -- writing --------------------------------------------------------------------------------------------------


def export(
    card: AgentCard, *, url: str, created_at: str, agent_id: str | None = None, image: str | None = None,
    authors: list[str] | None = None, extension: str = EXTENSION,
) -> dict[str, Any]:  # fmt: skip
    """Returns the manifest of an agent that is served at `url`. Facts that the card cannot know stand in its metadata,
    under `manifest`: authors, skills, locators, annotations, env_vars, agent_deps and further deployment_options."""
    said: dict[str, Any] = card.metadata.get("manifest", {})
    protocol = {"type": "ACP", "url": url}
    if agent_id is not None:
        protocol["agent_id"] = agent_id
    options: list[dict[str, Any]] = [{"type": "remote_service", "name": "server", "protocol": protocol}]
    locators: list[dict[str, Any]] = []
    if image is not None:
        options.append({"type": "docker", "name": "image", "image": image})
        locators.append({"type": "docker-image", "url": image})
    deployment: dict[str, Any] = {"deployment_options": options + said.get("deployment_options", [])}
    deployment |= {name: said[name] for name in ("env_vars", "agent_deps") if name in said}
    specs = translate.descriptor(card)["specs"]
    record = {
        "name": card.name,
        "version": card.version,
        "description": card.description or card.name,
        "schema_version": SCHEMA_VERSION,
        "created_at": created_at,
        "authors": authors or said.get("authors", []),
        "skills": said.get("skills", []),
        "locators": said.get("locators", []) or locators or [{"type": "unspecified", "url": url}],
        "extensions": [{"name": extension, "version": "0.1.0", "data": {"acp": specs, "deployment": deployment}}],
    }
    return record | ({"annotations": said["annotations"]} if "annotations" in said else {})


# -- checking -------------------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, order=True):
    path: str  # a JSON pointer; empty for the whole
    message: str


def form_of(document: Any) -> Form:
    if isinstance(document, dict) and "extensions" not in document and "specs" in document:
        return "earlier manifest" if "deployment" in document else "descriptor"
    return "manifest"


def problems(document: Any) -> list[Problem]:
    """Returns all faults of a manifest or descriptor."""
    form = form_of(document)
    if form == "manifest":
        return list(dict.fromkeys(_check_record(document)))
    found = list(_check(document, Earlier if form == "earlier manifest" else Descriptor, ""))
    found += _check_specs(document.get("specs"), "/specs", found)
    found += _check_names(document.get("deployment"), "/deployment")
    return list(dict.fromkeys(found))


def _check_record(document: Any) -> Iterator[Problem]:
    yield from _check(document, Record, "")
    extensions = document.get("extensions") if isinstance(document, dict) else None
    if not isinstance(extensions, list) or not extensions:
        return
    ours = [
        place
        for place, e in enumerate(extensions)
        if isinstance(e, dict) and e.get("name") in (EXTENSION, OLD_EXTENSION)
    ]
    if not ours:
        yield Problem("/extensions", f"none has the name {EXTENSION} (or, earlier, {OLD_EXTENSION})")
    for place in ours:
        data, path = extensions[place].get("data"), f"/extensions/{place}/data"
        if not isinstance(data, dict):
            continue  # said already
        found = list(_check(data, Data, path))
        yield from found
        yield from _check_specs(data.get("acp"), f"{path}/acp", found)
        yield from _check_names(data.get("deployment"), f"{path}/deployment")


def _check_specs(specs: Any, path: str, found: list[Problem]) -> Iterator[Problem]:
    """Checks the rules of a descriptor that its shape does not show, and that its schemas are schemas."""
    if not isinstance(specs, dict):
        return
    places: list[tuple[str, Any]] = [
        (name, specs.get(name)) for name in ("input", "output", "config", "custom_streaming_update", "thread_state")
    ]
    interrupts = specs.get("interrupts")
    for number, interrupt in enumerate(interrupts if isinstance(interrupts, list) else []):
        if isinstance(interrupt, dict):
            for name in ("interrupt_payload", "resume_payload"):
                places.append((f"interrupts/{number}/{name}", interrupt.get(name)))
    for place, schema in places:
        if isinstance(schema, dict):
            yield from _check_schema(schema, f"{path}/{place}")
    if not any(problem.path.startswith(path) for problem in found):
        # `null` is as good as left out, in files more than anywhere.
        told = {"specs": {name: value for name, value in specs.items() if value is not None}}
        yield from (Problem(path, broken) for broken in translate.inconsistencies(told))


def _check_schema(schema: Schema, path: str) -> Iterator[Problem]:
    # Whatever dialect it names: on this wire it is read as 2020-12.
    plain = {name: value for name, value in schema.items() if name != "$schema"}
    try:
        check_refs_local(plain, "it")  # before anything follows them
        Validator(plain, what="it")
    except DefinitionError as error:
        yield Problem(path, error.message.replace("the schema of it is", "is").replace("the schema of it ", ""))


def _check_names(deployment: Any, path: str) -> Iterator[Problem]:
    """Checks that names are unique, because other parts of a manifest refer to them."""
    for part in ("deployment_options", "env_vars", "agent_deps", "dependencies"):
        entries = deployment.get(part) if isinstance(deployment, dict) else None
        seen: set[str] = set()
        for place, entry in enumerate(entries if isinstance(entries, list) else []):
            name = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(name, str):
                if name in seen:
                    yield Problem(f"{path}/{part}/{place}/name", f"{name!r} is there twice")
                seen.add(name)


# -- checking shapes: as msgspec does it, but to the end instead of to the first offence ------------------------


def _check(value: Any, type_: Any, path: str) -> Iterator[Problem]:
    return _walk(value, inspect.type_info(type_), path)


def _walk(value: Any, info: inspect.Type, path: str) -> Iterator[Problem]:
    match info:
        case inspect.UnionType(types=types):
            yield from _walk_union(value, types, path)
        case inspect.StructType(fields=fields):
            if not isinstance(value, dict):
                yield _wrong(path, "an object", value)
                return
            for field in fields:
                if field.encode_name in value:
                    yield from _walk(value[field.encode_name], field.type, _below(path, field.encode_name))
                elif field.required:
                    yield Problem(_below(path, field.encode_name), "is missing")
        case inspect.ListType(item_type=item, min_length=least):
            if not isinstance(value, list):
                yield _wrong(path, "a list", value)
                return
            if len(value) < (least or 0):
                yield Problem(path, "is empty")
            for place, entry in enumerate(value):
                yield from _walk(entry, item, _below(path, place))
        case inspect.DictType(value_type=item):
            if not isinstance(value, dict):
                yield _wrong(path, "an object", value)
                return
            for key, entry in value.items():
                yield from _walk(entry, item, _below(path, key))
        case _:
            yield from _walk_plain(value, info, path)


def _walk_plain(value: Any, info: inspect.Type, path: str) -> Iterator[Problem]:
    match info:
        case inspect.StrType(min_length=least):
            if not isinstance(value, str):
                yield _wrong(path, "a text", value)
            elif len(value) < (least or 0):
                yield Problem(path, "is empty")
        case inspect.BoolType():
            if not isinstance(value, bool):
                yield _wrong(path, "true or false", value)
        case inspect.IntType():
            if not isinstance(value, int) or isinstance(value, bool):
                yield _wrong(path, "a whole number", value)
        case inspect.LiteralType(values=allowed):
            if value not in allowed:
                yield Problem(path, f"may be {', '.join(map(str, allowed))}, and is {_shown(value)}")
        case inspect.DateTimeType():
            try:
                msgspec.convert(value, datetime.datetime)
            except msgspec.ValidationError:
                yield _wrong(path, "a date and time as in 2026-01-31T12:00:00Z", value)


def _walk_union(value: Any, types: tuple[inspect.Type, ...], path: str) -> Iterator[Problem]:
    if value is None and any(isinstance(t, inspect.NoneType) for t in types):
        return
    rest = [t for t in types if not isinstance(t, inspect.NoneType)]
    structs = [t for t in rest if isinstance(t, inspect.StructType)]
    if len(rest) == 1:
        yield from _walk(value, rest[0], path)
    elif len(structs) == len(rest):
        field = structs[0].tag_field or ""
        if not isinstance(value, dict):
            yield _wrong(path, "an object", value)
        elif field not in value:
            yield Problem(_below(path, field), "is missing")
        else:
            chosen = next((t for t in structs if t.tag == value[field]), None)
            if chosen is None:
                allowed = ", ".join(str(t.tag) for t in structs)
                yield Problem(_below(path, field), f"may be {allowed}, and is {_shown(value[field])}")
            else:
                yield from _walk(value, chosen, path)
    else:  # plain kinds: any of them will do
        tried = [list(_walk(value, t, path)) for t in rest]
        if all(tried):
            yield tried[0][0]


def _wrong(path: str, wanted: str, value: Any) -> Problem:
    return Problem(path, f"must be {wanted}, and is {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def _below(path: str, step: str | int) -> str:
    return f"{path}/{str(step).replace('~', '~0').replace('/', '~1')}"
