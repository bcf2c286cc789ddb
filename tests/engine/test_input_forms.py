"""Three forms of one input, raw, processed and embedded, through the real engine: the same bits.

The models' weights and pixels are whole numbers, so that every sum is exact and the bits do not depend on the batch.
``AsyncLLM`` gets the forms in `test_mixed_shapes.py`.
"""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
import torch
from model_folders import config_of, engine_here, folder_of
from models_for_tests import MappedNet, StemAndHead, UnmappedNet
from PIL import Image

pytestmark = pytest.mark.engine
PIXELS = np.random.default_rng(8).integers(0, 256, (20, 28, 3), np.uint8)
BANDS = np.ascontiguousarray(np.moveaxis(PIXELS, -1, 0))


def read_only(array):
    """A copy that nobody may write to."""
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def png():
    """The picture as a file's bytes."""
    stored = io.BytesIO()
    Image.fromarray(PIXELS).save(stored, "PNG")
    return stored.getvalue()


def features(kind):
    """What an image processor of transformers makes of the picture."""
    return image_processor()(images=Image.fromarray(PIXELS), return_tensors=kind)


def image_processor():
    """One that hands on the pixels as they are."""
    from transformers import ViTImageProcessor

    return ViTImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)


def plain(weights):
    """The model without an engine."""
    network = StemAndHead(config_of(StemAndHead))
    network.load_state_dict(weights)
    return network.requires_grad_(requires_grad=False)


def forms_of(network, tmp_path):
    """Every form of the picture, by name."""
    file = tmp_path / "picture.png"
    file.write_bytes(png())
    embeds = network.embed(torch.from_numpy(BANDS)[None])[0]
    forms = {
        "path": str(file),
        "bytes": png(),
        "PIL image": Image.fromarray(PIXELS),
        "array": BANDS,
        "tensor": torch.from_numpy(BANDS),
        "read-only array": read_only(BANDS),
        "array turned round": np.ascontiguousarray(BANDS[:, ::-1])[:, ::-1],
        "array turned round by keyword": {"pixel_values": np.ascontiguousarray(BANDS[..., ::-1])[..., ::-1]},
        "read-only array by keyword": {"pixel_values": read_only(BANDS.astype(np.float32))},
        "uint8 tensor by keyword": {"pixel_values": torch.from_numpy(BANDS)},
        "float32 tensor by keyword": {"pixel_values": torch.from_numpy(BANDS).float()},
        "array by keyword": {"pixel_values": BANDS},
        "features of torch": features("pt"),
        "features of numpy": features("np"),
        "embeddings": {"image_embeds": embeds},
        "embeddings as an array": {"image_embeds": embeds.numpy()},
    }
    prompts = {f"{name} in a prompt": {"multi_modal_data": {"image": form}} for name, form in forms.items()}
    mixed = [pair for both in zip(forms.items(), prompts.items(), strict=True) for pair in both]
    return dict(mixed)


@pytest.fixture(scope="module", params=[MappedNet, UnmappedNet], ids=["own mapper", "image processor"])
def made(request, tmp_path_factory):
    """A folder, an engine of it that takes all forms in one step, the model in plain PyTorch, and the forms."""
    folder = tmp_path_factory.mktemp("forms")
    image_processor().save_pretrained(folder)
    path, weights = folder_of(folder, request.param, mmout={"output_processor": "tensor"})
    network = plain(weights)
    return path, engine_here(path, max_num_seqs=32), network, forms_of(network, tmp_path_factory.mktemp("pictures"))


def expected(network):
    return network(torch.from_numpy(BANDS)[None])[0].numpy()


def differing(forms, arrays, wanted):
    """Names of the forms whose result has other bits, another shape or another dtype."""
    rows = zip(forms, arrays, strict=True)
    return [name for name, one in rows if (one.dtype, one.tobytes()) != (wanted.dtype, wanted.tobytes())]


def test_all_forms_give_the_same_bits_in_one_call(made):
    """Raw, processed and embedded inputs of one step, mixed, give what plain PyTorch gives."""
    _, llm, network, forms = made
    StemAndHead.calls.clear()
    results = llm.generate(list(forms.values()), use_tqdm=False)
    calls = Counter(StemAndHead.calls)
    assert differing(forms, [result.outputs.array for result in results], expected(network)) == []
    assert set(calls.values()) == {1}, "each kind of input ran once, so all were in one step"
    assert {(name, dtype) for name, dtype, _ in calls} == {
        ("pixel_values", torch.uint8),
        ("pixel_values", torch.float32),
        ("image_embeds", torch.float32),
    }
    assert sum(count for _, _, count in calls) == len(forms)


def test_encode_takes_all_forms(made):
    """``LLM.encode`` gives the same raw tensor for each form in a prompt."""
    _, llm, network, forms = made
    prompts = {name: {"prompt_token_ids": [1], **form} for name, form in forms.items() if name.endswith("in a prompt")}
    assert len(prompts) == len(forms) / 2
    results = llm.encode(list(prompts.values()), pooling_task="plugin", use_tqdm=False)
    assert differing(prompts, [result.outputs.data.numpy() for result in results], expected(network)) == []


def test_a_form_alone_gives_the_same(made):
    """A form that is the only input of a call gives what it gives among others."""
    _, llm, network, forms = made
    arrays = [llm.generate([forms[name]], use_tqdm=False)[0].outputs.array for name in ("bytes", "embeddings")]
    assert differing(("bytes", "embeddings"), arrays, expected(network)) == []
