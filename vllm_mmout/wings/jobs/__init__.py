"""Extension package for jobs: the server's job queue and routes, the web page, the client, ``vllm-mmout submit``."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="jobs",
    command="vllm_mmout.wings.jobs.submit",
    routes="vllm_mmout.wings.jobs.server.job_routes:JobRoutes",
)
