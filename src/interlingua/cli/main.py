"""The entry point of the command line. It answers `--version` and a plain `stdio` before anything big is imported; the
rest is in `app`."""

import sys


def main() -> None:
    """The entry point of the `interlingua` script."""
    try:
        _carry_out()
    except KeyboardInterrupt:  # before the command had begun to listen for it, or after
        sys.exit(130)


def _carry_out() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from .._version import __version__

        sys.stdout.write(f"interlingua {__version__}\n")
        return
    if sys.argv[1:2] == ["stdio"]:
        from .fast_stdio import stdio

        code = stdio(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from .app import start

    start()
