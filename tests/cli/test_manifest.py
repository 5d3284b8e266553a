"""`interlingua manifest`: exported manifests are good, and what is wrong with a file is told with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import Result

from .conftest import EXAMPLES, ZOO

Cli = Callable[..., Result]

MAIL = str(EXAMPLES / "mailcomposer.py")


@pytest.mark.parametrize("name", ["current", "old"])
def test_what_is_exported_passes_the_check(here: Cli, tmp_path: Path, name: str) -> None:
    done = here("manifest", "export", MAIL, "-o", "mail.json", "--extension-name", name, "--url", "https://a.example/c")
    assert (done.code, done.out) == (0, "")
    document = json.loads((tmp_path / "mail.json").read_text())
    (extension,) = document["extensions"]
    assert extension["name"].startswith("schema." if name == "current" else "oasf.")
    (option,) = extension["data"]["deployment"]["deployment_options"]
    assert option["protocol"]["url"] == "https://a.example/c"
    assert document["name"] == "org.agntcy.mailcomposer"
    checked = here("manifest", "check", "mail.json")
    assert (checked.code, checked.out) == (0, "mail.json: this manifest is good\n")


def test_one_of_several_agents_goes_to_stdout_and_all_of_them_into_a_folder(here: Cli, tmp_path: Path) -> None:
    assert here("manifest", "export", ZOO, "--agent", "shout").json["name"] == "shout"
    many = here("manifest", "export", ZOO)
    assert many.code == 2
    assert "--agent" in many.err
    (tmp_path / "out").mkdir()
    assert here("manifest", "export", ZOO, "--agent", "shout", "--agent", "confirm", "-o", "out").code == 0
    files = sorted(str(file) for file in (tmp_path / "out").iterdir())
    assert [Path(file).name for file in files] == ["confirm-0.1.0.json", "shout-0.1.0.json"]
    assert here("manifest", "check", *files).code == 0
    assert here("manifest", "export", ZOO, "--agent", "nobody").code == 2
    assert here("manifest", "export", MAIL, "-o", "nowhere/mail.json").code == 2


def test_all_problems_of_all_files_are_told_with_file_and_place(here: Cli, tmp_path: Path) -> None:
    good = here("manifest", "export", MAIL).out
    (tmp_path / "good.json").write_text(good)
    broken = json.loads(good)
    broken["locators"] = []
    del broken["extensions"][0]["data"]["acp"]["input"]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    (tmp_path / "text.json").write_text("{")
    files = ["good.json", "broken.json", "text.json", "gone.json"]
    done = here("manifest", "check", *files)
    assert done.code == 1
    told = done.out.splitlines()
    assert told[0] == "good.json: this manifest is good"
    assert "broken.json: /locators: is empty" in told
    assert "broken.json: /extensions/0/data/acp/input: is missing" in told
    assert any(line == "text.json: the top level: is not JSON: it is cut off at byte 1" for line in told)
    assert any(line.startswith("gone.json: the top level: cannot be read") for line in told)
    as_json = here("manifest", "check", "--json", *files)
    assert as_json.code == 1
    assert [entry["ok"] for entry in as_json.json] == [True, False, False, False]
    places = {problem["path"] for problem in as_json.json[1]["problems"]}
    assert places == {"/locators", "/extensions/0/data/acp/input"}
