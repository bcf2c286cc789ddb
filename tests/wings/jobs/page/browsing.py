"""A browser for tests, and what a user does with the page in it."""

from __future__ import annotations

import base64
import io
import os
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


PATIENCE_MS = 300_000
QUICK = "const later = window.setTimeout; window.setTimeout = (action, ms) => later(action, ms / 10);"
"""Script by which the page waits a tenth of the time before it asks again."""
NODATA = 255
CLASSES = {0: "land", 1: "water", NODATA: "no data"}


def executable():
    """The machine's own Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def flags():
    """Flags of a browser that speaks to nobody by itself; for root Chromium has no sandbox."""
    return [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


@contextmanager
def visited(browser, url, **settings):
    """A page of a fresh profile; at its end it must have asked nobody but its server, and raised nothing."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(QUICK)
    page = context.new_page()
    page.on("filechooser", lambda _: None)  # from now on no window is opened for it
    page.asked, page.raised = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.raised.append(str(error)))
    page.on("console", lambda message: page.raised.append(message.text) if refused_by_policy(message) else None)
    page.goto(f"{url}/mmout")
    yield page
    hosts = {urlsplit(address).netloc for address in page.asked if urlsplit(address).scheme not in ("blob", "data")}
    context.close()
    assert hosts == {urlsplit(url).netloc}
    assert not page.raised


def refused_by_policy(message):
    """Whether the browser refused something by the page's content security policy."""
    return message.type == "error" and "Content Security Policy" in message.text


def drop(page, *files):
    """Drop files on the map, as from a file manager."""
    _hand_over(page, files, "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })")


def paste(page, *files):
    """Paste files, as after copying a picture."""
    _hand_over(page, files, "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })")


def _hand_over(page, files, event):
    texts = [[file.name, base64.b64encode(file.read_bytes()).decode()] for file in files]
    page.evaluate(
        """files => {
            const data = new DataTransfer();
            for (const [name, text] of files) {
                data.items.add(new File([Uint8Array.from(atob(text), each => each.charCodeAt(0))], name));
            }
            document.getElementById("map").dispatchEvent(EVENT);
        }""".replace("EVENT", event),
        texts,
    )


def given(page, *files, by=drop):
    """Drop files, or paste them, and wait until they are shown."""
    by(page, *files)
    page.wait_for_function("() => !document.querySelector('#run').disabled && !document.querySelector('#run').hidden")


def fill(page, **options):
    """Fill in options of the request."""
    page.evaluate("() => { document.querySelector('#options').open = true }")
    for name, value in options.items():
        field = page.locator(f"#request [name={name}]")
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))


def run(page, **options):
    """Run what is shown, and wait for the result."""
    fill(page, **options)
    page.click("#run")
    finished(page)


def run_anew(page, **options):
    """Run what is shown with these options and none of those before."""
    before = page.eval_on_selector_all(
        "#request [name]", "all => all.filter(each => each.value).map(each => each.name)"
    )
    run(page, **{**dict.fromkeys(before, ""), **options})


def finished(page):
    """Wait for a result."""
    page.wait_for_selector("#result-part", state="visible")
    page.wait_for_selector("#run", state="visible")


def pixels(page, name):
    """The pixels of a canvas, uint8 [height, width, 4]."""
    url = page.evaluate("name => document.getElementById(name).toDataURL('image/png')", name)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGBA"))


def legend(page):
    """The rows of the legend: (name, colour, share as text, area as a number and as text)."""
    return page.eval_on_selector_all(
        "#legend tbody tr",
        """rows => rows.map(row => [
            row.querySelector("th").textContent,
            getComputedStyle(row.querySelector(".swatch")).backgroundColor.match(/\\d+/g).map(Number),
            row.cells[1].textContent,
            Number(row.querySelector("data").value),
            row.querySelector("data").textContent,
        ])""",
    )


def point_at(page, row, col, shape):
    """Move the mouse over a pixel of the result, and return what the page says of it, by id."""
    box = page.locator("#overlay").bounding_box()
    height, width = shape
    page.mouse.move(box["x"] + (col + 0.5) * box["width"] / width, box["y"] + (row + 0.5) * box["height"] / height)
    return readout(page)


def readout(page):
    """What the line below the map says: row, col, value, place."""
    return [page.inner_text(f"#at-{name}") for name in ("row", "col", "value")] + [page.text_content("#at-place")]


def current_job(page):
    """The id of the job that is shown."""
    return page.get_attribute("#jobs li:has([aria-current])", "data-id")


def address(page):
    """Of the page's server."""
    return page.url.removesuffix("/mmout")


def coloured(mask, rows):
    """A mask in the colours of the rows of `legend`, RGBA; transparent where there is no data."""
    table = np.zeros((1 + max(NODATA, len(rows)), 4), np.uint8)
    for number, (_, colour, *_) in enumerate(rows):
        table[number] = [*colour[:3], 255]
    return table[mask]


def named(number):
    """What the page calls a value of the mask."""
    return CLASSES[int(number)]
