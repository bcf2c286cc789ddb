"""Checks of option values that several processors share."""

from __future__ import annotations

import math

from vllm_mmout.errors import OptionError


def checked_count(name: str, value: object) -> int:
    """An option that counts something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be an integer of 1 or more, got {value!r}")
    return value


def checked_part(name: str, value: object) -> float:
    """An option from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or not 0 <= value <= 1:
        raise OptionError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def checked_switch(name: str, value: object) -> bool:
    """An option that is on or off."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")
    return value
