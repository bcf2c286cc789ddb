"""Errors of this package: a root class, and a subclass for each kind that a caller may want to tell apart.

A message holds the fact, the value, and the remedy.
"""

import signal
import threading


class MMOutError(Exception):
    """Root of every error that this package raises on purpose.

    Args:
        message: text of the error.
        param: name of the option, field or argument that is wrong, or None.

    """

    param: str | None = None
    tile: int | None = None
    """Index (from 0) of the failed tile among the tiles of one engine request. None for other errors."""

    def __init__(self, *message: object, param: str | None = None) -> None:
        super().__init__(*message)
        self.param = param


class InputError(MMOutError):
    """The input does not fit the model: it is missing, unreadable, or has wrong bands, shape, dtype or size."""


class OutsideError(InputError):
    """The requested bounding box lies outside of the input."""


class OptionError(MMOutError):
    """An option of the engine or of a request is unknown or has an invalid value."""


class TokenError(MMOutError):
    """The tokens of an image or a sound do not fit the model's token layout. Raised by decoding and by encoding."""


class RegistrationError(MMOutError):
    """An output processor or a model is registered wrongly, twice under one name, or cannot be imported."""


class ModelError(MMOutError):
    """A model cannot be created or run: its constructor or ``forward`` raised, or its weights do not fit."""


class HookError(MMOutError):
    """The installed vLLM differs from the releases that this package supports, so no hook was installed."""


class SaveError(MMOutError):
    """A result cannot be written in the requested format or to the requested path."""


class BucketError(SaveError):
    """A storage bucket refused a result. The message has the address, the server's answer, and the remedy.

    Args:
        message: text of the error.
        status: HTTP status of the server's answer, 0 if there was no answer.

    """

    def __init__(self, *message: object, status: int = 0) -> None:
        super().__init__(*message)
        self.status = status


class RequestError(MMOutError):
    """A request failed after it was admitted to the engine. Other requests are not affected."""


class ForwardError(RequestError):
    """The model's ``forward`` raised for this request, or returned something other than tensors.

    An `InputError` that ``forward`` raises about its input is passed on unchanged.
    """


class ReduceError(RequestError):
    """A processor's ``reduce`` raised in the worker, or returned a value that cannot be sent to the frontend."""


class DecodeError(RequestError):
    """A processor's ``decode`` or ``assemble`` raised (see ``__cause__``), took too long, or returned None."""


class AssumedWarning(UserWarning):
    """A default was assumed, because the input lacks metadata. The message has the default and how to set it."""


class AbortedError(RequestError):
    """The request was aborted before its result was delivered."""


def with_name(error: MMOutError, name: str) -> MMOutError:
    """Return an error of the same class, with ``name`` and a colon before its message."""
    try:
        named = type(error)(f"{name}: {error}")
    except Exception:  # noqa: BLE001 - an author's error class may need other arguments
        error.add_note(f"this was {name}")
        return error
    named.__cause__ = error.__cause__
    vars(named).update(vars(error))
    return named


def raise_interrupt(error: BaseException) -> None:
    """Raise ``error`` again if a signal handler raised it, such as the handler of Ctrl-C. Otherwise return.

    Call this first in an ``except BaseException`` around a function of the author of a model or a processor. Any other
    exception from that function, including SystemExit and KeyboardInterrupt, is an error of the request. Signal
    handlers run only in the main thread, and a handler written in Python is a frame of the traceback. Python's own
    handler for Ctrl-C has no frame: if it is installed, a KeyboardInterrupt counts as the user's.
    """
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    if isinstance(error, KeyboardInterrupt) and handlers[0] is signal.default_int_handler:
        raise error
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in codes:
            raise error
        frame = frame.tb_next


def as_exception(error: BaseException) -> Exception:
    """Return ``error`` if it is an Exception. Wrap others, such as SystemExit, in a RequestError."""
    if isinstance(error, Exception):
        return error
    raised = RequestError(f"a function that the request called raised {type_and_message(error)}; it must not")
    raised.__cause__ = error
    return raised


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or a note if its ``__str__`` raises."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - an author's code, called while a failure is reported
        raise_interrupt(second)
        return f"(its message cannot be read: {type(second).__name__})"


def type_and_message(error: BaseException) -> str:
    """Format an exception as Python prints it: "KeyError: 'x'"."""
    return f"{type(error).__name__}: {message_of(error)}"
