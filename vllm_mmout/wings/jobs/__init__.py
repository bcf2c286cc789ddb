"""Scenes as jobs that a server works off: their routes, the page, and the client and its command."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="jobs",
    command="vllm_mmout.wings.jobs.submit",
    routes="vllm_mmout.wings.jobs.server.job_routes:JobRoutes",
)
