"""Files with agents in them, run more than once, and what they import from beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interlingua.engine.agents.imported_files import imports_of
from interlingua.server.loading.file import agents_of_file, forget_modules

CODE = "import interlingua as il\n\nclass Kind:\n    pass\n\n@il.agent\nasync def say() -> str:\n    return '{}'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_file_that_is_run_again_is_another_module_and_the_first_stays(folder: Path) -> None:
    file = folder / "spoken.py"
    file.write_text(CODE.format("one"))
    (first,) = agents_of_file(file)
    file.write_text(CODE.format("two"))  # as long as before, in the same second
    (second,) = agents_of_file(file)
    names = [first.fn.__module__, second.fn.__module__]
    assert len(set(names)) == 2
    assert names[0] == "spoken"
    kinds = [sys.modules[name].Kind for name in names]
    assert kinds[0] is not kinds[1]
    assert [agent.fn.__code__.co_consts[1:] for agent in (first, second)] == [("one",), ("two",)]


def test_what_was_compiled_of_a_file_before_is_not_taken_for_what_it_says_now(folder: Path) -> None:
    """A process that imports it by its name sees what it says, also where it changed within a second."""
    file = folder / "swift.py"
    text = "import interlingua as il\n\n\n@il.agent\ndef say() -> str:\n    return 'old'\n"
    file.write_text(text)
    agents_of_file(file)
    when = file.stat().st_mtime
    command = [sys.executable, "-c", "import swift; print(swift.say.fn())"]
    alike = {
        name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"
    }  # as this process has it

    def imported() -> str:
        return subprocess.run(command, cwd=folder, env=alike, capture_output=True, text=True, check=True).stdout.strip()

    assert imported() == "old"
    file.write_text(text.replace("old", "new"))
    os.utime(file, (when, when))
    agents_of_file(file)
    assert imported() == "new"


def test_what_a_file_imports_from_beside_it_is_found_whether_or_not_it_was_imported(folder: Path) -> None:
    (folder / "pack" / "deep").mkdir(parents=True)
    for path, text in {
        "main.py": "import os, one.not_there\nfrom pack import thing\nimport main\n",
        "one.py": "def later():\n    from two import CONSTANT\n",
        "two.py": "import broken\n",
        "broken.py": "def (:\n",
        "unused.py": "",
        "os.py": "",
        "pack/__init__.py": "from . import deep\nfrom .... import beyond\n",
        "pack/thing.py": "from .deep.most import X\n",
        "pack/deep/__init__.py": "",
        "pack/deep/most.py": "from ..other import Y\n",
        "pack/other.py": "",
    }.items():
        (folder / path).write_text(text)
    found = {name: str(path.relative_to(folder)) for name, path in imports_of(folder / "main.py").items()}
    assert found == {
        "os": "os.py", "one": "one.py", "two": "two.py", "broken": "broken.py", "pack": "pack/__init__.py",
        "pack.thing": "pack/thing.py", "pack.deep": "pack/deep/__init__.py", "pack.deep.most": "pack/deep/most.py",
        "pack.other": "pack/other.py",
    }  # fmt: skip
    forget_modules(imports_of(folder / "main.py"))
    assert "os" in sys.modules, "that one is Python's own"
