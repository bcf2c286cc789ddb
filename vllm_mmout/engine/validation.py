"""Errors of ours that vLLM's server answers with 400 instead of 500."""

from __future__ import annotations

from vllm.exceptions import VLLMValidationError

from vllm_mmout.errors import InputError, MMOutError, OptionError


class InvalidInputError(InputError, VLLMValidationError):
    """An input that the model cannot take."""


class InvalidOptionError(OptionError, VLLMValidationError):
    """An option that is unknown or cannot be honoured."""


def as_client_error(error: MMOutError) -> MMOutError:
    """The same error as one of the client, where it is about what the client sent."""
    if isinstance(error, VLLMValidationError):
        return error
    if isinstance(error, OptionError):
        return InvalidOptionError(str(error))
    if isinstance(error, InputError):
        return InvalidInputError(str(error))
    return error
