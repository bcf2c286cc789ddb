"""What a browser can tell of a page's accessibility: names, labels, contrast, the way of the focus."""

from __future__ import annotations

FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"

UNNAMED = """() => {
    const text = element => (element?.textContent ?? "").trim();
    const byIds = ids => (ids ?? "").split(/\\s+/).map(id => text(document.getElementById(id))).join(" ").trim();
    const named = element => element.getAttribute("aria-label") || byIds(element.getAttribute("aria-labelledby"));
    const wrong = [];
    for (const field of document.querySelectorAll("input, select, textarea")) {
        const labels = [...(field.labels ?? [])].map(text).join("");
        if (!labels && !named(field)) wrong.push(`no label: ${field.outerHTML.slice(0, 80)}`);
    }
    for (const button of document.querySelectorAll("button, summary, a[href]")) {
        if (!text(button) && !named(button)) wrong.push(`no name: ${button.outerHTML.slice(0, 80)}`);
    }
    for (const image of document.querySelectorAll("img, svg, canvas, [role=img]")) {
        if (!image.hasAttribute("alt") && !named(image)) wrong.push(`no text: ${image.outerHTML.slice(0, 80)}`);
    }
    for (const clicked of document.querySelectorAll("[onclick], [role=button]")) {
        if (clicked.tagName !== "BUTTON") wrong.push(`no button: ${clicked.outerHTML.slice(0, 80)}`);
    }
    for (const each of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
        for (const name of ["aria-labelledby", "aria-describedby"]) {
            for (const id of (each.getAttribute(name) ?? "").split(/\\s+/).filter(Boolean)) {
                if (!document.getElementById(id)) wrong.push(`${name} names nothing: ${id}`);
            }
        }
    }
    const ids = [...document.querySelectorAll("[id]")].map(each => each.id);
    for (const id of new Set(ids)) if (ids.filter(each => each === id).length > 1) wrong.push(`twice: ${id}`);
    const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map(each => Number(each.tagName[1]));
    levels.forEach((level, i) => level > (levels[i - 1] ?? 0) + 1 && wrong.push(`heading of level ${level}`));
    if (!document.documentElement.lang || !document.title) wrong.push("no language or title");
    return wrong;
}"""
"""Finds what has no name for a screen reader, and structure that is wrong."""

FAINT = """() => {
    const channels = colour => {
        const numbers = colour.match(/[\\d.]+/g).map(Number);
        return colour.startsWith("color(srgb") ? numbers.map((each, i) => (i < 3 ? 255 * each : each)) : numbers;
    };
    const light = colour => {
        const [r, g, b] = channels(colour).map(each => each / 255)
            .map(each => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let each = element; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            const alpha = channels(colour)[3] ?? 1;
            if (alpha === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const faint = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility() || element.matches(":disabled, option, noscript")) continue;
        const [one, other] = [getComputedStyle(element).color, behind(element)].map(light);
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < 4.5) faint.push(`${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return faint;
}"""
"""Finds text with less contrast than 4.5 to 1 (WCAG 2.2, 1.4.3)."""

FOCUSED = """() => {
    const element = document.activeElement;
    if (element === document.body) return null;
    const { outlineStyle, outlineWidth } = getComputedStyle(element);
    element.dataset.visited = "";
    const seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
    return [element.outerHTML.slice(0, 80), seen];
}"""
"""What has the focus, and whether that is seen; it is marked as visited."""


def unvisited(page):
    """Controls that can be seen and used, and were never marked by `FOCUSED`."""
    return page.eval_on_selector_all(
        FOCUSABLE,
        """all => all.filter(each => each.checkVisibility() && !each.disabled && each.tabIndex >= 0)
            .filter(each => each.dataset.visited === undefined).map(each => each.outerHTML.slice(0, 80))""",
    )


def tab_to(page, selector, *, back=False):
    """Press Tab until an element has the focus."""
    for _ in range(100):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"the focus never comes to {selector}")
