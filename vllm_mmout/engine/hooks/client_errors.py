"""Subclasses of our errors that vLLM's server answers with 400 instead of 500."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from vllm_mmout.errors import InputError, MMOutError, OptionError, message_of


class _ClientError(MMOutError, VLLMValidationError):
    """Error of the client. vLLM's server reads the name of the wrong option from ``parameter``."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.parameter = param

    def __str__(self) -> str:
        return Exception.__str__(self)  # vLLM would append the parameter, which is a separate field of the response


class InvalidInputError(_ClientError, InputError):
    """Error for an input that the model cannot take."""


class InvalidOptionError(_ClientError, OptionError):
    """Error for an option that is unknown or cannot be honoured."""


def as_client_error(error: MMOutError) -> MMOutError:
    """Return an error about the input or the options as a client's error; return any other error unchanged."""
    if isinstance(error, VLLMValidationError):
        return error
    if isinstance(error, OptionError):
        return InvalidOptionError(message_of(error), param=error.param)
    if isinstance(error, InputError):
        return InvalidInputError(message_of(error), param=error.param)
    return error
