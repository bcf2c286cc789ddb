"""What ``/openapi.json`` says of the fields of models that generate tokens."""

from __future__ import annotations

from typing import Any, Final

from vllm_mmout.serving.encoded import SOUND_TYPES

_WHOLES: Final = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_MODEL: Final = {"type": "string", "description": "Served name; the server's model by default."}

USERS: Final = {name: {"type": "string", "maxLength": 512} for name in ("user", "safety_identifier")}
"""Fields that are taken, and used for nothing."""

SAMPLING: Final[dict[str, Any]] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1, "description": "0 or -1: all tokens."},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0},
    "seed": {"type": "integer"},
    "max_tokens": {
        "type": "integer",
        "minimum": 1,
        "description": "By default what a picture of the size takes; of speech what the prompt leaves.",
    },
    "min_tokens": {"type": "integer", "minimum": 0},
    "allowed_token_ids": {**_WHOLES, "minItems": 1},
    "stop_token_ids": _WHOLES,
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "ignore_eos": {"type": "boolean"},
}
"""vLLM's sampling fields."""

IMAGES: Final[dict[str, Any]] = {
    "prompt": {"type": "string", "maxLength": 32_000},
    "model": _MODEL,
    "n": {"type": "integer", "minimum": 1, "maximum": 10},
    "size": {"type": "string", "pattern": "^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"},
    "quality": {"type": "string", "enum": ["auto", "standard"]},
    "background": {"type": "string", "enum": ["auto", "transparent", "opaque"]},
    "output_format": {"type": "string", "enum": ["png", "webp", "jpeg", "tiff"]},
    "output_compression": {"type": "integer", "minimum": 0, "maximum": 100},
    "response_format": {"type": "string", "enum": ["b64_json", "url"]},
    "stream": {"type": "boolean", "enum": [False]},
    "partial_images": {"type": "integer", "enum": [0]},
    **USERS,
    **SAMPLING,
}
"""Fields of ``/v1/images/generations``."""

SPEECH: Final[dict[str, Any]] = {
    "input": {"type": "string", "minLength": 1, "maxLength": 4096},
    "model": _MODEL,
    "voice": {
        "description": "Goes to the model where its prompt names a voice.",
        "anyOf": [
            {"type": "string", "maxLength": 512},
            {
                "type": "object",
                "properties": {"id": {"type": "string", "maxLength": 512}},
                "required": ["id"],
                "additionalProperties": False,
            },
        ],
    },
    "instructions": {"type": "string", "maxLength": 4096, "description": "Where the model's prompt has a place."},
    "response_format": {"type": "string", "enum": list(SOUND_TYPES)},
    "speed": {"type": "number", "enum": [1]},
    "stream_format": {"type": "string", "enum": ["audio"]},
    **USERS,
    **SAMPLING,
}
"""Fields of ``/v1/audio/speech``."""

SOUNDS: Final = tuple(media_type.partition(";")[0] for media_type in SOUND_TYPES.values())
"""Media types of its answers."""
