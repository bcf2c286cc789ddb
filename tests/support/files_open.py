"""Which files a process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_targets(process="self"):
    """What each descriptor of a process is open for, as the kernel says it."""
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(link.readlink()))
    return found


def open_below(*folders, process="self"):
    """What a process has open in folders, those without a name too.

    Others in this process open and close files of their own at any time, and what earlier tests left is collected at
    any time: tests look in a folder that is theirs alone.

    Args:
        folders: with whatever is below them.
        process: its id.

    Returns:
        The paths, as the kernel gives them, in order; one for each descriptor.

    """
    starts = tuple(f"{os.path.realpath(folder)}/" for folder in folders)
    return sorted(path for path in open_targets(process) if path.startswith(starts))
