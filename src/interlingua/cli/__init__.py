"""The command line. `main` answers `--version` before anything is imported; `commands` holds the rest."""

import sys


def main() -> None:
    """The entry point of the `interlingua` script."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from .._version import __version__

        sys.stdout.write(f"interlingua {__version__}\n")
        return
    from .commands import start

    start()
