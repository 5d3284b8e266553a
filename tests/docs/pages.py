"""Carries out the blocks of one page, in order and in one folder: files, commands and servers as a reader would have
them. Ports of the text are other ones here, so that pages can be tried beside each other and beside anything else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.kit import warm_python
from tests.kit.commands import Warm, clean_env
from tests.kit.ports import free_port

from .blocks import Block, Command

ROOT = Path(__file__).resolve().parents[2]

_PORTS = re.compile(r"(?<![\d.])(?:80\d\d|78\d\d|79\d\d|9000)(?![\d.])")
_SHELL = re.compile(r"[|<>;&`\n]|\$[({A-Za-z?]")
_COMMENT = re.compile(r"""('[^']*'|"[^"]*")|\s#.*$""", re.MULTILINE)  # what is quoted is none
_READY = ("Ctrl-C stops.", '"message":"serving on ')  # for people, and as a line of the log
_SECONDS = 60


class Page:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = ""
        """All that was printed so far, with the ports of the text."""
        self._printed = ""
        self._ports: dict[str, str] = {}
        self._servers: list[_Server] = []
        self._code = 0
        tools = folder / ".tools"
        tools.mkdir()
        (tools / "interlingua").symlink_to(warm_python.interlingua())
        for name in ("python", "python3"):
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            (tools / name).chmod(0o755)
        env = clean_env()
        del env["INTERLINGUA_PROJECT"]  # readers have none
        self.env = {
            **env, "PATH": f"{tools}{os.pathsep}{env['PATH']}", "HOME": str(folder), "COLUMNS": "120",
            "XDG_DATA_HOME": str(folder / ".data"),
            "ACP_BASE_URL": self._here("http://127.0.0.1:7901"), warm_python.STARTED: warm_python.python(),
        }  # fmt: skip

    def give_agents(self) -> None:
        """Put an `agents.py` with an agent that echoes into the folder, which is empty otherwise."""
        shutil.copy(ROOT / "examples" / "echo.py", self.folder / "agents.py")

    # -- blocks

    def run(self, block: Block) -> None:
        with _at(block.place):
            getattr(self, f"_{block.language}")(block)

    def _python(self, block: Block) -> None:
        name = "docs_block"
        if block.file:
            (self.folder / block.file).write_text(self._here(block.text))
            name = block.file.removesuffix(".py")
        module = types.ModuleType(name)
        module.__file__ = str(self.folder / (block.file or "block.py"))
        sys.modules[name] = module
        sys.path.insert(0, str(self.folder))
        try:
            exec(compile(self._here(block.text), block.place, "exec"), module.__dict__)
        finally:
            sys.path.remove(str(self.folder))
            del sys.modules[name]

    def _toml(self, block: Block) -> None:
        tomllib.loads(block.text)
        if block.file:
            (self.folder / block.file).write_text(self._here(block.text))
            if block.file == "interlingua.toml":
                self._carry_out(Command("interlingua config check"), may_fail=(1,))  # a mount of the text may be down

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _console(self, block: Block) -> None:
        commands = block.commands()
        assert commands, "there is no command in it"
        for command, following in zip(commands, [*commands[1:], Command("")], strict=True):
            with _at(f"$ {command.line}"):
                # Where the page looks at the exit code it may be any.
                self._carry_out(command, may_fail=range(256) if following.line == "echo $?" else ())

    # -- commands

    def _carry_out(self, command: Command, may_fail: Any = ()) -> None:
        line = self._filled(command.line)
        if line == "echo $?":
            assert command.shown == [str(self._code)], f"the exit code is {self._code}"
            return
        if set_ := re.fullmatch(r"export (\w+)=(.*)", line):
            self.env[set_[1]] = "".join(shlex.split(self._here(set_[2])))
            return
        line = self._here(line)
        words = shlex.split(_COMMENT.sub(lambda found: found[1] or "", line))
        if words[-1] == "&":
            self._serve(words[:-1], command.shown)
            return
        if words[0] == "make":
            line, words = shlex.join(["make", "--no-print-directory", "-n", "-C", str(ROOT), *words[1:]]), []
        if words and words[0] == "interlingua" and not _SHELL.search(_unquoted(line)):
            process: subprocess.Popen[str] = Warm(words[1:], self.env, self.folder)
        else:
            process = subprocess.Popen(
                ["bash", "-c", line], env=self.env, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        try:
            out, err = process.communicate(timeout=_SECONDS)
        finally:
            process.kill()
        self._code = process.wait()
        out, err = self._there(out), self._there(err)
        self.said += out + err
        self._printed = out.rstrip() or self._printed
        assert self._code == 0 or self._code in may_fail, f"exit code {self._code}\n{out}{err}"
        if command.shown and not any(fits(command.shown, text) for text in (out, err, out + err)):
            raise AssertionError("prints something else:\n" + out + err)

    def _serve(self, words: list[str], shown: list[str]) -> None:
        assert words[0] == "interlingua", "only servers of ours are left running"
        busy = bool(self._servers)
        if words[1] == "serve":
            if not {"--port", "-p"} & set(words):
                words += ["--port", self._here("8000")]
            if not {"--no-peer-ports", "--peer-port"} & set(words):
                words += ["--peer-port", "0" if busy else self._here("7801")]
                words += ["--peer-http-port", "0" if busy else self._here("7901")]
        elif words[1] == "peer" and "--port" not in words:
            words += ["--port", self._here("7801"), "--http-port", self._here("7901")]
        elif words[1] == "relay" and "--port" not in words:
            words += ["--port", self._here("7950")]
        server = _Server(Warm(words[1:], self.env, self.folder))
        self._servers.append(server)

        def ready(text: str) -> bool:
            is_up = any(words in text for words in _READY)
            return is_up and (not shown or fits([*shown, "…"], self._there(text)))

        server.wait(ready)
        self.said += self._there(server.text)

    def close(self) -> None:
        for server in self._servers:
            server.stop()

    # -- what stands in the text, and what is here

    def _filled(self, line: str) -> str:
        """A word that ends in `…` is what was printed before that begins like it, and `…` alone the first word of the
        last line that was printed: the id of what was listed last."""

        def fill(found: re.Match[str]) -> str:
            seen = re.findall(re.escape(found[1]) + r"[\w-]+", self.said)
            assert seen, f"nothing was printed that begins with {found[1]}"
            return str(seen[-1])

        line = re.sub(r"([\w:/.-]+)…", fill, line)
        return re.sub(r"(?<= )…(?= |$)", lambda _: self._printed.split("\n")[-1].split()[0], line)

    def _here(self, text: str) -> str:
        return _PORTS.sub(lambda found: self._port(found[0]), text)

    def _port(self, written: str) -> str:
        if written not in self._ports:
            self._ports[written] = str(free_port())
        return self._ports[written]

    def _there(self, text: str) -> str:
        for written, here in self._ports.items():
            text = re.sub(rf"(?<!\d){here}(?!\d)", written, text)
        return text


class _Server:
    """A process that stays, and what it has printed."""

    def __init__(self, process: Warm) -> None:
        self.text = ""
        self._process = process
        self._changed = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(file,), daemon=True) for file in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, file: IO[str]) -> None:
        for line in file:
            with self._changed:
                self.text += line
                self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait(self, enough: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: enough(self.text) or not self._open, _SECONDS)
            assert enough(self.text), f"has not printed what it should have:\n{self.text}"

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_SECONDS)
        finally:
            self._process.kill()
            for reader in self._readers:
                reader.join()
            for file in (self._process.stdout, self._process.stderr):
                file.close()


def fits(shown: list[str], text: str) -> bool:
    """Whether that was printed. `…` is anything, and on a line of its own any number of lines."""
    pattern = ""
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part.rstrip()) for part in line.split("…")) + r"[ \t]*\n"
    return re.fullmatch(pattern + r"\s*", text.rstrip() + "\n") is not None


def _unquoted(line: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"|\s#.*", "", line)


@contextlib.contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in {place}")
        raise
