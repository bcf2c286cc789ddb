"""What an author's code gets of config.json: the file as it was written."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("transformers", reason="the configuration class is one of transformers")
pytestmark = pytest.mark.engine

from transformers import ViTConfig  # noqa: E402 - after the import that may skip

from vllm_mmout.models.config import MMOutConfig, config_json  # noqa: E402 - as above

WRITTEN = {
    "model_type": "mmout",
    "architectures": ["Net"],
    "num_labels": 5,
    "id2label": {"0": "land", "1": "water", "2": "cloud"},
    "num_attention_heads": [1, 2],
    "mmout": {"model": "net:Net"},
}
"""Entries that transformers changes, takes out or understands in its own way."""


def test_the_file_comes_as_it_was_written():
    """Nothing is put in, taken out or renamed, also in another process."""
    config = MMOutConfig.from_dict(dict(WRITTEN))
    assert config_json(config) == WRITTEN
    assert config_json(pickle.loads(pickle.dumps(config))) == WRITTEN  # noqa: S301 - our own
    assert config.to_dict()["id2label"] != WRITTEN["id2label"]


def test_it_is_a_copy():
    """What one author's code changes no other one sees."""
    config = MMOutConfig.from_dict(dict(WRITTEN))
    config_json(config)["mmout"]["model"] = "other:Net"
    assert config_json(config) == WRITTEN


def test_overrides_are_in_it():
    """What vLLM's ``hf_overrides`` change is changed for the author too."""
    config = MMOutConfig.from_dict(dict(WRITTEN))
    config.update({"num_labels": 7})
    assert config_json(config) == WRITTEN | {"num_labels": 7}
    assert config.num_labels == 7


def test_other_models_have_what_transformers_makes_of_it():
    """A configuration that is not ours has no file to show."""
    assert config_json(ViTConfig(hidden_size=8)) == ViTConfig(hidden_size=8).to_dict()


def test_sizes_of_a_language_model_are_not_looked_for():
    """Heads of an image model may be a list, which vLLM would divide by."""
    text = MMOutConfig.from_dict(dict(WRITTEN)).get_text_config()
    assert (text.num_attention_heads, text.hidden_size) == (1, 0)


@pytest.mark.parametrize("said_by", ["the folder", "hf_overrides"])
def test_no_model_is_an_encoder_decoder_to_vllm(said_by):
    """As one its decoder's tokens would be scheduled, and there are none; an author's code sees what was written."""
    from vllm.transformers_utils.config import is_encoder_decoder

    said = {"is_encoder_decoder": True}
    config = MMOutConfig.from_dict(WRITTEN | (said if said_by == "the folder" else {}))
    if said_by == "hf_overrides":
        config.update(said)
    for one in (config, pickle.loads(pickle.dumps(config))):  # noqa: S301 - our own
        assert not is_encoder_decoder(one)
        assert config_json(one) == WRITTEN | said
