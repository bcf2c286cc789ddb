"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(target: str | Path) -> Iterator[Path]:
    """Give a temporary name beside ``target``; what was written there is renamed to ``target`` at the end.

    After an error the temporary file is gone, and a file that was under the name before is still there.

    Args:
        target: the name that the file is to get.

    Raises:
        SaveError: the folder does not exist, or the file cannot be written there.

    """
    path = Path(target)
    if path.is_dir():
        raise SaveError(f"cannot write {path}: it is a folder; add a file name")
    if not path.parent.is_dir():
        raise SaveError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)  # noqa: PTH105 - Path.replace is the same call, this name says what matters
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
