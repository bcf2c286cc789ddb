"""Extension package that runs requests as background jobs: server routes, web page and ``vllm-mmout submit``."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="jobs",
    command="vllm_mmout.wings.jobs.submit",
    routes="vllm_mmout.wings.jobs.server.job_routes:JobRoutes",
    results="vllm_mmout.wings.jobs.server.scene_results:SCENES",
)
