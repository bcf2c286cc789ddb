"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def read(text: str, **labels: str) -> Mapping[str, float]:
    """The samples of ours with these labels, by name and their other labels in order, those that are not 0."""
    found = {}
    for family in text_string_to_metric_families(lines_of(text, "mmout:")):
        for sample in family.samples:
            if not sample.name.endswith("_created") and labels.items() <= sample.labels.items() and sample.value:
                rest = [value for name, value in sorted(sample.labels.items()) if name not in labels]
                found[" ".join([sample.name, *rest])] = sample.value
    return found


def lines_of(text: str, prefix: str) -> str:
    """The samples whose names have a prefix: of a page as a whole, the parser takes half a second."""
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith(prefix))


def page(*names: str) -> str:
    """What /metrics answers where there is one API server: vLLM gives the default registry.

    Args:
        names: of samples; only these are collected, for all of vLLM's take as long as some requests.

    """
    return generate_latest(REGISTRY.restricted_registry(names) if names else REGISTRY).decode()
