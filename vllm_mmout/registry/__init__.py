"""Registries that assign output processors and input mappers to model classes."""

from vllm_mmout.registry.choice import Choice
from vllm_mmout.registry.input_registry import MULTIMODAL_INPUT_REGISTRY, InputRegistry
from vllm_mmout.registry.output_registry import MULTIMODAL_OUTPUT_REGISTRY, OutputRegistry, register_output_processor
from vllm_mmout.registry.registration import Registration

__all__ = [
    "MULTIMODAL_INPUT_REGISTRY",
    "MULTIMODAL_OUTPUT_REGISTRY",
    "Choice",
    "InputRegistry",
    "OutputRegistry",
    "Registration",
    "register_output_processor",
]
