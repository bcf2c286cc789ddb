"""The page of a server that wants a key, and what the page keeps."""

from __future__ import annotations

import numpy as np
import pytest
from browsing import coloured, given, legend, pixels, run

pytestmark = [pytest.mark.engine, pytest.mark.slow]
KEY = "open-sesame"
"""Of the fixture `locked_server`."""


def enter(page, key):
    """Answer the question for the key."""
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", key)
    page.keyboard.press("Enter")


def test_the_key_is_asked_for_and_kept_nowhere(visit, locked_server, scene, mask):
    """A wrong key is refused in words; with the right one all works, and no storage, cookie or address has it."""
    page = visit(locked_server)
    enter(page, "wrong")
    page.wait_for_function("() => document.querySelector('#key-wrong').textContent !== ''")
    enter(page, KEY)
    page.wait_for_selector("#key-dialog", state="hidden")
    page.wait_for_function("() => document.querySelector('#model').innerText === 'water-index'")
    given(page, scene)
    run(page)
    np.testing.assert_array_equal(pixels(page, "overlay"), coloured(mask, legend(page)))
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.path().read_bytes()[:2] in {b"II", b"MM"}
    kept = page.evaluate("() => [localStorage.length, sessionStorage.length, document.cookie, location.href]")
    assert kept == [0, 0, "", f"{locked_server.url}/mmout"]
    assert page.context.cookies() == []
    assert page.evaluate("async () => (await indexedDB.databases()).length + (await caches.keys()).length") == 0
    assert not any(KEY in address for address in page.asked)
    assert KEY not in page.content()
    assert page.text_content("#curl").count('-H "Authorization: Bearer $KEY"') == 3
    page.reload()
    page.wait_for_selector("#key-dialog[open]")


def test_without_a_key_the_page_says_so(visit, locked_server, scene):
    """Who closes the question is told what is missing, and is asked again at the next try."""
    page = visit(locked_server)
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#notice", state="visible")
    assert "API key" in page.inner_text("#error")
    page.set_input_files("#files", scene)
    enter(page, KEY)
    page.wait_for_selector("#run:enabled")


def test_an_open_server_is_not_asked_with_a_key(page, scene):
    """Where no key is wanted there is no question, and the commands have no header for it."""
    given(page, scene)
    run(page)
    assert page.is_hidden("#key-dialog")
    assert "Authorization" not in page.text_content("#curl")
    assert page.evaluate("() => [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
