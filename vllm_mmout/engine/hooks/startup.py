"""What went wrong in a process of the engine while it started, told to the process that starts it.

vLLM's frontend only learns that a process ended ("Engine core initialization failed. See root cause above."). Here the
worker leaves the error in a file whose name it got through the environment, and the frontend raises it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from vllm_mmout import errors
from vllm_mmout.errors import MMOutError, ModelError, message_of, type_and_message

ENVIRONMENT: Final = "MMOUT_STARTUP_REPORT"


_starting = threading.Lock()
"""Held while an engine starts: its processes get the environment as it is then."""


@contextmanager
def hearing() -> Iterator[None]:
    """Around the start of an engine: raise what one of its processes told, from vLLM's own error."""
    with _starting, tempfile.TemporaryDirectory(prefix="mmout-start-") as folder:
        report = Path(folder) / "report.json"
        os.environ[ENVIRONMENT] = str(report)
        try:
            yield
        except RuntimeError as error:
            if not report.is_file():
                raise
            kind, message = msgspec.json.decode(report.read_bytes(), type=tuple[str, str])
            raise getattr(errors, kind, ModelError)(message) from error
        finally:
            os.environ.pop(ENVIRONMENT, None)


@contextmanager
def telling() -> Iterator[None]:
    """Around the load of a model in a worker: tell what is raised, and raise it as an error of ours."""
    try:
        yield
    except MMOutError as error:
        _tell(error)
        raise
    except Exception as error:
        ours = ModelError(f"the model cannot be loaded: {type_and_message(error)}")
        _tell(ours)
        raise ours from error


def _tell(error: MMOutError) -> None:
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        return
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in vars(errors))
    part = Path(f"{path}.{os.getpid()}")
    with suppress(OSError):  # several workers may tell, and the one that listens may be gone
        part.write_bytes(msgspec.json.encode((kind, message_of(error))))
        part.replace(path)
