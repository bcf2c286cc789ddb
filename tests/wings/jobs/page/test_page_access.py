"""The page for those who have no mouse, no large screen, or do not see well."""

from __future__ import annotations

import numpy as np
import pytest
from accessibility import FAINT, FOCUSED, UNNAMED, tab_to, unvisited
from browsing import current_job, drop, finished, given, named, pixels, readout, run

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_everything_works_by_keyboard(page, scene, mask):
    """A file is chosen, an option set, the job run, a pixel read, the map saved and the job deleted, all by keys."""
    tab_to(page, "#choose")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(scene)
    page.wait_for_function("() => document.activeElement.id === 'run'")
    tab_to(page, "#options summary", back=True)
    page.keyboard.press("Enter")
    tab_to(page, "[name=tile]")
    page.keyboard.type("128")
    page.keyboard.press("Enter")
    finished(page)
    assert "tile=128" in page.text_content("#curl")
    tab_to(page, "#map", back=True)
    for keys, (row, col) in [
        (["ArrowUp"], (256, 256)),  # the first press brings the crosshair to the middle
        (["ArrowUp", "ArrowUp", "ArrowLeft"], (254, 255)),
        (["Shift+ArrowDown", "Shift+ArrowRight", "ArrowRight"], (264, 266)),
        (["+", "+", "+", "Shift+ArrowLeft"], (264, 256)),
    ]:
        for key in keys:
            page.keyboard.press(key)
        assert readout(page)[:3] == [str(row), str(col), named(mask[row, col])]
        assert page.text_content("#spoken") == f"row {row}, column {col}: {named(mask[row, col])}"
    wide = page.locator("#overlay").bounding_box()["width"]
    page.keyboard.press("0")
    assert page.locator("#overlay").bounding_box()["width"] < wide
    tab_to(page, "#download")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "scene-segmentation.tif"
    job = current_job(page)
    tab_to(page, f"li[data-id='{job}'] .delete")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_function("id => !document.querySelector(`[data-id='${id}']`)", arg=job)


def test_the_crosshair_stays_in_sight_and_in_the_picture(page, scene):
    """Zoomed in, the view follows the crosshair, which stops at the edge."""
    given(page, scene)
    page.focus("#map")
    for key in ["ArrowUp", *["+"] * 8, *["Shift+ArrowRight"] * 30]:
        page.keyboard.press(key)
    assert readout(page)[1] == "511"
    cross, view = (page.locator(name).bounding_box() for name in ("#cross", "#map"))
    assert view["x"] <= cross["x"] <= view["x"] + view["width"] - cross["width"]


def test_the_focus_goes_everywhere_is_seen_and_is_never_caught(page, scene):
    """Tab comes to every control, once around and on, and each shows that it has the focus."""
    given(page, scene)
    run(page)
    page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true }")
    page.evaluate("() => document.activeElement.blur()")
    hidden = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if found and not found[1]:
            hidden.add(found[0])
    assert not unvisited(page)
    assert not hidden


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_labels_and_contrast(visit, page_server, scene, tmp_path, scheme):
    """Every control has a name, every picture a text, every text its contrast: empty, with an error, with a result."""
    page = visit(page_server, color_scheme=scheme, reduced_motion="reduce")  # no colour on its way to another
    assert [page.evaluate(UNNAMED), page.evaluate(FAINT)] == [[], []]
    broken = tmp_path / "broken.tif"
    broken.write_bytes(b"nothing")
    drop(page, broken)
    page.wait_for_selector("#notice", state="visible")
    assert [page.evaluate(UNNAMED), page.evaluate(FAINT)] == [[], []]
    given(page, scene)
    run(page)
    page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true }")
    assert [page.evaluate(UNNAMED), page.evaluate(FAINT)] == [[], []]


def test_a_wrong_page_would_be_found(page):
    """The checks above see a field without a label, a picture without a text, and faint words."""
    page.evaluate("""() => {
        const { body } = document;
        const words = body.appendChild(document.createElement("p"));
        words.textContent = "faint";
        Object.assign(words.style, { color: "#999", backgroundColor: "#fff" });
        body.append(document.createElement("input"), document.createElement("img"), document.createElement("button"));
    }""")
    assert len(page.evaluate(UNNAMED)) == 3
    assert page.evaluate(FAINT) == ["faint: 2.85"]


def test_a_telephone_needs_no_scrolling_sideways(visit, page_server, scene, tmp_path, mask):
    """At 390 pixels nothing is wider than the screen, whatever is open; the map is there by touch."""
    page = visit(page_server, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert width(page) == 390
    broken = tmp_path / f"{'a-very-long-name-' * 12}.tif"
    broken.write_bytes(b"nothing")
    drop(page, broken)
    page.wait_for_selector("#notice", state="visible")
    assert width(page) == 390
    long = tmp_path / broken.name
    long.write_bytes(scene.read_bytes())
    given(page, long)
    run(page, tile=256, window="0,0,512,512")
    page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true }")
    assert width(page) == 390
    outside = page.eval_on_selector_all(
        "button, input, select, p, dd, dt, td, th, h1, h2, pre, canvas",
        """all => all.filter(each => each.checkVisibility() && !each.closest(".unseen"))
            .filter(each => each.getBoundingClientRect().right > 390.5).map(each => each.outerHTML.slice(0, 60))""",
    )
    assert not outside
    box = page.locator("#overlay").bounding_box()
    row, col = 300, 200
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#overlay").bounding_box()
    page.touchscreen.tap(box["x"] + (col + 0.5) * box["width"] / 512, box["y"] + (row + 0.5) * box["height"] / 512)
    seen = [int(each) for each in readout(page)[:2]]
    np.testing.assert_allclose(seen, [row, col], atol=1)
    assert readout(page)[2] == named(mask[tuple(seen)])
    assert pixels(page, "overlay").shape == (512, 512, 4)


@pytest.mark.parametrize("wide", [320, 600, 801, 1024, 1920])
def test_nothing_lies_over_anything_else_at_any_width(visit, page_server, scene, wide):
    """Map, line and panel stand beside or below each other, also with a long value in the line."""
    page = visit(page_server, viewport={"width": wide, "height": 700})
    given(page, scene)
    run(page, output="probabilities", window="0,0,400,400")
    page.hover("#map")
    page.wait_for_function("() => document.getElementById('at-value').textContent.includes('water')")
    assert width(page) == wide
    map_, bar, panel = (page.locator(name).bounding_box() for name in ("#map", "#bar", "#panel"))
    assert map_["y"] + map_["height"] <= bar["y"]
    assert map_["width"] == bar["width"]
    beside = map_["x"] + map_["width"] <= panel["x"]
    assert beside if wide > 800 else bar["y"] + bar["height"] <= panel["y"]


def width(page):
    """How wide the page is, with what sticks out."""
    return page.evaluate("() => document.documentElement.scrollWidth")


def test_nothing_moves_for_those_who_want_no_motion(visit, page_server):
    """With prefers-reduced-motion no element has an animation or a transition."""
    page = visit(page_server, reduced_motion="reduce")
    moving = """all => all.map(each => getComputedStyle(each))
        .filter(each => each.animationName !== "none" || parseFloat(each.transitionDuration) > 0).length"""
    assert page.eval_on_selector_all("body *", moving) == 0
    assert visit(page_server, reduced_motion="no-preference").eval_on_selector_all("body *", moving) > 0
