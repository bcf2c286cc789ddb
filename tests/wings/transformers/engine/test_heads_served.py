"""Heads of transformers behind the routes: texts beside pictures, sounds, and a text that is spoken."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
import openai
import pytest
import soundfile
import torch
from model_folders import engine_here
from PIL import Image
from prompted_heads import prompted
from small_heads import head, saved
from starlette.testclient import TestClient
from text_service import EngineHere, text_app
from token_service import openai_client

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(6)
PICTURE = Image.fromarray(RANDOM.integers(0, 256, (40, 56, 3), np.uint8))


def data_url(kind, content):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def png(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return data_url("image/png", buffer.getvalue())


def app_of(folder, **options):
    """Return an app around an engine of the folder."""
    return text_app(EngineHere(engine_here(folder, additional_config={"mmout": options})), "heads")


def pooled(client, data):
    answer = client.post("/pooling", json={"data": data})
    return answer.status_code, answer.json()


def test_a_picture_and_texts_over_http(tmp_path):
    """A dict reaches the mapper: its picture is opened, its texts are not, whatever they look like."""
    model, processor = prompted("OwlViTForObjectDetection", tmp_path)
    folder = saved(tmp_path / "model", model, processor)
    texts = ["a field", "file:///a.png"]
    features = processor(images=PICTURE, text=[texts], return_tensors="pt")
    with torch.inference_mode():
        raw = model(**features)
    (expected,) = processor.post_process_grounded_object_detection(raw, threshold=0.0, target_sizes=[(40, 56)])
    with TestClient(app_of(folder, threshold=0.0)) as client:
        status, answer = pooled(client, {"image": png(PICTURE), "text": texts})
        assert status == 200, answer
        found = answer["data"]["detections"]
        boxes = expected["boxes"].numpy().clip(0, [56, 40, 56, 40])
        inside = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        assert inside.any()
        np.testing.assert_allclose([one["box"] for one in found], boxes[inside], rtol=1e-5, atol=1e-4)
        assert [one["label"] for one in found] == [texts[label] for label in expected["labels"][inside]]
        status, answer = pooled(client, {"image": png(PICTURE)})
        assert (status, "needs text" in answer["error"]["message"]) == (400, True)
        status, answer = pooled(client, {"image": "/etc/passwd", "text": ["a"]})
        assert (status, "nothing that this server reads" in answer["error"]["message"]) == (400, True)


def test_a_sound_over_http(tmp_path):
    """As a data URL, alone or with a name, and as numbers."""
    model, extractor = head("ASTForAudioClassification")
    folder = saved(tmp_path, model, extractor)
    samples = RANDOM.normal(0, 0.1, 1600).astype(np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16000, "FLOAT", format="WAV")
    url = data_url("audio/wav", buffer.getvalue())
    with torch.inference_mode():
        expected = model(**extractor(samples, sampling_rate=16000, return_tensors="pt")).logits[0].softmax(0)
    with TestClient(app_of(folder)) as client:
        for data in (url, {"audio": url}, {"audio": samples.tolist(), "sampling_rate": 16000}):
            status, answer = pooled(client, data)
            assert status == 200, answer
            found = {one["id"]: one["score"] for one in answer["data"]["classes"]}
            assert found == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-5)
        status, answer = pooled(client, png(PICTURE))
        assert (status, "WAV" in answer["error"]["message"]) == (400, True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # a FutureWarning since torch 2.14
def test_a_text_is_spoken_to_openais_client(tmp_path):
    """In one forward, at ``/v1/audio/speech``; what has no meaning there is refused."""
    model, tokenizer = prompted("VitsModel", tmp_path)
    folder = saved(tmp_path / "model", model, tokenizer)
    with torch.inference_mode():
        expected = model(**tokenizer("a wet field", return_tensors="pt")).waveform[0].numpy()
    with openai_client(app_of(folder)) as client:
        spoken = client.audio.speech.create(model="heads", voice="x", input="a wet field", response_format="wav")
        with wave.open(io.BytesIO(spoken.content)) as file:
            assert (file.getframerate(), file.getnchannels()) == (8000, 1)
            heard = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        np.testing.assert_allclose(heard, expected.clip(-1, 1), atol=1 / 32000)
        with pytest.raises(openai.BadRequestError, match="leave instructions out"):
            client.audio.speech.create(model="heads", voice="x", input="a", instructions="softly")
