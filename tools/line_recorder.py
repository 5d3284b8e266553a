"""A pytest plugin for tools/duplicates.py: notes which tests fail, and which lines of a folder each test executes.

`TEST_RECORDER_TO` names the folder for what was noted: a file for each process. `TEST_RECORDER_TRACES` names the folder
whose lines count; without it nothing is traced. Threads of the tests' own process count too, other processes do not.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

TO, TRACES = "TEST_RECORDER_TO", "TEST_RECORDER_TRACES"


class Recorder:
    """Notes lines by the test that executes them. What an import executes counts for nobody."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[CodeType, str] = {}  # by code: its file, or "" where it does not count
        self._now: set[tuple[str, int]] | None = None  # of the test that runs
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def begin(self, test: str) -> None:
        self._now = self.lines[test]
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def end(self) -> None:
        sys.settrace(None)
        self._now = None

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        file = self._files.get(code)
        if file is None:
            path = str(Path(code.co_filename).resolve())
            counts = path.startswith(self._folder) and code.co_name != "<module>"
            file = self._files[code] = path if counts else ""
        return self._line if file else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self._now is not None:
            self._now.add((self._files[frame.f_code], frame.f_lineno))
        return self._line


class Plugin:
    def __init__(self, to: Path, recorder: Recorder | None) -> None:
        self._to = to
        self._recorder = recorder
        self._failed: set[str] = set()
        self._passed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._recorder is not None:
            self._recorder.begin(item.nodeid)
        try:
            return (yield)
        finally:
            if self._recorder is not None:
                self._recorder.end()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        recorded = self._recorder.lines if self._recorder is not None else {}
        noted = {
            "failed": sorted(self._failed),
            "passed": sorted(self._passed - self._failed),
            "lines": {test: sorted(lines) for test, lines in recorded.items()},
        }
        (self._to / f"{os.getpid()}.json").write_text(json.dumps(noted))


def pytest_configure(config: pytest.Config) -> None:
    traced = os.environ.get(TRACES)
    recorder = Recorder(str(Path(traced).resolve()) + os.sep) if traced else None
    config.pluginmanager.register(Plugin(Path(os.environ[TO]), recorder))
