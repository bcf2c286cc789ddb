"""Request maps from a server with OpenAI's client. Run ``vllm-mmout serve water-index`` in another terminal first."""

import base64
import os
from pathlib import Path

import openai

from vllm_mmout import embedded_scene


def main() -> None:
    """Request a GeoTIFF, areas, previews while the result grows, and a task that the model does not support."""
    client = openai.OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),  # the server's --api-key, if it has one
    )
    scene = embedded_scene("scene.tif")  # any GeoTIFF works; extra_body={"bands": [...]} selects six of its bands

    answer = client.images.edit(image=scene, prompt="", extra_body={"output_format": "tiff"})
    Path("water.tif").write_bytes(base64.b64decode(answer.data[0].b64_json))
    print(f"wrote water.tif, {answer.size} pixels")

    answer = client.images.edit(image=scene, prompt="", extra_body={"output": "areas"})
    print(base64.b64decode(answer.data[0].b64_json).decode())

    options = {"tile": 64, "overlap": 16}  # a scene this small is cut into tiles only if the request asks for it
    for event in client.images.edit(image=scene, prompt="", stream=True, partial_images=3, extra_body=options):
        final = event.type == "image_edit.completed"
        file = Path("water.png" if final else f"preview-{event.partial_image_index}.png")
        file.write_bytes(base64.b64decode(event.b64_json))
        print(f"wrote {file}")

    try:
        client.images.generate(prompt="a lake")
    except openai.BadRequestError as error:
        print(f"refused because of {error.param}: {error.body['message']}")


if __name__ == "__main__":
    main()
