"""Decide which transformers model folders are left to vLLM, because vLLM can serve them itself."""

from __future__ import annotations

from typing import Final

from vllm_mmout.wings.transformers.heads import Head

_EMBEDDING_SUFFIX: Final = "EmbeddingModel"
"""Suffix of the names of vLLM's classes that return an embedding vector, and ignore the model's head."""

_OF_TOKENS: Final = "ForTokenClassification"


def is_left(architecture: str, head: Head, folder: str) -> bool:
    """Return whether vLLM itself can serve a model folder, so that this package leaves the folder to vLLM.

    - The registry has the architecture: vLLM serves it, unless vLLM's class only makes vectors and the head makes
      something else, such as the head of CLIP.
    - The registry has a language model of the same family, which vLLM converts according to the end of the
      architecture's name (``ForSequenceClassification``, ``ForTokenClassification``, ``Model``): vLLM serves it,
      unless it is a classifier of tokens with a head other than transformers' generic one, the only one that the
      conversion loads.
    - sentence-transformers wrote the folder of a text encoder, or of a model that vLLM makes vectors from: vLLM serves
      it, since users expect its vectors.
    - vLLM does not serve any other folder: it would take it for a model that generates text, or try its transformers
      backend, which loads few of these models and gives other values for some.
    """
    from vllm_mmout.models.vllm_registry import class_of_vllm  # imports vLLM

    name = class_of_vllm(architecture)
    makes_vectors = name is not None and name.endswith(_EMBEDDING_SUFFIX)
    if name is not None and (head.encodes or not makes_vectors):
        return True
    if head.text and _is_converted(architecture):
        return True
    return (makes_vectors or (head.text and head.encodes)) and _is_of_sentence_transformers(folder)


def _is_converted(architecture: str) -> bool:
    """Return whether vLLM serves an architecture by converting a text generation model, such as LlamaForCausalLM.

    For example, vLLM converts LlamaForCausalLM to a classifier to serve LlamaForSequenceClassification. The converted
    model is of the same family as the architecture.
    """
    from vllm.config import iter_architecture_defaults, try_match_architecture_defaults

    from vllm_mmout.models.vllm_registry import class_of_vllm

    if (defaults := try_match_architecture_defaults(architecture)) is None:
        return False
    end = defaults[0]
    family = architecture.removesuffix(end)
    ends = iter_architecture_defaults()  # type: ignore[no-untyped-call]
    bases = [family + end_of_base for end_of_base, (runner, _) in ends if runner == "generate"]
    if all(class_of_vllm(base) is None for base in bases):
        return False
    return end != _OF_TOKENS or _has_generic_head(architecture)


def _has_generic_head(architecture: str) -> bool:
    """Return whether a token classifier uses transformers' generic head, a linear layer called ``score``."""
    import transformers
    from transformers.modeling_layers import GenericForTokenClassification

    return issubclass(getattr(transformers, architecture), GenericForTokenClassification)


def _is_of_sentence_transformers(folder: str) -> bool:
    from vllm.transformers_utils.config import get_pooling_config

    return get_pooling_config(folder) is not None
