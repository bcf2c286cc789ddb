"""Ask a server for maps with OpenAI's client: ``vllm-mmout serve water-index`` in one terminal, this in another."""

import base64
import os
from pathlib import Path

import openai

from vllm_mmout import embedded_scene


def main() -> None:
    """Ask for a GeoTIFF, for areas, for previews while the result grows, and for what the model cannot do."""
    client = openai.OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),  # the server's --api-key, where it has one
    )
    scene = embedded_scene("scene.tif")  # any GeoTIFF will do; extra_body={"bands": [...]} picks six of its bands

    answer = client.images.edit(image=scene, prompt="", extra_body={"output_format": "tiff"})
    Path("water.tif").write_bytes(base64.b64decode(answer.data[0].b64_json))
    print(f"wrote water.tif, {answer.size} pixels")

    answer = client.images.edit(image=scene, prompt="", extra_body={"output": "areas"})
    print(base64.b64decode(answer.data[0].b64_json).decode())

    options = {"tile": 64, "overlap": 16}  # a scene so small is cut into tiles on demand alone
    for event in client.images.edit(image=scene, prompt="", stream=True, partial_images=3, extra_body=options):
        final = event.type == "image_edit.completed"
        file = Path("water.png" if final else f"preview-{event.partial_image_index}.png")
        file.write_bytes(base64.b64decode(event.b64_json))
        print(f"wrote {file}")

    try:
        client.images.generate(prompt="a lake")
    except openai.BadRequestError as error:
        print(f"refused for its {error.param}: {error.body['message']}")


if __name__ == "__main__":
    main()
