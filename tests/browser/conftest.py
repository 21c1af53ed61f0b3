"""A real Chromium, offline; skipped on a machine without one, an error in CI."""

from __future__ import annotations

import os
import shutil

import pytest

from parsim import load, simulate
from parsim.report.page.page import page as html_of

PIPELINE = {
    "name": "16 stages, 128 micro-batches",
    "model": "gpt3-175b",
    "cluster": {"topology": "dgx-a100-80gb", "nodes": 16},
    "training": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 128, "recompute": "full"},
    "parallel": {"tensor": {"size": 8, "sequence_parallel": True}, "pipeline": {"size": 16, "schedule": "1f1b"}},
}


@pytest.fixture(name="browser", scope="session")
def browser_fixture():
    executable = os.environ.get("PARSIM_CHROMIUM") or shutil.which("chromium")
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: install it, or name one in PARSIM_CHROMIUM")
        pytest.skip("no chromium on the path, none named in PARSIM_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


class Opened:
    """A page in a browser, with everything that it complained about or asked for."""

    def __init__(self, browser, path, **options):
        self.path = path
        options = {"viewport": {"width": 1360, "height": 900}, "offline": True} | options
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("[data-ready]", state="attached")

    def view(self, selector="#timeline"):
        """The range of time that a chart shows [s]."""
        return tuple(float(part) for part in self.page.locator(selector).get_attribute("data-view").split())

    def whole(self):
        """Show the whole step; its range [s]."""
        before = self.view()
        self.page.locator("[data-do=all]").click()
        self.until(lambda: self.view() != before, "the whole step")
        return self.view()

    def until(self, condition, what):
        """Wait for something that takes a frame or two."""
        for _ in range(100):
            if (found := condition()) is not None and found is not False:
                return found
            self.page.wait_for_timeout(20)
        raise AssertionError(what)

    def plot(self):
        """The plot of the timeline, scrolled into view."""
        over = self.page.locator("#timeline .u-over")
        over.scroll_into_view_if_needed()
        return over.bounding_box()

    def at(self, time, box=None):
        """Where a time stands [px]."""
        box = box or self.plot()
        begin, end = self.view()
        return box["x"] + box["width"] * (time - begin) / (end - begin)


@pytest.fixture(name="open_page")
def open_page_fixture(browser):
    opened = []

    def open_page(path, **options):
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()


@pytest.fixture(name="pipeline", scope="session")
def pipeline_fixture(tmp_path_factory):
    """The report and the page of the 16-stage run."""
    report = simulate(load(PIPELINE))
    path = tmp_path_factory.mktemp("pages") / "pipeline.html"
    path.write_text(html_of([(report.measured.name, report)]), "utf-8")
    return report, path


@pytest.fixture(name="small", scope="session")
def small_fixture(tmp_path_factory):
    """A run of 42 spans whose name tries to be markup, and its page."""
    report = simulate(load("scenarios/gpt2-ddp-4x-a100.yaml", "name=</script><img src=x onerror=alert(1)>"))
    path = tmp_path_factory.mktemp("pages") / "small.html"
    path.write_text(html_of([(report.measured.name, report)]), "utf-8")
    return report, path
