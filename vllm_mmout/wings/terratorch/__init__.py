"""Extension package that serves TerraTorch model folders, in place of vLLM's own ``Terratorch`` class.

vLLM's class uses the location of a batch's first request for all, cannot build every task, and ends the engine if
``forward`` fails. The frontend does not import TerraTorch. Setting ``"output_processor": "none"`` leaves a folder to
vLLM's class.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="terratorch",
    models={"Terratorch": "vllm_mmout.wings.terratorch.model:TerratorchModel"},
    model_families={"Terratorch": "vllm_mmout.wings.terratorch.config:TerratorchFolders"},
)
