"""Long runs of what must cost no memory, however long it goes on. Shorter ones are in the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocols.editor.test_stdio import unread_costs_no_memory


@pytest.mark.faults
async def test_two_hundred_megabytes_that_a_client_does_not_read_cost_no_memory(tmp_path: Path) -> None:
    await unread_costs_no_memory(tmp_path, 100, 200)
