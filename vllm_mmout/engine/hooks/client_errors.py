"""Errors about a client's input or options, which vLLM's server answers with status 400 instead of 500."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from vllm_mmout.errors import InputError, MMOutError, OptionError, message_of


class _ClientError(MMOutError, VLLMValidationError):
    """Error in a client's request. ``parameter`` is the name of the wrong option, for the server's response."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.parameter = param

    def __str__(self) -> str:
        return Exception.__str__(self)  # vLLM would append the parameter, which is a separate field of the response


class InvalidInputError(_ClientError, InputError):
    """InputError that vLLM's server answers with status 400."""


class InvalidOptionError(_ClientError, OptionError):
    """OptionError that vLLM's server answers with status 400."""


def as_client_error(error: MMOutError) -> MMOutError:
    """Convert an InputError or OptionError so that vLLM answers with status 400. Return other errors unchanged."""
    if isinstance(error, VLLMValidationError):
        return error
    if isinstance(error, OptionError):
        return InvalidOptionError(message_of(error), param=error.param)
    if isinstance(error, InputError):
        return InvalidInputError(message_of(error), param=error.param)
    return error
