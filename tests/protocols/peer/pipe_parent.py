"""A node that reaches another by the pipes of a process that it starts, and starts it again whenever it ends; for tests
of binding B between two processes. `python -m tests.protocols.peer.pipe_parent IDENTITY STORE MAX_BYTES COMMAND...`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from interlingua.protocols.peer.bindings.dial import start_process
from interlingua.protocols.peer.commands_node import hosting
from interlingua.protocols.peer.config import NodeSettings
from interlingua.protocols.peer.node.session import Session


async def main(identity: str, store: str, max_bytes: int, command: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    settings = NodeSettings(
        name="Near", port=0, http_port=0, identity=Path(identity), max_msg_bytes=max_bytes, card_wait=0.3
    )
    async with hosting(store, [], settings) as host:
        node = host.node
        peer = node.peers.find(lambda one: one.known.name == "Far") or node.peers.new("Far")
        told: list[str] = []

        async def keep_up() -> None:
            while True:
                process = await start_process(command, max_bytes=max_bytes, env=dict(os.environ))
                print(f"the process is {process.pid}", file=sys.stderr, flush=True)
                if not told:
                    told.append("up")
                    print(*host.lines(), "Ctrl-C stops.", sep="\n", file=sys.stderr, flush=True)
                session = Session(node, process.channel, binding="stdio", inbound=False, peer=peer, remote="a process")
                try:
                    await node.serve(session)
                finally:
                    await process.end()

        keeping = node.spawn(keep_up())
        await stop.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
