"""The output of a run, as far as a peer got it in chunks."""

from __future__ import annotations

from typing import Any

from ....engine.ports import weight
from ....model.delta import ABSENT, DeltaError, Joiner, TextDigest, diff

_MOST_HELD = 256 * 1024  # bytes of deltas


class ToldOutput:
    """Holds a short output as its deltas. Of the texts in a long one, it holds lengths and digests."""

    def __init__(self) -> None:
        self._deltas: list[tuple[int, Any]] | None = []  # by seq; None: only the log has them all
        self._joined = Joiner()  # but for the members that are in `_texts`
        self._texts: dict[str, TextDigest] = {}
        self._held = 0  # bytes of deltas, about

    def is_long_with(self, size: int) -> bool:
        """Tells if only the log has all deltas, once so many bytes of them are added."""
        return self._deltas is None or self._held + size > _MOST_HELD

    def add(self, seq: int, delta: Any) -> None:
        """Adds a delta. Raises DeltaError where it does not fit, and then changes nothing."""
        if self._deltas is not None:
            self._deltas.append((seq, delta))
        texts: dict[str, str] = {}
        if self._texts and isinstance(delta, dict):
            known = {name: value for name, value in delta.items() if name in self._texts and value is not None}
            if not all(isinstance(value, str) for value in known.values()):
                raise DeltaError("a text is extended only by a text")
            texts, delta = known, {name: value for name, value in delta.items() if name not in self._texts}
        self._joined.add(delta)
        for name, text in texts.items():
            self._texts[name].add(text)
        self._held += weight(delta)

    @property
    def joined(self) -> Any:
        """Returns the output that a restart has left, and the additions since; until `shorten` is called."""
        return self._joined.value

    def shorten(self) -> None:
        """Frees the texts of a long output."""
        if self._held <= _MOST_HELD:
            return
        self._deltas = None
        self._held = 0
        value: Any = self._joined.value
        if isinstance(value, dict):
            for name in [name for name, text in value.items() if isinstance(text, str)]:
                self._texts[name] = digest = TextDigest()
                digest.add(value.pop(name))
            self._joined = Joiner(value)

    def restart(self, keep: int, output: Any) -> None:
        """Keeps the output up to the event `keep`. `output` is that, where the output was long."""
        self._texts = {}
        if self._deltas is None:
            self._joined = Joiner(output)
            self._held = weight(output) if output is not ABSENT else 0
            return
        self._joined = Joiner()
        self._deltas = [(seq, delta) for seq, delta in self._deltas if seq <= keep]
        for _, delta in self._deltas:
            self._joined.add(delta)
        self._held = sum(weight(delta) for _, delta in self._deltas)

    def rest(self, output: Any) -> Any:
        """Returns the delta that leads to the whole output; ABSENT where nothing is missing. Raises DeltaError where no
        delta does."""
        if not self._texts:
            return diff(self._joined.value, output)
        if not isinstance(output, dict):
            raise DeltaError("the output is an object no more")
        left: dict[str, Any] = {}
        for name, told in self._texts.items():
            text = output.get(name)
            if not isinstance(text, str) or not told.begins(text):
                raise DeltaError("the output does not begin with the text that was told", (name,))
            if len(text) > told.length:
                left[name] = text[told.length :]
        others: Any = diff(
            self._joined.value, {name: value for name, value in output.items() if name not in self._texts}
        )
        if others is not ABSENT:
            left |= others
        return left or ABSENT
