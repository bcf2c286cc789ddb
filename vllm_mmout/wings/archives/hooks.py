"""Private names of vLLM that the extension package for ``.pt2`` archives uses."""

from __future__ import annotations

from typing import Final

from vllm_mmout.private_names import Contact

ARCHIVE_HOOKS: Final = (Contact("vllm.config", ("get_current_vllm_config",), "read which operators an engine trusts"),)
