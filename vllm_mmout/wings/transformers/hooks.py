"""List the private functions of vLLM that are called to find out whether vLLM itself can serve a transformers model."""

from __future__ import annotations

from typing import Final

from vllm_mmout.private_names import Contact

_WHY: Final = "leave folders of transformers to vLLM whose head it serves"

TRANSFORMERS_HOOKS: Final = (
    Contact("vllm.config", ("iter_architecture_defaults", "try_match_architecture_defaults"), _WHY),
    Contact("vllm.transformers_utils.config", ("get_pooling_config",), _WHY),
)
