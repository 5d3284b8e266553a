"""A Python that need not start from nothing: one process imports our modules and the published libraries once, and
splits off a process of its own for each who comes.

To import those takes many times as long as what a command, a tool server or an agent at a pipe then does in a test.
What comes of it is a real process, with its own arguments, environment, folder, files and exit code; only that its
modules are loaded already. There are two ways to it. `commands.py` is for tests that start a command themselves: there
the process is the very one that they see. Where something else starts a program, a small one stands where `python` or
`interlingua` would: it hands over its arguments, environment, folder and pipes, passes on signals, and ends as the
split-off process does; when it is killed, so is that. Tests of how processes start and end are for neither.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import contextlib
import fcntl
import gc
import importlib
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import interlingua as il

FOLDER = "WARM_FOLDER"  # the variable that tells all workers of one run where the warm process is
STARTED = "WARM_STARTED"  # and the one that tells a split-off process what it shall start for `python`
NUMBER = struct.Struct("!i")
_STARTERS = ("interlingua.tools.servers", "interlingua.cli.demo.processes", "interlingua.cli.demo.part_doors")
_LIBRARIES = ("acp", "anyio._backends._asyncio", "mcp.server.mcpserver", "mcp.server.stdio")
_ROOT = Path(__file__).parents[2]
_LONGEST = 100  # characters of the address of a socket

_PROGRAM = """#!{python} -IS
import _signal, _socket, os, sys
warm = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
warm.connect({address!r})
for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
    _signal.signal(number, lambda got, _: warm.send(bytes([got])))
order = repr(({before!r} + sys.argv[1:], dict(os.environ), os.getcwd(), False)).encode()
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
warm.sendmsg([len(order).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
warm.sendall(order)
os.closerange(0, 3)
told = warm.recv(4)
code = int.from_bytes(told, "big", signed=True) if told else 1
if code < 0:
    if -code != _signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class _Hearth:
    """The warm process, as it is seen from where it was started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="il-warm-"))
        if len(str(self.folder)) > _LONGEST:
            self.folder.rmdir()
            self.folder = Path(tempfile.mkdtemp(prefix="il-warm-", dir="/tmp"))
        address = str(self.folder / "s")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen(64)
            path = os.pathsep.join([str(Path(il.__file__).parents[1]), str(_ROOT)])
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno())], pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        for name, before in (("python", []), ("interlingua", ["-m", "interlingua"])):
            program = self.folder / name
            program.write_text(_PROGRAM.format(python=sys.executable, address=address, before=before))
            program.chmod(0o700)
        atexit.register(self.close)

    def wait(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"warm\n", "the warm process did not start"

    def close(self) -> None:
        self._process.communicate()  # it ends with its stdin
        shutil.rmtree(self.folder, ignore_errors=True)


def for_all_workers() -> None:
    """Start one that the workers of this run find, which are not there yet."""
    os.environ[FOLDER] = str(_Hearth().folder)


@cache
def _folder() -> Path:
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    hearth = _Hearth()
    hearth.wait()
    return hearth.folder


def python() -> str:
    """What stands where `sys.executable` would."""
    return str(_folder() / "python")


def interlingua() -> str:
    """What stands where the script `interlingua` would."""
    return str(_folder() / "interlingua")


def order(args: Sequence[str], env: Mapping[str, str], cwd: Path, fds: Sequence[int], *, terminal: bool) -> None:
    """Have `interlingua` started. The descriptors are its first three, and where its number and its end are told."""
    data = repr((["-m", "interlingua", *args], dict(env), str(cwd), terminal)).encode()
    with socket.socket(socket.AF_UNIX) as warm:
        warm.connect(str(_folder() / "s"))
        socket.send_fds(warm, [NUMBER.pack(len(data))], list(fds))
        warm.sendall(data)


# -- in the warm process --------------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what any command or tool server may need, and what libraries import when they are first used."""
    import typer.main
    from typer.testing import CliRunner

    from interlingua.cli import app

    from . import ready_stores

    ours = (module.name for module in pkgutil.walk_packages(il.__path__, "interlingua."))
    for name in (*_LIBRARIES, *ours):
        if not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except ImportError:  # of a package that need not be installed
                continue
    typer.main.get_command = cache(typer.main.get_command)  # it reads every signature: more than most commands take
    names = [known.name for known in (*app.app.registered_commands, *app.app.registered_groups)]
    for word in (None, *names):
        group: Any = typer.main.get_command(app.of(word))
        for one in group.commands.values():
            assert one.params is not None  # some are made when they are asked for
    for args in (["runs", "--help"], ["runs", "list", "--limit", "0"]):
        CliRunner().invoke(app.app, args)
    ready_stores.begin()
    asyncio.run(_serve_once())
    assert threading.active_count() == 1, "a process of several threads cannot be split"
    gc.collect()
    gc.freeze()


async def _serve_once() -> None:
    """What is imported, compiled and kept when a server first starts, and when somebody first calls one."""
    import httpx2

    from interlingua.server.app import ServeSettings, serving

    with tempfile.TemporaryDirectory(prefix="il-warm-") as folder:
        async with (
            serving(Path(folder, "store.db"), [], ServeSettings(port=0)) as server,
            httpx2.AsyncClient() as client,
        ):
            await client.get(server.address)


class _Splitting:
    """Starts a process for each who comes."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._wakes, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._ordering: set[socket.socket] = set()  # who has not said yet what is wanted
        self._standing: dict[socket.socket, int] = {}  # a small program → the process that it stands for
        self._told: dict[int, int] = {}  # process → where its end is told

    def run(self) -> None:
        """Returns in each process that was split off."""
        while True:
            ready, _, _ = select.select(
                [0, self._wakes, self._listening, *self._ordering, *self._standing], [], []
            )  # fmt: skip
            if 0 in ready:  # the tests are over
                for pid in (*self._standing.values(), *self._told):
                    _kill(pid)
                os._exit(0)
            if self._wakes in ready:
                os.read(self._wakes, 4096)
                self._reap()
            if self._listening in ready:
                self._ordering.add(self._listening.accept()[0])
            for one in self._standing.keys() & set(ready):
                self._hear(one)
            for one in self._ordering & set(ready):
                self._ordering.remove(one)
                if self._split_off(one):
                    return

    def _hear(self, standing: socket.socket) -> None:
        if data := standing.recv(16):
            for number in data:
                os.kill(self._standing[standing], number)
        else:
            _kill(self._standing.pop(standing))
            standing.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = NUMBER.pack(os.waitstatus_to_exitcode(status))
            for standing in [one for one, known in self._standing.items() if known == pid]:
                del self._standing[standing]
                with contextlib.suppress(OSError):  # nobody wants to know any more
                    standing.send(code)
                standing.close()
            if pid in self._told:
                fd = self._told.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(fd, code)
                os.close(fd)

    def _split_off(self, asking: socket.socket) -> bool:
        """Whether this is the process that was asked for."""
        head, fds, _, _ = socket.recv_fds(asking, NUMBER.size, 4)
        data = _whole(asking, NUMBER.unpack(head)[0]) if head else b""
        if not data:
            asking.close()
            return False
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listening, asking, *self._ordering, *self._standing):
                one.detach()  # not closed later, when the number is somebody else's
            _become(fds, *ast.literal_eval(data.decode()))
            return True
        for fd in fds[:3]:
            os.close(fd)
        if len(fds) == 4:
            self._told[pid] = fds[3]
            os.write(fds[3], NUMBER.pack(pid))
            asking.close()
        else:
            self._standing[asking] = pid
        return False


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the whole of what it started, where it has a group of its own
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _whole(asking: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := asking.recv(size - len(data))):
        data += more
    return data if len(data) == size else b""


def _become(fds: Sequence[int], words: list[str], env: dict[str, str], cwd: str, terminal: bool) -> None:
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, max(*fds, 64) + 64)
    if terminal or len(fds) == 3:
        os.setsid()
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C and its going away reach this process
    # Streams know from their making what they are of: a pipe cannot be sought in, and a terminal is written by lines.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    vars(sys).update({f"__{name}__": getattr(sys, name) for name in ("stdin", "stdout", "stderr")})
    os.environ.clear()
    os.environ.update(env)
    # As it would have read them at its start; a process of its own does.
    sys.pycache_prefix = env.get("PYTHONPYCACHEPREFIX") or None
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    if program := os.environ.pop(STARTED, None):
        for name in _STARTERS:
            vars(sys.modules[name])["sys"] = standing_for(program)
    os.chdir(cwd)
    sys.argv[:] = words


def standing_for(program: str) -> Any:
    """The module `sys` as one sees it who starts this program for `python`."""
    return SimpleNamespace(**{**vars(sys), "executable": program})


def _run() -> None:
    """As `python` would with these arguments, as far as it is needed here."""
    if sys.argv[0] != "-m":
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    sys.path[0] = os.getcwd()  # noqa: PTH109 - a text, as the others
    sys.argv[:] = sys.argv[1:]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            _leave_with.append(leaving.code or 0)
        raise
    _leave_with.append(0)


_leave_with: list[int] = []


def _leave() -> None:
    """To take everything down that was imported takes longer than most commands."""
    if _leave_with:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return  # the interpreter has a way to say so
        os._exit(_leave_with[0])


if __name__ == "__main__":
    atexit.register(_leave)  # before all others, so that it is the last
    warm_up()
    print("warm", flush=True)
    _Splitting(socket.socket(fileno=int(sys.argv[1]))).run()
    _run()
