"""A Python that need not start from nothing: one process imports our modules and the published MCP library once, and
splits off a process of its own for each who comes.

To import those takes many times as long as what a tool server or an agent at a pipe then does in a test. Here a small
program stands where `python` would: it hands its arguments, environment, folder and pipes to the warm process, passes
on signals, and ends as the split-off process does; when it is killed, so is that. It knows `FILE` and `-m MODULE`.
`cli/warm.py` is for tests that start a command themselves: there the process is the very one that they see. Tests of
how processes start and end are for neither.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import interlingua as il
from tests.cli import warm

NAMED = "WARM_PYTHON"  # the variable that tells processes of tests where the small program is
_ROOT = Path(__file__).parents[1]
_SIZE = struct.Struct("!i")

_PROGRAM = """#!{python} -IS
import _signal, _socket, os, sys
warm = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
warm.connect({address!r})
for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
    _signal.signal(number, lambda got, _: warm.send(bytes([got])))
order = repr(({before!r} + sys.argv[1:], dict(os.environ), os.getcwd())).encode()
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
warm.sendmsg([len(order).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
warm.sendall(order)
os.closerange(0, 3)
told = warm.recv(4)
code = int.from_bytes(told, "big", signed=True) if told else 1
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL) if -code != _signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class _Hearth:
    """The warm process, as it is seen from here."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="il-warm-"))
        address = str(self.folder / "s")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen(64)
            path = os.pathsep.join([str(Path(il.__file__).parents[1]), str(_ROOT)])
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listening.fileno())], pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"warm\n", "the warm process did not start"
        for name, before in (("python", []), ("interlingua", ["-m", "interlingua"])):
            program = self.folder / name
            program.write_text(_PROGRAM.format(python=sys.executable, address=address, before=before))
            program.chmod(0o700)
        atexit.register(self.close)

    def close(self) -> None:
        self._process.communicate()  # it ends with its stdin
        shutil.rmtree(self.folder, ignore_errors=True)


_hearth = cache(_Hearth)


def program() -> str:
    """What stands where `sys.executable` would."""
    return str(_hearth().folder / "python")


def interlingua() -> str:
    """What stands where the script `interlingua` would."""
    return str(_hearth().folder / "interlingua")


# -- in the warm process --------------------------------------------------------------------------------------


def _warm_up() -> None:
    import mcp.server.lowlevel
    import mcp.server.mcpserver
    import mcp.server.stdio  # noqa: F401

    warm.warm_up()


def _serve(listening: socket.socket) -> None:
    """Start a process for each who comes. Returns in each of them."""
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    served: dict[socket.socket, int] = {}  # who waits for the end → process; 0 while it has not ordered
    while True:
        ready, _, _ = select.select([listening, 0, wakes, *served], [], [])
        if 0 in ready:  # the tests are over
            for pid in filter(None, served.values()):
                _kill(pid)
            os._exit(0)
        if wakes in ready:
            os.read(wakes, 4096)
            _reap(served)
        if listening in ready:
            served[listening.accept()[0]] = 0
        for waiting in [one for one in served if one in ready]:
            if served[waiting] == 0:
                if _split_off(waiting, served):
                    listening.detach()
                    return
            elif data := waiting.recv(16):
                for number in data:
                    os.kill(served[waiting], number)
            else:
                _kill(served.pop(waiting))
                waiting.close()


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it is no leader of a group yet
        os.kill(pid, signal.SIGKILL)


def _reap(served: dict[socket.socket, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for waiting in [one for one, known in served.items() if known == pid]:
            del served[waiting]
            with contextlib.suppress(OSError):  # nobody wants to know any more
                waiting.send(_SIZE.pack(os.waitstatus_to_exitcode(status)))
            waiting.close()


def _split_off(waiting: socket.socket, served: dict[socket.socket, int]) -> bool:
    """Whether this is the process that was asked for."""
    head, fds, _, _ = socket.recv_fds(waiting, _SIZE.size, 3)
    if not head:
        del served[waiting]
        waiting.close()
        return False
    size, data = _SIZE.unpack(head)[0], b""
    while len(data) < size:
        data += waiting.recv(size - len(data))
    pid = os.fork()
    if pid:
        served[waiting] = pid
        for fd in fds:
            os.close(fd)
        return False
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for one in served:
        one.detach()  # they are not closed later, when the number is somebody else's
    os.closerange(3, max(fds) + 64)
    words, env, cwd = ast.literal_eval(data.decode())
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv[:] = words
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        errors = "backslashreplace" if number == 2 else "strict"
        file = os.fdopen(number, mode, encoding="utf-8", errors=errors, closefd=False)  # as those that it replaces
        vars(sys)[name] = vars(sys)[f"__{name}__"] = file
    return True


def _run() -> None:
    """As `python` would with these arguments, as far as it is needed here."""
    if sys.argv[0] != "-m":
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    sys.path[0] = os.getcwd()  # noqa: PTH109 - a text, as the others
    sys.argv[:] = sys.argv[1:]
    if sys.argv[0] == "interlingua":
        warm.run()
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _warm_up()
    print("warm", flush=True)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run()
