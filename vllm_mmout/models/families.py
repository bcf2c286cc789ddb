"""ModelFamily: model folders of another form than ours, which a wing completes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vllm_mmout.wing import extensions


class ModelFamily(Protocol):
    """What a wing knows of the folders of an architecture."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Whether a folder's ``config.json`` is one of this family."""

    def completed(self, config: dict[str, Any]) -> dict[str, Any]:
        """``config.json`` with what it does not say itself: the output processor and its options.

        Raises:
            OptionError: an entry is malformed.

        """


def family_of(config: Mapping[str, Any]) -> ModelFamily | None:
    """The family that a folder's ``config.json`` is of, by its first architecture; None for most folders."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    families = extensions("model_families", first) if isinstance(first, str) else ()
    return next((made for made in (family() for family in families) if made.serves(config)), None)
