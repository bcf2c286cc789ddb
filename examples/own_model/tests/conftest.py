"""Fixtures for the model's folder, and settings of the engine."""

import os

import pytest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # run the engine in this process, where it starts in seconds
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return the model's folder, as the command writes it."""
    from green_cover.weights import main

    folder = tmp_path_factory.mktemp("models") / "green-cover"
    main([str(folder)])
    return folder
