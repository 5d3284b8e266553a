"""The demo's server where its port is taken between the look and the start."""

from __future__ import annotations

from pathlib import Path

from interlingua.cli.demo.processes import Process, project
from interlingua.server.http_server import listen


async def test_a_port_that_somebody_was_faster_to_take_is_given_up_for_a_free_one(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        server = Process([*map(str, project(tmp_path, ["echo"]))], tmp_path / "s.db", taken.getsockname()[1])
        try:
            await server.start()
            assert server.address.rpartition(":")[2] not in ("", str(taken.getsockname()[1]))
        finally:
            await server.stop()
