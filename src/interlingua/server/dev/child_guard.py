"""Runs a program that ends with the process that started it, even if that process was killed without a chance to act.

The program has a session of its own, so that a Ctrl-C at the terminal reaches only its owner, which ends things in
order. `Kept` is for an event loop that reads the program's output, `KeptServer` for a server that writes its output to
a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_LONGEST = 1024 * 1024  # bytes of one line of output

# The program says its own pid before it begins. A shell beside it holds a pipe of this process: when that ends, so does
# the program. The signal of the system for the death of a parent would also come when only the thread ends that started
# the program. Arguments: the signal that ends it then, the file that it writes to (or nothing: to this process),
# and the program.
_KEEPER = """
end=$1; log=$2; shift 2
exec 3<&0 </dev/null
/bin/sh -c 'echo $$; log=$1; shift; [ -z "$log" ] || exec >>"$log" 2>&1; exec "$@"' sh "$log" "$@" 3<&- & program=$!
(read -r line <&3; kill -$end $program) >/dev/null 2>&1 & keeper=$!
exec 3<&- >/dev/null 2>&1
wait $program
code=$?
kill $keeper
exit $code
"""


def _command(program: Sequence[str], end: str, log: Path | None = None) -> list[str]:
    return ["/bin/sh", "-c", _KEEPER, "sh", end, str(log or ""), *program]


class KeptServer:
    """Runs a server until it is ended or the process that started it is gone: then it gets the signal `last`. Its calls
    block."""

    def __init__(self, program: Sequence[str], log: Path, *, last: signal.Signals, **more: Any) -> None:
        """`more`: of `subprocess.Popen`."""
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            _command(program, last.name.removeprefix("SIG"), log), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, **more,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def end(self, how: signal.Signals, patience: float) -> None:
        """Ends the server by a signal, and kills it when it takes longer than the patience."""
        with self._process:  # its pipes are closed with this
            self._signal(how)
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Kept:
    """A program that runs. `said` is called with each line that it writes, on stdout or stderr."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int, said: Callable[[str], None]) -> None:
        self._process = process
        self.pid = pid
        self._ended = asyncio.get_running_loop().create_task(self._read(said))

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], said: Callable[[str], None]) -> Kept:
        process = await asyncio.create_subprocess_exec(
            *_command(command, "KILL"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env=dict(env), start_new_session=True, limit=_LONGEST,
        )  # fmt: skip
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()), said)

    async def ended(self) -> int:
        """Waits until the program is over and all its output was passed on. Returns its exit code in the form of a
        shell."""
        return await asyncio.shield(self._ended)

    async def stop(self, patience: float) -> int:
        """Asks the program to end, and ends it when it takes longer than that."""
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
