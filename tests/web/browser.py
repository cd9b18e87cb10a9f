"""A real Chromium without a window, driven by the distribution's chromedriver."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 30.0
DESKTOP = (1280, 860)
PHONE = (375, 740)


class Browser:
    """One page at a time; every look waits until what it looks for is there."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.home = ""

    def open(self, path: str = "/") -> None:
        self.driver.get(f"{self.home}{path}")

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
        )

    def theme(self, name: str) -> None:
        """What the system asks for: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return WebDriverWait(self.driver, PATIENCE, 0.1, ignored_exceptions=(Exception,)).until(
            lambda _: condition(), f"waited in vain until {what}; the page says: {self.text()[:2000]}"
        )

    def find(self, selector: str) -> WebElement:
        found: WebElement = self.until(
            lambda: self.driver.find_element(By.CSS_SELECTOR, selector), f"there is {selector}"
        )
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        return str(
            self.driver.execute_script(
                "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')",
                selector,
            )
        )

    def shows(self, text: str, selector: str = "body") -> None:
        self.until(lambda: text in self.text(selector), f"it shows {text!r}")

    def hides(self, text: str, selector: str = "body") -> None:
        self.until(lambda: text not in self.text(selector), f"it no longer shows {text!r}")

    def button(self, name: str, within: str = "main, dialog") -> WebElement:
        def look() -> WebElement | None:
            for place in self.all(within):
                for found in place.find_elements(By.CSS_SELECTOR, "button, a.button"):
                    if found.text.strip() == name and found.is_enabled() and found.is_displayed():
                        return found
            return None

        found: WebElement = self.until(look, f"there is a button {name!r}")
        return found

    def press(self, name: str, within: str = "main, dialog") -> None:
        def click() -> bool:
            self.button(name, within).click()
            return True

        self.until(click, f"{name!r} can be pressed")

    def fill(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the console said: violations of the policy, errors of scripts."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


def program() -> str | None:
    """Where Chromium is; None: not here."""
    return shutil.which("chromium") if shutil.which("chromedriver") else None


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    options = Options()
    options.binary_location = program() or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
        "--lang=en-GB",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or ""))
    try:
        browser = Browser(driver)
        browser.size(*DESKTOP)
        yield browser
    finally:
        driver.quit()
