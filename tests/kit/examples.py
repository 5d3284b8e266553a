"""How many random examples the property tests look at: some at every change, many in `make faults`.

An example is as good on a slow machine as on a fast one, so nothing here minds how long it takes.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_USUAL = 100  # what hypothesis takes for enough, and what `full` has


def register() -> None:
    """The profiles `quick`, which is taken, and `full`, for `--hypothesis-profile`."""
    slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("full", slow, max_examples=_USUAL)
    settings.register_profile("quick", slow, max_examples=_USUAL // 4)
    settings.load_profile("quick")


def share(full: int) -> int:
    """How many examples of a test that has so many in the full profile."""
    return max(1, full * settings.default.max_examples // _USUAL)


def many(full: int) -> settings:
    """For a test that needs more or fewer examples than others."""
    return settings(max_examples=share(full))
