"""Let vLLM read model configurations that an extension package translated from another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from transformers import PretrainedConfig
from vllm.transformers_utils.config import get_config_parser, register_config_parser
from vllm.transformers_utils.config_parser_base import ConfigParserBase

from vllm_mmout.errors import OptionError
from vllm_mmout.models.config import MMOutConfig

FORMAT = "mmout"
"""Value of vLLM's option ``config_format`` that selects `FolderConfigParser`."""


class FolderConfigParser(ConfigParserBase):
    """vLLM config parser that returns the configuration recorded by the function `take`, without reading a file."""

    recorded: ClassVar[dict[str, dict[str, Any]]] = {}
    """Translated entries of ``config.json`` for each model. The keys are model folders or hub ids."""

    def parse(
        self,
        model: str | Path,
        trust_remote_code: bool,  # noqa: FBT001 - vLLM's signature
        revision: str | None = None,
        code_revision: str | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], PretrainedConfig]:
        """Return the entries that `take` recorded for ``model``, and the configuration made from these entries."""
        entries = self.recorded.get(str(model))
        if entries is None:
            raise OptionError(f'config_format="{FORMAT}" is set by vllm_mmout alone; leave config_format out')
        return entries, MMOutConfig.from_dict(entries)


def take(model: str, entries: dict[str, Any]) -> str:
    """Make vLLM use ``entries`` in place of the ``config.json`` of ``model``.

    Return the value to set for vLLM's option ``config_format``. With this value, vLLM reads the model's configuration
    by `FolderConfigParser`.
    """
    try:
        get_config_parser(FORMAT)
    except ValueError:
        register_config_parser(FORMAT)(FolderConfigParser)
    FolderConfigParser.recorded[model] = entries
    return FORMAT


def taken_before(model: str, config_format: str) -> dict[str, Any] | None:
    """Return the configuration entries that an earlier call of `take` recorded for ``model``.

    Return None if nothing is recorded for the model, or if ``config_format`` names another parser. The entries were
    translated from another format.
    """
    return FolderConfigParser.recorded.get(model) if config_format == FORMAT else None
