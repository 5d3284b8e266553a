"""Writes `client/sync.py`, the blocking client, from the asynchronous one: the same names, parameters and docstrings.

`--check` writes nothing, and fails where the file is not what would be written.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src" / "interlingua" / "client"
TARGET = CLIENT / "sync.py"
CLASSES = {"OpenQuestion": "handles", "RunHandle": "handles", "ThreadHandle": "handles", "Client": "client"}

HEAD = '''"""The blocking client. Written by tools/sync_client.py from `client.py` and `handles.py`; change those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

import httpx2

from ..control import wire
from ..engine.engine import Engine
from ..model.card import AgentCard
from ..model.content import Message
from ..model.events import Event
from ..model.run import WhenBusy
from . import client, handles
from .loop_thread import LoopThread

T = TypeVar("T")
R = TypeVar("R")

SyncOnQuestion = Callable[["SyncOpenQuestion"], Any]
"""Gets a question, and returns the answer. It runs in a thread of its own, so it may block."""


def _same(value: T) -> T:
    return value


def _plain(value: Any) -> Any:
    """Returns the asynchronous object behind a handle; any other value as it is."""
    return getattr(value, "_async", value)


class _Wrapped:
    """A handle whose methods block."""

    def __init__(self, loop: LoopThread, wrapped: Any) -> None:
        self._loop = loop
        self._async = wrapped

    def __repr__(self) -> str:
        return f"<Sync{repr(self._async)[1:]}"

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.call(work)
        except (handles.RunFailed, handles.Waiting) as error:
            raise self._blocking(error) from error.__cause__

    def _iterate(self, items: AsyncIterator[T], wrap: Callable[[T], R]) -> Iterator[R]:
        try:
            yield from self._loop.iterate(items, wrap)
        except handles.RunFailed as error:
            raise self._blocking(error) from error.__cause__

    def _blocking(self, error: handles.RunFailed | handles.Waiting) -> Exception:
        """Returns an error whose handles block."""
        error.run = self._run(error.run)
        if isinstance(error, handles.Waiting):
            error.questions = self._questions(error.questions)
        return error

    def _handler(self, on_question: SyncOnQuestion | None) -> handles.OnQuestion | None:
        if on_question is None:
            return None

        async def ask(question: handles.OpenQuestion) -> Any:
            return await asyncio.to_thread(on_question, SyncOpenQuestion(self._loop, question))

        return ask

    def _run(self, run: handles.RunHandle) -> SyncRunHandle:
        return SyncRunHandle(self._loop, run)

    def _thread(self, thread: handles.ThreadHandle) -> SyncThreadHandle:
        return SyncThreadHandle(self._loop, thread)

    def _question(self, question: handles.OpenQuestion) -> SyncOpenQuestion:
        return SyncOpenQuestion(self._loop, question)

    def _questions(self, questions: list[handles.OpenQuestion]) -> list[SyncOpenQuestion]:
        return [SyncOpenQuestion(self._loop, question) for question in questions]
'''

CLIENT_LIFE = '''
    def __enter__(self) -> SyncClient:
        self._loop.start()
        try:
            self._loop.call(self._async.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Runs at a server go on; those of a mounted target end with it."""
        try:
            self._loop.call(self._async.close())
        finally:
            self._loop.stop()
'''

_WRAPS = {
    "RunHandle": "self._run", "ThreadHandle": "self._thread", "OpenQuestion": "self._question",
    "list[OpenQuestion]": "self._questions",
}  # fmt: skip


def written() -> str:
    parts = [HEAD]
    for name, module in CLASSES.items():
        tree = ast.parse((CLIENT / f"{module}.py").read_text(encoding="utf-8"))
        source = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        parts.append(_class(source, module))
    names = ", ".join(f'"Sync{name}"' for name in sorted(CLASSES))
    parts.append(f"__all__ = [{names}]\n")
    return "\n\n".join(parts)


def _class(source: ast.ClassDef, module: str) -> str:
    doc = (ast.get_docstring(source, clean=False) or "").replace("async with il.Client(", "with il.SyncClient(")
    lines = [f"class Sync{source.name}(_Wrapped):", f'    """{doc.replace("await ", "")}"""', ""]
    if source.name == "Client":
        init = next(node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
        lines += [f"    def __init__({_parameters(init)}) -> None:"]
        lines += [f"        super().__init__(LoopThread(), client.Client({_forwarded(init)}))", CLIENT_LIFE]
    else:
        lines += [f"    _async: {module}.{source.name}", ""]
        if source.name != "OpenQuestion":
            lines += ["    @property", "    def id(self) -> str:", "        return self._async.id", ""]
    methods = [node for node in source.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in methods:
        if not node.name.startswith("_") and node.name != "close":
            lines += _method(node)
    return "\n".join(lines)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    decorators = [f"    @{ast.unparse(one)}" for one in node.decorator_list]
    head = [*decorators, f"    def {node.name}({_parameters(node)}) -> {_sync(returns)}:"]
    if "    @overload" in decorators:
        return [*head, "        ...", ""]
    doc = ast.get_docstring(node, clean=False)
    if doc:
        head.append(f'        """{doc}"""')
    if "    @property" in decorators:
        return [*head, f"        return self._async.{node.name}", ""]
    call = f"self._async.{node.name}({_forwarded(node)})"
    if returns.startswith("AsyncIterator["):
        wrap = _WRAPS.get(returns[len("AsyncIterator[") : -1], "_same")
        return [*head, f"        return self._iterate({call}, {wrap})", ""]
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"self._call({call})"
    wrap = _WRAPS.get(returns, "")
    return [*head, f"        return {wrap}({call})" if wrap else f"        return {call}", ""]


def _sync(annotation: str) -> str:
    for name in (*CLASSES, "OnQuestion"):
        annotation = re.sub(rf"\b{name}\b", f"Sync{name}", annotation)
    return annotation.replace("AsyncIterator", "Iterator")


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return _sync(ast.unparse(node.args))


def _forwarded(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = [_value(one.arg) for one in node.args.args if one.arg != "self"]
    given += [f"{one.arg}={_value(one.arg)}" for one in node.args.kwonlyargs]
    if node.args.kwarg is not None:
        given.append(f"**{node.args.kwarg.arg}")
    return ", ".join(given)


def _value(name: str) -> str:
    if name == "on_question":
        return "self._handler(on_question)"
    return f"_plain({name})" if name in ("thread", "question") else name


def main() -> int:
    text = "".join(f"{line.rstrip()}\n" for line in written().splitlines())
    ruff = [sys.executable, "-m", "ruff"]
    fixed = subprocess.run(
        [*ruff, "check", "-q", "--fix", "--stdin-filename", str(TARGET), "-"],
        input=text, capture_output=True, text=True, cwd=ROOT, check=False,
    ).stdout  # fmt: skip
    shaped = subprocess.run(
        [*ruff, "format", "-q", "--stdin-filename", str(TARGET), "-"], input=fixed, capture_output=True, text=True,
        cwd=ROOT, check=True,
    ).stdout  # fmt: skip
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != shaped:
            print(f"{TARGET.relative_to(ROOT)} is not up to date: run `make docs`")
            return 1
        return 0
    TARGET.write_text(shaped, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
