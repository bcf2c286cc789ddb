"""Extension package that runs models on a Ray cluster: ``vllm-mmout run --ray`` and `vllm_mmout.ray.predict`."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(name="ray", run="vllm_mmout.wings.ray.run_scenes", public="vllm_mmout.wings.ray.pipeline")
