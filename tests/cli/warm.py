"""Processes that carry out a command and need not start from nothing: one process imports everything once, and splits
off a process of its own for each command.

Most of the time of a command is its start, and the suite has hundreds of them. What comes of it is a real process, with
its own arguments, environment, folder, files and exit code; only that its modules are loaded already. So that what a
command imports is tested too, the first of each kind starts from nothing. Tests of how a command starts are not for
this.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

COMMAND = [sys.executable, "-m", "interlingua"]
_NUMBER = struct.Struct("!i")


def start(
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """`interlingua` with these arguments, and a pipe for its stderr: the first of its kind from nothing."""
    if not first(args):
        return Warm(args, env, cwd, stdin=stdin, stdout=stdout)
    return subprocess.Popen(
        [*COMMAND, *args], env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def first(args: Sequence[str], where: str = "started") -> bool:
    """Whether nobody has started a command of this kind there before."""
    words = "-".join(takewhile(str.isalpha, args[:2]))
    try:
        (Path(os.environ["SESSION_FOLDER"]) / f"{where}-{words}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Warm(subprocess.Popen[str]):
    """`interlingua` with these arguments: what `subprocess.Popen` gives, with pipes for what is not named."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
    ) -> None:
        self._child_created = False  # not by the class that this one is of: it would wait for it
        self.args, self.returncode = list(args), None
        self._ends: list[int] = []  # those of the process
        self.stdin = self.stdout = None
        if stdin == subprocess.PIPE:
            self.stdin = self._pipe("w")
        else:
            self._ends.append(os.open(os.devnull, os.O_RDONLY))
        if stdout == subprocess.PIPE:
            self.stdout = self._pipe("r")
        else:
            self._ends.append(os.dup(1))
        self.stderr = self._pipe("r")
        self._order(env, cwd)

    def _order(self, env: Mapping[str, str], cwd: Path, *, terminal: bool = False) -> None:
        """Have it started, and its ends closed here."""
        self._status, told = os.pipe()
        self._ends.append(told)
        try:
            order = {"args": self.args, "env": dict(env), "cwd": str(cwd), "terminal": terminal}
            _hearth().order(order, self._ends)
        finally:
            for fd in self._ends:
                os.close(fd)
        self.pid = self._told()

    def _pipe(self, mode: str) -> Any:
        reads, writes = os.pipe()
        ours, theirs = (reads, writes) if mode == "r" else (writes, reads)
        self._ends.append(theirs)
        return os.fdopen(ours, mode, encoding="utf-8")

    def _told(self) -> int:
        data = os.read(self._status, _NUMBER.size)
        if not data:
            raise AssertionError("the process that splits off others has ended")
        return int(_NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._told()
            os.close(self._status)
        return int(self.returncode)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        deadline = None if timeout is None else time.monotonic() + timeout
        found: dict[str, str] = {}

        def read(name: str, file: Any) -> None:
            with file:
                found[name] = file.read()

        def write(file: Any) -> None:
            try:
                with file:
                    file.write(input or "")
            except BrokenPipeError:  # it did not want to know
                pass

        files = {name: file for name in ("stdout", "stderr") if (file := getattr(self, name)) and not file.closed}
        at_it = [threading.Thread(target=read, args=pair, daemon=True) for pair in files.items()]
        if self.stdin is not None and not self.stdin.closed:
            at_it.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        for thread in at_it:
            thread.start()
        for thread in at_it:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return found.get("stdout", ""), found.get("stderr", "")


class WarmAtTerminal(Warm):
    """The same at a terminal: this is its end there."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], cwd: Path, end: int) -> None:
        self._child_created = False
        self.args, self.returncode = list(args), None
        self.stdin = self.stdout = self.stderr = None
        self._ends = [end, os.dup(end), os.dup(end)]
        self._order(env, cwd, terminal=True)


class _Hearth:
    """The warm process, as it is seen from here."""

    def __init__(self) -> None:
        from .conftest import clean_env

        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], env=clean_env(), pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    def order(self, what: dict[str, Any], fds: Sequence[int]) -> None:
        data = json.dumps(what).encode()
        socket.send_fds(self._orders, [_NUMBER.pack(len(data))], list(fds))
        self._orders.sendall(data)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


_hearth = cache(_Hearth)


# -- in the warm process --------------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what any command may need, and what libraries import when they are first used."""
    import typer.main

    import interlingua
    from interlingua.cli import commands

    for module in pkgutil.walk_packages(interlingua.__path__, "interlingua."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:  # of a package that need not be installed
                continue
    from typer.testing import CliRunner

    typer.main.get_command = cache(typer.main.get_command)  # it reads every signature: more than most commands take
    names = [known.name for known in (*commands.app.registered_commands, *commands.app.registered_groups)]
    for name in (None, *names):
        typer.main.get_command(commands.of(name))
    for args in (["runs", "--help"], ["runs", "list", "--limit", "0"]):
        CliRunner().invoke(commands.app, args)
    assert threading.active_count() == 1, "a process of several threads cannot be split"
    gc.collect()
    gc.freeze()


def split_off(orders: socket.socket) -> None:
    """Start a process for each order. Returns in each of them, and in this one when there are no more orders."""
    running: dict[int, int] = {}  # process → where its end is told
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([orders.fileno(), wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _tell(running.pop(pid), os.waitstatus_to_exitcode(status))
        if orders.fileno() in ready:
            head, fds, _, _ = socket.recv_fds(orders, _NUMBER.size, 4)
            if not head:
                sys.exit()
            order = json.loads(_whole(orders, _NUMBER.unpack(head)[0]))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                orders.close()
                for fd in (wakes, wake, *running.values()):
                    os.close(fd)
                _become(order, fds)
                return
            for fd in fds[:3]:
                os.close(fd)
            running[pid] = fds[3]
            os.write(fds[3], _NUMBER.pack(pid))


def _tell(fd: int, code: int) -> None:
    try:
        os.write(fd, _NUMBER.pack(code))
    except BrokenPipeError:  # nobody wants to know any more
        pass
    finally:
        os.close(fd)


def _whole(orders: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += orders.recv(size - len(data))
    return data


def _become(order: dict[str, Any], fds: Sequence[int]) -> None:
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C and its going away reach this process
    # Streams know from their making what they are of: a pipe cannot be sought in, and a terminal is written by lines.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    vars(sys).update({f"__{name}__": getattr(sys, name) for name in ("stdin", "stdout", "stderr")})
    os.environ.clear()
    os.environ.update(order["env"])
    if program := os.environ.pop("WARM_PYTHON", None):
        vars(sys.modules["interlingua.protocols.cap.toolservers"])["sys"] = SimpleNamespace(
            **{**vars(sys), "executable": program}
        )
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]  # as it is of `python -m`
    sys.argv[1:] = order["args"]


def run() -> None:
    try:
        runpy.run_module("interlingua", run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            _leave_with.append(leaving.code or 0)
        raise
    _leave_with.append(0)


_leave_with: list[int] = []


@atexit.register  # before all others, so that it is the last
def leave() -> None:
    """To take everything down that was imported takes longer than most commands."""
    if _leave_with:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return  # the interpreter has a way to say so
        os._exit(_leave_with[0])


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file: nothing in it is for agents
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a text, as the others
    warm_up()
    split_off(socket.socket(fileno=int(sys.argv[1])))
    run()
