"""Optional packages: `pip install 'interlingua[EXTRA]'`. A missing one is reported before work begins."""

from __future__ import annotations

import importlib
import importlib.util

from .model.errors import Unavailable


class MissingExtra(Unavailable):
    """A package is not installed. Trying again does not help."""

    transient = False


def require(what: str, package: str, extra: str, *modules: str) -> None:
    """Raises MissingExtra if a module of a package is missing, or cannot be imported."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise _missing(what, package, extra, why) from error


def look_for(what: str, package: str, extra: str, *modules: str) -> None:
    """Raises an error like `require`, for a package that takes long to import and may never be needed: it only searches
    for its modules."""
    if any(importlib.util.find_spec(module) is None for module in modules):
        raise _missing(what, package, extra)


def _missing(what: str, package: str, extra: str, why: str = "") -> MissingExtra:
    return MissingExtra(f"{what} needs {package}, which is not installed{why}: pip install 'interlingua[{extra}]'")
