"""The errors of this package: one root, and one class for each thing a caller may want to tell apart.

A message holds the fact, the value, and what to do about it.
"""

import signal
import threading


class MMOutError(Exception):
    """Root of every error that this package raises on purpose.

    Args:
        message: what is said.
        param: the option, field or argument that it is about, where it is about one.

    """

    param: str | None = None

    def __init__(self, *message: object, param: str | None = None) -> None:
        super().__init__(*message)
        self.param = param


class InputError(MMOutError):
    """What was handed over cannot be given to the model: missing, unreadable, wrong bands, shape, dtype or size."""


class OptionError(MMOutError):
    """An option, of the engine or of one request, is unknown or has a value that cannot be honoured."""


class TokenError(MMOutError):
    """Generated tokens, or codes to be written as tokens, do not fit the layout."""


class RegistrationError(MMOutError):
    """An output processor or a model is registered wrongly, twice under one name, or cannot be found or imported."""


class ModelError(MMOutError):
    """A model cannot be made or run: its constructor or ``forward`` raised, or its weights do not fit."""


class HookError(MMOutError):
    """vLLM differs from what the hooks were written for; nothing was installed."""


class SaveError(MMOutError):
    """A result cannot be written in the format or to the place asked for."""


class BucketError(SaveError):
    """A bucket did not take a result; the message has its address, what its server said, and what to do.

    Args:
        message: the text of the error.
        status: HTTP status of the server's answer, 0 if it gave no answer.

    """

    def __init__(self, *message: object, status: int = 0) -> None:
        super().__init__(*message)
        self.status = status


class RequestError(MMOutError):
    """One request failed behind admission; no other request is affected."""


class ForwardError(RequestError):
    """The model's ``forward`` raised for this request, or gave something else than tensors.

    An `InputError` that it raised itself, about what it was given, stays one.
    """


class ReduceError(RequestError):
    """``reduce`` raised in the worker, or returned what cannot travel."""


class DecodeError(RequestError):
    """``decode`` or ``assemble`` raised (the exception is ``__cause__``), took too long, or returned nothing."""


class AssumedWarning(UserWarning):
    """Something that an input leaves open was assumed; the message says what, and how to say it otherwise."""


class AbortedError(RequestError):
    """The request was aborted before its result was delivered."""


def raise_interrupt(error: BaseException) -> None:
    """Raise ``error`` again if a signal handler raised it while an author's code ran, as a user's Ctrl-C does.

    Call it first in an ``except BaseException`` around an author's function: whatever else leaves such a function, a
    SystemExit and a KeyboardInterrupt too, is an error of the request. Signal handlers run in the main thread alone,
    and a handler that is written in Python is a frame of the traceback. Python's own handler of Ctrl-C has no frame:
    where it is set, a KeyboardInterrupt counts as the user's.
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
    """Return an error of a request as one that ends nothing but the request: an event loop ends by a SystemExit."""
    if isinstance(error, Exception):
        return error
    raised = RequestError(f"a function that the request called raised {type_and_message(error)}; it must not")
    raised.__cause__ = error
    return raised


def message_of(error: BaseException) -> str:
    """What an exception says of itself; where the ``__str__`` of an author's class raises, that it does."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - an author's code, called to tell of a failure: it must not be another
        raise_interrupt(second)
        return f"(its message cannot be read: {type(second).__name__})"


def type_and_message(error: BaseException) -> str:
    """An exception as Python prints it, "KeyError: 'x'"."""
    return f"{type(error).__name__}: {message_of(error)}"
