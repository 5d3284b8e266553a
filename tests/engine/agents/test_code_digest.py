"""The digest of the code behind an agent: what changes it, and what does not."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import interlingua as il
from interlingua.engine.agents.code_digest import code_digest, files_digest
from interlingua.engine.agents.codec import Codec
from interlingua.engine.agents.imported_files import imports_of
from interlingua.server.loading.file import agents_of_file, forget_modules

_AGENTS = "import interlingua as il\n\n@il.agent\nasync def digested(n: int) -> int:\n    return n\n"


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    known, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]
    sys.path[:] = path


def put(file: Path, text: str, age: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (1_000_000_000 + age, 1_000_000_000 + age))
    return file


def load(file: Path) -> il.Agent[..., Any]:
    forget_modules(imports_of(file))
    (agent,) = agents_of_file(file)
    return agent


def test_the_same_code_elsewhere_has_the_same_digest(tmp_path: Path) -> None:
    found = set()
    for folder in ("one", "two"):
        file = put(tmp_path / folder / "digested_agents.py", f"import digested_more\n{_AGENTS}")
        put(tmp_path / folder / "digested_more.py", "X = 1\n")
        found.add(code_digest(load(file), tmp_path / folder))
    assert len(found) == 1


def test_a_module_that_is_in_use_below_the_root_counts_and_no_other(tmp_path: Path) -> None:
    file = put(tmp_path / "app" / "digested_agents.py", f"import digested_library, digested_package\n{_AGENTS}")
    library = put(tmp_path / "lib" / "digested_library.py", "X = 1\n")
    package = put(tmp_path / "env" / "site-packages" / "digested_package.py", "X = 1\n")
    unused = put(tmp_path / "lib" / "digested_unused.py", "X = 1\n")
    sys.path[:0] = [str(library.parent), str(package.parent)]
    agent = load(file)
    before = code_digest(agent, tmp_path)
    put(package, "X = 2\n", age=1)
    put(unused, "X = 2\n", age=1)
    assert code_digest(agent, tmp_path) == before
    put(library, "X = 2\n", age=1)
    assert code_digest(agent, tmp_path) != before


def test_a_module_that_is_imported_only_when_the_agent_runs_counts(tmp_path: Path) -> None:
    file = put(tmp_path / "digested_agents.py", _AGENTS.replace("    return", "    import digested_later\n    return"))
    later = put(tmp_path / "digested_later.py", "X = 1\n")
    agent = load(file)
    before = code_digest(agent)
    put(later, "X = 2\n", age=1)
    assert code_digest(agent) != before


def test_of_a_folder_every_file_counts_that_is_not_hidden(tmp_path: Path) -> None:
    put(tmp_path / "team" / "a.json", "{}")
    before = files_digest(tmp_path / "team")
    put(tmp_path / "team" / ".cache" / "x", "1")
    assert files_digest(tmp_path / "team") == before
    put(tmp_path / "team" / "prompts" / "a.md", "Be kind.")
    assert files_digest(tmp_path / "team") != before


@pytest.mark.parametrize("base", ["dataclass", "struct", "pydantic"])
def test_a_default_that_is_a_set_does_not_tell_processes_apart(base: str) -> None:
    """A set of texts lists its members in another order in each process."""

    def schema(*members: int) -> Any:
        names: dict[str, Any] = {"dataclass": object, "struct": msgspec.Struct, "pydantic": pydantic.BaseModel}
        fields = {"__annotations__": {"tags": frozenset[int]}, "tags": frozenset(members), "__module__": __name__}
        options: dict[str, Any] = {"frozen": True} if base == "struct" else {}
        made: Any = types.new_class("Tagged", (names[base],), options, lambda body: body.update(fields))
        return Codec(dataclasses.dataclass(made) if base == "dataclass" else made, what="the value").schema

    assert list(frozenset([0, 8])) != list(frozenset([8, 0]))
    assert schema(0, 8) == schema(8, 0)
    assert schema(0, 8)["properties"]["tags"]["default"] == [0, 8]
