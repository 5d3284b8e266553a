"""The page on the architecture agrees with the code: the files that it names, the layers, and the way of a request."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.protocols.installed import protocols
from interlingua.server.app import ServeSettings, serving

ROOT = Path(__file__).parent.parent
PACKAGE = Path(il.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
REQUEST = PAGE.partition("<!-- request:begin -->")[2].partition("<!-- request:end -->")[0]
PROTOCOL = PAGE.partition("## A protocol")[2].partition("## ")[0]
BESIDE = PROTOCOL.partition("Beside these:")[2].partition("\n\n")[0]
FILE = re.compile(r"`([a-z_]+/[a-z_/]+\.py)`")


@il.agent
async def echo(text: str) -> str:
    return text


class CallTracer:
    """Records the files of this package whose functions are called, in all threads that start after it."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.recording = False
        self._names: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.recording:
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            place = Path(path)
            inside = place.is_absolute() and place.is_relative_to(PACKAGE)
            self._names[path] = place.relative_to(PACKAGE).as_posix() if inside else None
        name = self._names[path]
        if name is not None:
            self.files.append(name)


@contextlib.contextmanager
def tracing() -> Iterator[CallTracer]:
    tracer = CallTracer()
    before, before_in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(tracer)
    threading.settrace(tracer)  # the writer of the store is a thread
    try:
        yield tracer
    finally:
        sys.settrace(before)
        threading.settrace(before_in_threads)


def first_missing(expected: list[str], files: list[str]) -> str | None:
    """The first expected file that does not come, in its order, in a trace."""
    trace = iter(files)
    return next((file for file in expected if file not in trace), None)


async def test_a_request_passes_the_files_of_the_page_in_their_order(tmp_path: Path) -> None:
    expected = FILE.findall(REQUEST)
    assert 10 <= len(expected) <= 15
    with tracing() as tracer:
        async with (
            serving(tmp_path / "traced.db", [echo], ServeSettings(port=0)) as server,
            httpx2.AsyncClient() as client,
        ):
            tracer.recording = True
            answer = await client.post(
                f"{server.address}/connect/runs/wait", json={"agent_id": "echo", "input": {"text": "hello"}}
            )
            tracer.recording = False
    assert answer.json()["output"]["values"] == {"text": "hello"}
    missing = first_missing(expected, tracer.files)
    assert missing is None, f"{missing} does not come where docs/architecture.md has it, after {expected}"


def test_a_file_at_the_wrong_place_of_the_page_would_be_noticed() -> None:
    files = ["server/http_app.py", "engine/engine.py", "model/run.py", "engine/engine.py"]
    assert first_missing(["server/http_app.py", "model/run.py", "engine/engine.py"], files) is None
    assert first_missing(["model/run.py", "server/http_app.py"], files) == "server/http_app.py"
    assert first_missing(["server/http_app.py", "engine/runs/gone.py"], files) == "engine/runs/gone.py"


def test_the_files_that_the_page_names_exist() -> None:
    assert [
        name for name in FILE.findall(PAGE) if not (PACKAGE / name).is_file() and not name.startswith("tests/")
    ] == []


def test_the_picture_has_every_package_in_the_order_of_the_layers() -> None:
    picture = PAGE.partition("```text")[2].partition("```")[0]
    packages = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
    assert [name for name in packages if f"{name}/" not in picture] == []
    engine = sorted(path.name for path in (PACKAGE / "engine").iterdir() if (path / "__init__.py").is_file())
    assert [name for name in engine if f"{name}/" not in picture] == []
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "Layers of the design")
    # Packages of packages stand deeper.
    lines = [line if re.match(r" {13}\S", line) else "" for line in picture.splitlines()]
    depths = []
    for layer in layers:
        names = re.findall(r"interlingua\.(\w+)", layer)
        (depth,) = {number for name in names for number, line in enumerate(lines) if re.search(rf"\b{name}/", line)}
        depths.append(depth)
    assert depths == sorted(set(depths))


@pytest.mark.parametrize("protocol", [protocol.name for protocol in protocols()])
def test_a_folder_of_a_protocol_has_the_files_of_the_page_and_no_others(protocol: str) -> None:
    known = {*re.findall(r"^\| `([^`]+)` \|", PROTOCOL, re.MULTILINE), *re.findall(r"`([^`]+)`", BESIDE)}
    folder = PACKAGE / "protocols" / protocol
    here = {path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith("__")}
    packages = {name.replace(".py", "/") for name in known}
    assert [name for name in here - known - packages if not any(map(Path(name).match, known))] == []
    assert {"protocol.py", "config.py", "probe.py", "parity.py", "demo.py", "door/", "mount/"} <= here
