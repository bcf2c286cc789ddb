"""Making the input mapper of a model: what its author registered, else the folder's ``AutoProcessor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError, OptionError, RegistrationError
from vllm_mmout.models.auto_processor import AutoProcessorMapper, opened
from vllm_mmout.models.config import config_json

if TYPE_CHECKING:
    from vllm_mmout.models.context import InputContext
    from vllm_mmout.models.keywords import Keywords
    from vllm_mmout.models.mapper import InputMapper
    from vllm_mmout.params import OutputParams
    from vllm_mmout.registry.inputs import MapperChoice


def make_mapper(keywords: Keywords, choice: MapperChoice, context: InputContext) -> Any:
    """Make the mapper of a model.

    Raises:
        RegistrationError: what its author registered raised, or gives none.

    """
    if choice.factory is not None:
        try:
            mapper: InputMapper = choice.factory(config_json(context.get_hf_config()))
        except MMOutError:
            raise
        except Exception as error:
            raise RegistrationError(failed("input mapper's factory", keywords.model, error)) from error
        if not callable(mapper):
            raise RegistrationError(
                f"the input mapper's factory of {keywords.model} must give a function (data, params), got {mapper!r}"
            )
        return mapper
    function = choice.function
    if function is None:
        return AutoProcessorMapper(context, keywords.names)

    def mapper_of_first_registries(data: Any, params: OutputParams) -> Any:
        refuse_reading_options(params, f"the input mapper of {keywords.model} does not know it")
        return function(context, opened(data))

    return mapper_of_first_registries


def refuse_reading_options(params: OutputParams, why: str) -> None:
    """Raise an OptionError where an option says how a raster is read, and none is."""
    for option in params.reads:
        raise OptionError(f"{option} says how a raster is read; {why}, leave it out", param=option)


def failed(what: str, model: str, error: Exception) -> str:
    """The message of an author's function that raised."""
    return f"the {what} of {model} failed: {type(error).__name__}: {error}; correct the input or the {what}"
