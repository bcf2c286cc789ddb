"""The model's folder, and where its engine runs."""

import os

import pytest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: it starts in seconds
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of the model, as the command writes it."""
    from green_cover.weights import main

    folder = tmp_path_factory.mktemp("models") / "green-cover"
    main([str(folder)])
    return folder
