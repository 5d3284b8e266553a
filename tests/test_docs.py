"""Pages that are made from code and data are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlingua.engine.settings import Settings
from interlingua.model.errors import all_errors
from interlingua.model.status import Status
from interlingua.mounts.settings import variable
from interlingua.protocols.installed import protocols
from interlingua.protocols.parity import Carried
from interlingua.server.config import build
from interlingua.server.config.load import read
from interlingua.server.config.settings import all_settings
from tools import diagram, parity, reference


def test_the_engine_page_is_up_to_date() -> None:
    assert diagram.main(["--check"]) == 0, "run `make docs`"


def test_the_parity_page_is_up_to_date() -> None:
    assert parity.main(["--check"]) == 0, "run `make docs`"


def test_a_stale_parity_page_is_found_and_written_again(tmp_path: Path) -> None:
    page = tmp_path / "parity.md"
    page.write_text("old")
    assert parity.main(["--check", "--page", str(page)]) == 1
    assert parity.main(["--page", str(page)]) == 0
    assert parity.main(["--check", "--page", str(page)]) == 0


def test_a_stale_short_form_of_parity_is_found_and_what_is_written_by_hand_stays(tmp_path: Path) -> None:
    page, readme = tmp_path / "parity.md", tmp_path / "README.md"
    readme.write_text("Before.\n<!-- parity:begin -->\nold\n<!-- parity:end -->\nAfter.\n")
    both = ["--page", str(page), "--readme", str(readme)]
    assert parity.main(both) == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert "old" not in lines
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(parity.tables()["DOOR"])
    assert all(
        one.lost in readme.read_text() for side in parity.tables().values() for t in side.values() for one in t.values()
    )
    readme.write_text(readme.read_text().replace("all but", "nearly all but"))
    assert parity.main(["--check", *both]) == 1
    with pytest.raises(ValueError, match="parity:begin"):
        parity.short(parity.tables(), "Nothing here.")


def test_every_loss_of_the_tables_stands_on_the_parity_page_and_in_its_pairs() -> None:
    tables = parity.tables()
    page = parity.render(tables)
    lost = parity.losses(tables)
    assert lost
    for (side, protocol, feature), number in lost.items():
        assert tables[side][protocol][feature].lost in page
        rows = [line for line in page.splitlines() if line.startswith(f"| `{protocol}` |")]
        if side == "MOUNT":  # whatever the door is
            assert all(str(number) in cell.replace(",", "").split() for cell in rows[0].split("|")[2:-1])


def test_a_table_of_parity_that_leaves_something_out_is_refused() -> None:
    tables = parity.tables()
    short = dict(tables["DOOR"]["connect"])
    del short["stream"]
    tables["DOOR"]["connect"] = short
    tables["MOUNT"]["cap"] = {**tables["MOUNT"]["cap"], "run": Carried(""), "ask": Carried("so", "no sentence")}
    found = "\n".join(parity.problems(tables))
    assert "DOOR of connect does not have the features of parity.FEATURES: stream" in found
    assert "MOUNT of cap: run does not say how" in found
    assert "MOUNT of cap: what is lost of ask is no sentence" in found


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference.main(["--check"]) == 0, "run `make docs`"


def test_stale_reference_pages_are_found_and_what_is_written_by_hand_stays(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    page.write_text(
        "Before.\n<!-- entries:begin -->\nold\n<!-- entries:end -->\n<!-- settings:begin -->\n<!-- settings:end -->\n"
    )
    assert reference.main(["--check", "--docs", str(tmp_path)]) == 1
    assert reference.main(["--docs", str(tmp_path)]) == 0
    assert reference.main(["--check", "--docs", str(tmp_path)]) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "Before."
    assert "old" not in lines
    with pytest.raises(ValueError, match="entries:begin"):
        reference.configuration("Nothing here.")


def test_the_reference_names_every_setting_and_every_option() -> None:
    settings = reference.settings_part() + reference.entries_part()
    for one in all_settings():
        assert f"| `{one.name}` |" in settings
        assert f"| `{one.variable}` |" in settings
        assert f"`{one.flags.split('/')[0]}`" in settings
    page = reference.commands_page()
    for name in ("interlingua run", "interlingua config check", "interlingua mounts", "interlingua team run"):
        assert f"# {name}\n" in page
    assert "`--limits-max-running RUNNING`" in page


def test_the_config_in_the_docs_has_no_mistakes(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    whole, project = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "interlingua.toml"
    file.write_text(project + whole)
    config = read(file, environ={"OTHER_KEY": "x", "ANTHROPIC_API_KEY": "y"})
    config.check()
    assert [one.name for one in build.mounts(config)] == [
        "connect+https://other.example.org/connect as other-*", "editor:claude-agent-acp as coder",
    ]  # fmt: skip
    config.check()


def test_a_stale_engine_page_is_found_and_only_its_parts_are_written_again(tmp_path: Path) -> None:
    page = tmp_path / "engine.md"
    page.write_text(
        "Before.\n<!-- status:begin -->\nold\n<!-- status:end -->\nBetween.\n<!-- errors:begin -->\n"
        "<!-- errors:end -->\n<!-- settings:begin -->\n<!-- settings:end -->\nAfter.\n"
    )
    assert diagram.main(["--check", "--page", str(page)]) == 1
    assert diagram.main(["--page", str(page)]) == 0
    assert diagram.main(["--check", "--page", str(page)]) == 0
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert "Between." in lines
    assert "old" not in lines


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="status:begin"):
        diagram.render("Nothing here.")


def test_the_parts_name_every_status_error_and_setting() -> None:
    assert all(status.value in diagram.status_part() for status in Status)
    assert all(f"`{error.code}` | `{error.__name__}`" in diagram.errors_part() for error in all_errors())
    rows = diagram.settings_part().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(Settings.__struct_fields__)


def test_every_setting_is_described() -> None:
    for row in diagram.settings_part().splitlines()[2:]:
        assert row.split("|")[-2].strip(), f"{row}: no text under this setting in engine/settings.py"


def test_the_settings_of_every_mount_stand_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in (Path(__file__).parent.parent / "docs").glob("*.md"))
    for protocol in protocols():
        for name in protocol.load("mount_settings").__struct_fields__ if protocol.mount else ():
            assert f"`{variable(protocol.name, name)}`" in pages or name == "headers"
