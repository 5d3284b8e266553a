"""Projects: where the root is found, how the project is called, and which store is its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from interlingua.model.errors import InvalidRequest
from interlingua.server import project
from interlingua.server.project import UnnamedProject, find_project


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(project.VARIABLE, raising=False)


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.toml").write_text(text)
    return path


# -- the root -------------------------------------------------------------------------------------------------


def test_the_root_is_the_nearest_folder_upwards_with_a_config_file(tmp_path: Path) -> None:
    folder(tmp_path, interlingua="")
    near = folder(tmp_path / "near", interlingua="")
    deep = folder(near / "a" / "b")
    assert find_project(deep).root == near
    assert find_project(tmp_path / "other").root == tmp_path
    assert find_project(deep).store == near / ".interlingua" / "store.db"


def test_a_pyproject_marks_the_root_with_a_table_of_ours_alone(tmp_path: Path) -> None:
    deep = folder(tmp_path / "a" / "b")
    folder(tmp_path / "a", pyproject='[project]\nname = "a"\ndependencies = ["interlingua"]\n')
    folder(tmp_path, pyproject="[tool.interlingua]\n")
    assert find_project(deep).root == tmp_path


def test_without_any_of_them_the_root_is_the_folder_itself(tmp_path: Path) -> None:
    here = folder(tmp_path / "here", pyproject='[project]\nname = "shop"\n')
    (here / "agents.py").write_text("")
    assert find_project(here).root == here
    assert find_project(here / "agents.py").root == here


def test_a_folder_that_is_reached_through_a_link_is_the_same_project(tmp_path: Path) -> None:
    real = folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    assert find_project(tmp_path / "link") == find_project(real)


def test_a_pyproject_of_somebody_else_may_be_broken(tmp_path: Path) -> None:
    folder(tmp_path, pyproject="[project\n")
    assert find_project(tmp_path).named is False
    folder(tmp_path, pyproject="[tool.interlingua\n")
    with pytest.raises(InvalidRequest, match=r"pyproject\.toml is not valid TOML"):
        find_project(tmp_path)


# -- the name -------------------------------------------------------------------------------------------------


def test_the_name_is_that_of_the_config_file_before_the_table_before_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, pyproject='[project]\nname = "package"\n[tool.interlingua]\n')
    assert (find_project(tmp_path).id, find_project(tmp_path).named) == ("package", True)
    folder(tmp_path, pyproject='[project]\nname = "package"\n[tool.interlingua]\nproject = "table"\n')
    assert (find_project(tmp_path).id, find_project(tmp_path).named) == ("table", True)
    folder(tmp_path, interlingua='project = "file"\n')
    assert (find_project(tmp_path).id, find_project(tmp_path).named) == ("file", True)
    monkeypatch.setenv("INTERLINGUA_PROJECT", "variable")
    assert (find_project(tmp_path).id, find_project(tmp_path).named) == ("variable", True)


def test_a_config_file_that_was_named_says_the_project(tmp_path: Path) -> None:
    folder(tmp_path, interlingua='project = "shop"\n')
    deploy = folder(tmp_path / "deploy", prod='project = "shop-prod"\n', test="")
    elsewhere = tmp_path / "elsewhere"
    found = find_project(elsewhere, config=deploy / "prod.toml")
    assert (found.root, found.id) == (tmp_path, "shop-prod")
    assert find_project(elsewhere, config=deploy / "test.toml").id == "shop"


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "é", "a" * 101, "a/b"])
def test_a_name_that_is_none_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    folder(tmp_path, interlingua=f"project = '''{name}'''\n")
    with pytest.raises(InvalidRequest, match=r"interlingua\.toml: project is a name"):
        find_project(tmp_path)


def test_a_name_is_text(tmp_path: Path) -> None:
    folder(tmp_path, interlingua="project = 1\n")
    with pytest.raises(InvalidRequest, match="not 1"):
        find_project(tmp_path)


# -- the random id --------------------------------------------------------------------------------------------


def test_looking_for_a_project_makes_nothing(tmp_path: Path) -> None:
    found = find_project(tmp_path)
    assert (found.id, found.named) == ("", False)
    assert list(tmp_path.iterdir()) == []


def test_a_project_without_a_name_has_a_random_id_that_stays(tmp_path: Path) -> None:
    found = find_project(tmp_path)
    claimed = found.claim(found.store)
    assert claimed
    assert find_project(tmp_path).id == claimed
    assert find_project(tmp_path).claim(found.store) == claimed
    own = tmp_path / ".interlingua"
    assert (own / ".gitignore").read_text() == "*\n"
    assert sorted(file.name for file in own.iterdir()) == [".gitignore", "project"]
    other = folder(tmp_path / "other")
    assert find_project(other).claim(find_project(other).store) != claimed


def test_processes_that_begin_at_the_same_time_agree_on_the_id(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def claim(_: int) -> str:
        found = find_project(tmp_path)
        barrier.wait()
        return found.claim(found.store)

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(claim, range(8)))
    assert len(ids) == 1


def test_a_project_with_a_name_keeps_no_id(tmp_path: Path) -> None:
    folder(tmp_path, interlingua='project = "shop"\n')
    found = find_project(tmp_path)
    assert found.claim(found.store) == "shop"
    assert [file.name for file in (tmp_path / ".interlingua").iterdir()] == [".gitignore"]


@pytest.mark.parametrize("store", ["other.db", "postgresql://host/agents"])
def test_a_store_elsewhere_needs_a_name_and_the_line_to_add_is_said(tmp_path: Path, store: str) -> None:
    here = folder(tmp_path / "my shop")
    elsewhere = store if "://" in store else here / store
    with pytest.raises(UnnamedProject) as raised:
        find_project(here).claim(elsewhere)
    assert 'project = "my-shop"' in raised.value.hint
    assert str(here / "interlingua.toml") in raised.value.hint
    assert not (here / ".interlingua").exists()
    folder(here, interlingua='project = "my-shop"\n')
    assert find_project(here).claim(elsewhere) == "my-shop"
    assert not (here / ".interlingua").exists()


def test_any_store_in_the_folder_of_the_project_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_project(tmp_path)
    assert found.claim(Path(".interlingua/second.db")) == found.claim(found.store)


def test_a_package_name_that_comes_later_does_not_take_the_store_away(tmp_path: Path) -> None:
    found = find_project(tmp_path)
    before = found.claim(found.store)
    folder(tmp_path, pyproject='[project]\nname = "shop"\n')
    assert find_project(tmp_path).claim(found.store) == before
    assert find_project(tmp_path).claim(tmp_path / "other.db") == "shop"
    folder(tmp_path, interlingua='project = "chosen"\n')
    assert find_project(tmp_path).claim(found.store) == "chosen", "somebody has chosen it"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / ".interlingua").write_text("")
    folder(tmp_path, interlingua='project = "shop"\n')
    found = find_project(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be made: File exists"):
        found.claim(found.store)
