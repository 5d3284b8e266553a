from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlingua.model.run_identity import (
    MAX_SOURCE,
    Origin,
    check_project,
    file_source,
    module_source,
    mount_source,
    queue,
    split_queue,
    team_source,
)


@pytest.mark.parametrize("project", ["shop", ""])
@pytest.mark.parametrize("source", ["file:agents.py", "file:my agents.py", "mount:mcp:npx server -y#mailer"])
def test_the_text_of_an_origin_is_read_as_the_same_origin(project: str, source: str) -> None:
    origin = Origin(project, source)
    assert str(origin) == f"{project} {source}"
    assert Origin.parse(str(origin)) == origin


@pytest.mark.parametrize("text", ["", "shop", "shop "])
def test_a_text_without_a_source_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match="PROJECT SOURCE"):
        Origin.parse(text)


@pytest.mark.parametrize("project", ["my shop", " shop", "shop\n"])
def test_a_project_has_no_spaces_in_its_name(project: str) -> None:
    with pytest.raises(ValueError, match="spaces"):
        check_project(project)


def test_a_queue_names_origin_agent_and_version() -> None:
    origin = Origin("shop", "file:my agents.py")
    assert queue(origin, "mailer", "0.1.0") == "shop file:my agents.py mailer@0.1.0"
    assert queue(str(origin), "mailer", "0.1.0") == queue(origin, "mailer", "0.1.0")
    assert split_queue(queue(origin, "mailer", "0.1.0")) == (str(origin), "mailer@0.1.0")


def test_files_and_teams_are_named_relative_to_the_project_root(tmp_path: Path) -> None:
    assert file_source(tmp_path / "app" / "agents.py", tmp_path) == "file:app/agents.py"
    assert team_source(tmp_path / "teams" / "support", tmp_path) == "team:teams/support"
    assert file_source(tmp_path / "agents.py", tmp_path / "app") == "file:../agents.py"


def test_a_path_is_the_same_from_whichever_folder_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "agents.py").touch()
    monkeypatch.chdir(tmp_path / "app")
    assert file_source("../agents.py", tmp_path) == file_source(tmp_path / "agents.py", tmp_path) == "file:agents.py"


def test_a_link_to_a_project_names_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "release-7").mkdir()
    (tmp_path / "release-7" / "agents.py").touch()
    (tmp_path / "current").symlink_to(tmp_path / "release-7")
    assert file_source(tmp_path / "current" / "agents.py", tmp_path / "release-7") == "file:agents.py"


def test_a_file_that_a_deploy_links_to_another_one_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "agents-7.py").touch()
    (tmp_path / "agents.py").symlink_to(tmp_path / "7" / "agents-7.py")
    assert file_source(tmp_path / "agents.py", tmp_path) == "file:agents.py"


def test_without_a_root_a_file_is_known_by_its_name(tmp_path: Path) -> None:
    assert file_source(tmp_path / "app" / "agents.py", None) == "file:agents.py"


def test_a_mount_is_known_without_the_user_and_password_in_its_address() -> None:
    assert mount_source("http://user:secret@host:8000/api", "mailer") == "mount:http://host:8000/api#mailer"


def test_a_long_source_is_cut_and_stays_different_from_others() -> None:
    one, other = (mount_source("mcp:" + "x" * 5000 + end, "mailer") for end in "ab")
    assert one != other
    assert len(one) < MAX_SOURCE + 40


def test_a_source_holds_only_what_a_database_takes_as_text(tmp_path: Path) -> None:
    odd = file_source(tmp_path / os.fsdecode(b"a\xff\n.py"), tmp_path)
    odd.encode()
    assert "\n" not in odd
    assert odd.startswith("file:a")


def test_a_module_is_known_by_its_dotted_name() -> None:
    assert module_source("shop.agents") == "module:shop.agents"
