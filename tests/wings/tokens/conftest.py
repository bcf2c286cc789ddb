"""Decoders of token models in folders, made once a session."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory):
    """Gives the folder of a tiny decoder by its name in `tiny_decoders`; tests leave it as it is."""
    made = {}

    def folder(name: str):
        if name not in made:
            tiny_decoders = pytest.importorskip("tiny_decoders", reason="decoders need torch", exc_type=ImportError)
            made[name] = tmp_path_factory.mktemp("decoders") / name
            model = getattr(tiny_decoders, name)()
            model.save_pretrained(made[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def snac_folder(tmp_path_factory: pytest.TempPathFactory):
    """Gives the folder of a tiny SNAC, by changes to its config."""
    pytest.importorskip("snac", reason="the package snac is an extra")
    import torch
    from tiny_decoders import SNAC_CONFIG, snac

    def folder(**changes):
        path = tmp_path_factory.mktemp("snac")
        (path / "config.json").write_text(json.dumps({**SNAC_CONFIG, **changes}))
        torch.save(snac(**changes).state_dict(), path / "pytorch_model.bin")
        return path

    return folder
