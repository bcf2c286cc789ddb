"""Report why a worker process failed at the start: the worker writes the error, and the frontend raises it.

vLLM's frontend only learns that a process ended ("Engine core initialization failed. See root cause above."). Our
workers write the error to a report file, whose path is in an environment variable, and the frontend raises the error.
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
"""Lock that lets only one engine start at a time. The path of the error report is in an environment variable, which can
hold the path of only one engine."""


@contextmanager
def raising_worker_error() -> Iterator[None]:
    """Wrap the start of an engine in a context. If the start fails, raise the error that an engine process reported.

    The error's cause is vLLM's own error, which is raised unchanged if no process has reported an error.
    """
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
def reporting_to_frontend() -> Iterator[None]:
    """Wrap the loading of a model in a worker. Report an error to the frontend, and raise it as an `MMOutError`."""
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
    with suppress(OSError):  # the frontend may be gone, and its folder with it
        part.write_bytes(msgspec.json.encode((kind, message_of(error))))
        part.replace(path)
