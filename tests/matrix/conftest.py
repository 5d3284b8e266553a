"""One hub, with one set of sources, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import running


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the hub."""
    with running.running_all(tmp_path_factory.mktemp("matrix")) as address:
        yield address
