"""Screenshots of pages for looking at: ``python tests/browser/shots.py OUT PAGE.html ...`` writes light, dark, zoomed and print."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(out: Path, pages: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("PARSIM_CHROMIUM") or shutil.which("chromium"))
        for path in pages:
            for scheme in ("light", "dark"):
                context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 1360, "height": 900})
                page = context.new_page()
                page.on("console", lambda message: print("console:", message.text))
                page.on("pageerror", lambda error: print("error:", error))
                page.goto(path.resolve().as_uri())
                page.wait_for_selector("[data-ready]", state="attached")
                print(path.name, scheme, "ready after", page.locator("html").get_attribute("data-ready"), "ms")
                page.screenshot(path=out / f"{path.stem}-{scheme}.png", full_page=True)
                if scheme == "light":
                    look_closer(page, out / path.stem)
                context.close()
        browser.close()


def look_closer(page, stem: Path) -> None:
    page.locator("#timeline").scroll_into_view_if_needed()
    page.locator("[data-do=critical]").click()
    page.wait_for_timeout(200)
    page.locator("#timeline").screenshot(path=f"{stem}-critical.png")
    page.locator("[data-do=clear]").click()
    page.locator("#timeline").focus()
    for _ in range(5):
        page.keyboard.press("w")
    page.wait_for_timeout(200)
    page.locator("#timeline").screenshot(path=f"{stem}-zoom5.png")
    for _ in range(4):
        page.keyboard.press("w")
    box = page.locator("#timeline .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + 20)
    page.wait_for_timeout(200)
    page.locator("#timeline").screenshot(path=f"{stem}-zoom9.png")
    page.pdf(path=f"{stem}.pdf", prefer_css_page_size=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
