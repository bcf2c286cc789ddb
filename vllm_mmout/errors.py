"""The errors of this package: one root, and one class for each thing a caller may want to tell apart.

A message holds the fact, the value, and what to do about it.
"""


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


def message_of(error: BaseException) -> str:
    """What an exception says of itself; where the ``__str__`` of an author's class raises, that it does."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - an author's code, called to tell of a failure: it must not be another
        return f"(its message cannot be read: {type(second).__name__})"


def type_and_message(error: BaseException) -> str:
    """An exception as Python prints it, "KeyError: 'x'"."""
    return f"{type(error).__name__}: {message_of(error)}"
