"""Tests of how installed protocols are found: whatever the standard library finds, from folders and from archives."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path
from subprocess import run
from typing import get_args

import pytest

from interlingua.protocols.base import Part
from interlingua.protocols.installed import GROUP, entries, protocols

_LISTS = """
import sys
from interlingua.protocols.installed import protocols
protocols()
print(*(name for name in sys.modules if name.startswith("interlingua.protocols.") and name.count(".") > 3))
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python looks in before all others."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def package(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_the_five_are_there_in_the_order_of_preference() -> None:
    assert [protocol.name for protocol in protocols()] == ["connect", "peer", "mcp", "cap", "editor"]


def test_every_part_that_a_protocol_names_is_there() -> None:
    for protocol in protocols():
        for part in get_args(Part):
            assert (protocol.load(part) is None) == (getattr(protocol, part) == ""), (protocol.name, part)


def test_listing_the_protocols_imports_no_door_and_no_mount() -> None:
    done = run([sys.executable, "-c", _LISTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("group", [GROUP, "pytest11", "console_scripts", "nobody.has.this"])
def test_what_is_found_is_what_the_standard_library_finds(group: str) -> None:
    theirs = importlib.metadata.entry_points(group=group)
    assert entries(group) == {one.name: ":".join(filter(None, (one.module, one.attr))) for one in theirs}


def test_a_protocol_of_another_package_is_found_among_comments_and_other_groups(path: Path) -> None:
    package(
        path,
        "Smoke_Signals",
        "[console_scripts]\nsmoke = smoke:main\n\n"
        "[interlingua.protocols]\n# spoken on hills\nsmoke-1.0 = smoke.signals : protocol\n; and\n\nfire=fire:p [dry]\n"
        "nonsense\n\n[interlingua.protocols.more]\nother = other:protocol\n",
    )
    found = entries(GROUP)
    assert (found["smoke-1.0"], found["fire"]) == ("smoke.signals:protocol", "fire:p")
    assert {"nonsense", "other", "smoke"}.isdisjoint(found)
    assert "mcp" in found


def test_of_a_package_that_is_there_twice_the_first_counts(path: Path) -> None:
    package(path / "later", "smoke.signals", "[interlingua.protocols]\nsmoke = old:protocol\nash = old:ash\n")
    package(path, "smoke_signals", "[interlingua.protocols]\nsmoke = new:protocol\n")
    sys.path.insert(1, str(path / "later"))
    found = entries(GROUP)
    assert found["smoke"] == "new:protocol"
    assert "ash" not in found


def test_folders_that_are_not_there_and_packages_that_say_nothing_do_no_harm(path: Path) -> None:
    (path / "quiet-2.0.dist-info").mkdir()
    (path / "flat-2.0.egg-info").write_text("an old package is a file")
    sys.path.insert(0, str(path / "nowhere"))
    assert "mcp" in entries(GROUP)


def test_packages_in_an_archive_are_found_too(path: Path) -> None:
    with zipfile.ZipFile(path / "all.zip", "w") as archive:
        archive.writestr("smoke-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: smoke\nVersion: 1.0\n")
        archive.writestr("smoke-1.0.dist-info/entry_points.txt", "[interlingua.protocols]\nsmoke = smoke:protocol\n")
    sys.path.insert(0, str(path / "all.zip"))
    found = entries(GROUP)
    assert found["smoke"] == "smoke:protocol"
    assert "mcp" in found
