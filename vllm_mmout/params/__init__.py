"""All options of a request, with the same names in Python, over HTTP and on the command line.

`OutputParams` has all of them. The classes of the other modules are its bases, each the base of the next, since a
msgspec Struct can have only one base with fields. `vllm_mmout.option` describes how an option is declared.
"""

from vllm_mmout.params.mosaics import PIXEL_SIZES
from vllm_mmout.params.output_params import LOCAL_ONLY, OPTIONS, STAYS, OutputParams
from vllm_mmout.params.reading import FILE, OF_MODELS, STORED
from vllm_mmout.params.steps import OF_STEPS

__all__ = ["FILE", "LOCAL_ONLY", "OF_MODELS", "OF_STEPS", "OPTIONS", "PIXEL_SIZES", "STAYS", "STORED", "OutputParams"]
