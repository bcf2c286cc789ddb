"""Map a flood: the embedded model writes a GeoTIFF and a picture of the embedded scene to the current folder."""

from vllm import LLM

from vllm_mmout import OutputParams, embedded_model, embedded_scene


def main() -> None:
    """Run the model once for the classes, and once for its confidence."""
    scene = embedded_scene("scene.tif")  # any GeoTIFF works; OutputParams(bands=[...]) selects six of its bands
    llm = LLM(embedded_model("water-index"), gpu_memory_utilization=0.3)

    water = llm.generate(scene)[0].outputs
    print(f"{(water.array[0] == 1).sum()} pixels of water, {water.crs}, corner at {water.transform[2::3]}")
    print("wrote", water.save("water.tif"), "with the georeference of the scene")
    print("wrote", water.save("water.png"))

    sure = llm.generate(scene, OutputParams(output="confidence", path="confidence.tif"))[0].outputs
    print(f"wrote {sure.path}, nodata {sure.nodata}")


if __name__ == "__main__":  # the engine's processes import this file
    main()
