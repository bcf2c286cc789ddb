# ruff: noqa: INP001, T201 - the scripts are not a package, and they print
"""Command that makes the pictures of docs/page.md from a running server.

    vllm-mmout serve water-index
    python scripts/screenshots.py http://127.0.0.1:8000

It needs playwright and a Chromium on this machine (CHROMIUM names its path). The server should have no other jobs.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from vllm_mmout import embedded_scene

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 800}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
COLOURS: Final = 200
"""Colours of a picture. With all colours, a file is three times as large and looks the same."""
TILE: Final = "64"


def main() -> None:
    """Make the pictures of docs/page.md."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Make the pictures of docs/page.md from a running server.")
    parser.add_argument("url", help="address of the server, such as http://127.0.0.1:8000")
    url = parser.parse_args().url.rstrip("/")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        scene = embedded_scene(Path(folder) / "scene.tif")
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        job = _picture(browser, url, scene, "page-light.png", color_scheme="light", **DESKTOP)
        _picture(browser, url, scene, "page-dark.png", job, color_scheme="dark", **DESKTOP)
        _picture(browser, url, scene, "page-phone.png", job, color_scheme="light", **PHONE)
        browser.close()


def _picture(browser: Browser, url: str, scene: Path, name: str, old_job: str | None = None, **settings: Any) -> str:
    """Photograph the page with a result and return the job's id. Delete the job of the picture before."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.goto(f"{url}/mmout")
    if old_job is not None:
        page.request.delete(f"{url}/v1/scenes/{old_job}")
        page.reload()
    page.set_input_files("#files", scene)
    page.wait_for_selector("#run:enabled")
    page.evaluate("tile => { document.querySelector('[name=tile]').value = tile }", TILE)
    page.click("#run")
    page.wait_for_selector("#result-part", state="visible")
    _look(page)
    _save(page.screenshot(), DOCS / name)
    job = page.get_attribute("#jobs [data-id]", "data-id")
    context.close()
    if job is None:
        raise SystemExit("the page lists no job")
    return job


def _look(page: Page) -> None:
    """Put the pointer on the river, remove the focus, and scroll the panel and the page to the top."""
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0) }")
    page.evaluate("() => { document.querySelector('#panel').scrollTop = 0 }")
    box = page.locator("#overlay").bounding_box()
    if box is not None:
        page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + box["height"] * 0.58)
    page.wait_for_selector("#at-place-part", state="visible")


def _save(png: bytes, path: Path) -> None:
    """Save a picture with few colours, and print its size."""
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}  {path.stat().st_size // 1000} KB")


if __name__ == "__main__":
    main()
