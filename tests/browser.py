"""JupyterLab and a headless Chromium for it. Neither talks to another machine."""

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from shared.runtime.ports import free_port
from tests.helpers import HANG_S, environment

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy says

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
# All cells are in the page, also those out of sight; no pop-up asks for news.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
IDLE = re.compile(r"\| Idle$")  # in the status bar; the toolbar says so before the kernel is there
CALM_LOOKS = 10


@dataclass(frozen=True)
class ShownCell:
    """A code cell as the reader sees it."""

    prompt: str
    output: str
    errors: int


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def jupyterlab(root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the checkout at ``root``; yield address and token. ``folder`` holds settings and log."""
    for name, values in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    port = free_port()
    token = f"t{secrets.token_hex(8)}"
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": root,
        "IdentityProvider.token": token,
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    env = environment(
        root,
        JUPYTER_CONFIG_DIR=str(folder / "config"),
        JUPYTERLAB_SETTINGS_DIR=str(folder / "settings"),
        JUPYTERLAB_WORKSPACES_DIR=str(folder / "workspaces"),
    )
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    address = f"http://127.0.0.1:{port}"
    log = folder / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(command, cwd=root, env=env, stdout=file, stderr=file) as server,
    ):
        try:
            _wait_until_up(f"{address}/api/status?token={token}", server, log)
            yield address, token
        finally:
            server.terminate()


def _wait_until_up(status: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + HANG_S
    while True:
        try:
            with DIRECT.open(status, timeout=10):
                return
        except OSError:
            assert server.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)


@contextmanager
def opened(address: str, token: str, notebook: str) -> Iterator[Page]:
    """The page of a notebook whose kernel is ready."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_OPTIONS))
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 1500})
            page.set_default_timeout(HANG_S * 1000)
            page.goto(f"{address}/lab/tree/{notebook}?token={token}&reset")
            page.wait_for_selector(".jp-Notebook .jp-Cell")
            page.get_by_text(IDLE).first.wait_for()
            yield page
        finally:
            browser.close()


def run_all(page: Page) -> list[ShownCell]:
    """Choose Run All Cells in the menu, wait to the end, and return the code cells."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    end, calm = time.monotonic() + 2 * HANG_S, 0
    while calm < CALM_LOOKS:
        assert time.monotonic() < end, "the notebook did not come to its end"
        busy = any("*" in text for text in prompts.all_inner_texts()) or not page.get_by_text(IDLE).count()
        calm = 0 if busy else calm + 1
        page.wait_for_timeout(200)
    return [_shown(cell) for cell in page.locator(".jp-CodeCell").all()]


def _shown(cell) -> ShownCell:
    failed = '.jp-OutputArea-output[data-mime-type*="error"], .jp-OutputArea-output[data-mime-type*="stderr"]'
    return ShownCell(
        prompt=cell.locator(".jp-InputPrompt").first.inner_text(),
        output="\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts()),
        errors=cell.locator(failed).count(),
    )
