"""A NATS server for tests: one for all that only need one, and as many as somebody wants to break."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from interlingua.bus.nats.nats_bus import NatsBus
from interlingua.bus.port import BusSettings
from interlingua.server.dev.local_nats import LocalNats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_prefixes = itertools.count(1)


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNats]:
    with LocalNats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def nats_url(shared_nats: LocalNats) -> str:
    """The address of a bus that nobody else uses."""
    return f"{shared_nats.url}/test{next(_prefixes)}"


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[NatsBus]:
    bus = NatsBus(BusSettings(url=url, **settings))
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()
