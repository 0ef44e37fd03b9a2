"""The chat page in a real browser, beside servers whose answers are scripted or a tiny model's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from server.browsers import CHROMIUM, open_browser
from server.processes import Process

TOOLS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'

pytestmark = pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = Process("server.chat_server")
    yield process.url
    process.kill()


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Callable[..., Page]]:
    opened: list[tuple[Page, list[str]]] = []

    def open_one(width: int = 1000, scheme: str = "light") -> Page:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{url}/chat")
        expect(page.locator("#model")).to_have_text("fake")
        opened.append((page, errors))
        return page

    yield open_one
    for page, errors in opened:
        page.close()
        # On a slow machine the page may ask for the place of a request that has not arrived yet.
        assert [error for error in errors if "404" not in error] == []


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("#log .assistant .text").all_inner_texts()]


def until_ended(page: Page) -> None:
    expect(page.locator("#said")).to_contain_text("has ended")
    expect(page.locator("#log")).to_have_attribute("aria-busy", "false")


def test_an_answer_streams_and_tells_its_seat_and_speed(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("150")
    ask(page, "Say plain things")
    expect(page.locator("#log")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#numbers")).to_contain_text("seat 0")
    expect(page.locator("#numbers")).to_contain_text("tokens/s")
    until_ended(page)
    assert answers(page)[0].startswith("The quick brown fox jumps")
    expect(page.locator("#numbers")).to_contain_text("150 tokens")
    expect(page.locator("#log .note")).to_have_text("cut at the most tokens")


def test_stop_ends_the_answer_and_the_next_one_goes_on(open_page: Callable[..., Page]) -> None:
    page = open_page()
    ask(page, "Say plain things for ever")
    expect(page.locator("#log .assistant .text")).to_contain_text("fox")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#log .note")).to_have_text("stopped")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill("5")
    ask(page, "And now?")
    until_ended(page)
    assert len(answers(page)) == 2
    page.get_by_role("button", name="New chat").click()
    assert answers(page) == []


def test_reasoning_is_folded(open_page: Callable[..., Page]) -> None:
    page = open_page()
    ask(page, "think")
    until_ended(page)
    fold = page.locator("#log details")
    expect(fold).not_to_have_attribute("open", "")
    fold.locator("summary").click()
    expect(fold.locator(".text")).to_have_text("It rains.")
    assert "Take a coat." in answers(page)


def test_a_call_asks_for_its_result(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_text("Settings").click()
    page.get_by_label("Tools, a JSON list of functions").fill(TOOLS)
    ask(page, "call")
    until_ended(page)
    expect(page.locator("#log pre")).to_have_text('weather({"city": "Oslo"})')
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Send results").click()
    expect(page.locator("#log .assistant .text").nth(1)).to_contain_text("fox")


def test_a_schema_binds_the_answer_and_a_broken_one_is_told(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_text("Settings").click()
    page.get_by_label("JSON schema").fill("{")
    ask(page, "Say plain things")
    expect(page.get_by_role("alert")).to_have_text("The schema must be a JSON object.")
    page.get_by_label("JSON schema").fill('{"const": "Oslo"}')
    ask(page, "Say plain things")
    until_ended(page)
    assert answers(page) == ['"Oslo"']


@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 400)])
def test_nothing_overflows_and_all_has_a_name(open_page: Callable[..., Page], scheme: str, width: int) -> None:
    page = open_page(width, scheme)
    page.get_by_text("Settings").click()
    page.get_by_label("Most tokens").fill("60")
    ask(page, "Say plain things " + "x" * 300)
    until_ended(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = page.eval_on_selector_all(
        "input, textarea, button", "all => all.map(one => one.labels?.[0]?.textContent || one.textContent)"
    )
    assert all(name.strip() for name in names)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(22, 20, 18)") == (scheme == "dark")


def test_all_of_it_works_by_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.keyboard.type("Say plain things for ever")  # the field has the focus from the start
    page.keyboard.press("Enter")
    expect(page.locator("#log .assistant .text")).to_contain_text("fox")
    page.keyboard.press("Escape")
    expect(page.locator("#log .note")).to_have_text("stopped")
    expect(page.get_by_label("Message")).to_be_focused()
