"""Temporary folders for stored results. When a server starts, it removes the folders of servers that were killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from vllm_mmout.serving.response.result_files import is_locked

PREFIX: Final = "mmout-results-"
_OWNER: Final = ".owner"
"""Name of the file in a temporary folder that the owning process keeps locked.

The process locks the file under another name and then renames it, so that no process finds the file unlocked.
"""


class TemporaryFolder:
    """Temporary folder of mode 0700 that is locked while this process or a process forked from it runs."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        part = self.path / f"{_OWNER}.part"
        self._lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        part.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Remove this temporary folder. In a fork of the process that created the folder, do nothing."""
        if os.getpid() == self._process:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def remove_abandoned() -> list[Path]:
    """Remove this user's temporary folders whose processes have died, and return their paths.

    Folders that a process has locked are kept, as are folders without a lock file, which others may have made.
    """
    folders = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_abandoned(path)]
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    return folders


def _is_abandoned(path: Path) -> bool:
    """Return whether ``path`` is a temporary folder of this user that no running process uses."""
    try:
        state = path.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
            return False
        locks = [path / _OWNER, *path.glob(".server-*/.lock")]
        return not any(is_locked(lock) for lock in locks)
    except OSError:  # removed meanwhile
        return False
