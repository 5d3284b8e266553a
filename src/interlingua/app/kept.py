"""A program that ends with whoever started it, however that came: also where that was killed and could say nothing.

It has a session of its own, so that a Ctrl-C at the terminal reaches only its owner, who ends things in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

_LONGEST = 1024 * 1024  # bytes of one line of output

# The program says its own pid before it begins. A shell beside it holds our pipe: when that ends, so does the program.
# The system's own signal for the death of a parent would also come when only the thread ends that started it.
_KEEPER = """
exec 3<&0 </dev/null
/bin/sh -c 'echo $$; exec "$@"' sh "$@" 3<&- & program=$!
(read -r end <&3; kill -9 $program) >/dev/null 2>&1 & keeper=$!
exec 3<&- >/dev/null 2>&1
wait $program
code=$?
kill $keeper
exit $code
"""


class Kept:
    """A program that runs. `said` is called with each line that it writes, on stdout or stderr."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int, said: Callable[[str], None]) -> None:
        self._process = process
        self.pid = pid
        self._ended = asyncio.get_running_loop().create_task(self._read(said))

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], said: Callable[[str], None]) -> Kept:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _KEEPER, "sh", *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env=dict(env), start_new_session=True, limit=_LONGEST,
        )  # fmt: skip
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()), said)

    async def ended(self) -> int:
        """Its exit code, as a shell tells it, when it is over and all that it said was told."""
        return await asyncio.shield(self._ended)

    async def stop(self, patience: float) -> int:
        """Ask it to end, and end it when it takes longer than that."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                return await self.ended()
        self.signal(signal.SIGKILL)
        return await self.ended()

    def signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _read(self, said: Callable[[str], None]) -> int:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than anybody wants to read
                continue
            if not line:
                break
            said(line.decode(errors="replace").rstrip("\r\n"))
        code = await self._process.wait()
        self._process.stdin.close()
        return code
