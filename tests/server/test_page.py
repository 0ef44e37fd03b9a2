"""The status page in a real browser, beside a server with a tiny model: the picture says what the records say."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from hotseat import cli
from server.browsers import CHROMIUM, open_browser
from server.processes import Process
from tiny_models import write_tiny_hf_model

OPTIONS = ("--port", "0", "--runner", "reference", "--max-num-seqs", "6", "--num-kv-blocks", "12")

pytestmark = pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium")


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has just served ten requests in a KV cache too small for all of them."""
    model = write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny")
    process = Process("hotseat", "serve", str(model), *OPTIONS)
    with ThreadPoolExecutor(10) as pool:
        bodies = [
            {"prompt": list(range(5, 25 + at)), "max_tokens": 12 + at, "ignore_eos": True, "seed": at}
            for at in range(10)
        ]
        list(pool.map(lambda body: post(f"{process.url}/v1/completions", body), bodies))
    yield process.url
    process.kill()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """The page after its first look, held, so that the picture stays as it is."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(url)
    expect(page.locator("#timeline-text")).to_contain_text("kept")
    page.click("#pause")
    yield page
    page.close()
    assert errors == []


def layout(page: Page) -> dict[str, Any]:
    data = page.locator("#timeline").evaluate("canvas => ({...canvas.dataset})")
    rows = [int(seat) for seat in data.pop("rows").split()]
    return {"rows": rows, **{name: int(value) for name, value in data.items()}}


def center(at: dict[str, Any], column: int, row: int) -> tuple[float, float]:
    """Return the middle of a cell in pixels of the canvas."""
    x = at["left"] + (column + 0.4) * at["columnWidth"]
    return x, at["top"] + (row + 0.5) * at["rowHeight"] - 1


def pixels(page: Page, places: list[tuple[float, float]]) -> list[str]:
    script = """(canvas, places) => {
      const pen = canvas.getContext("2d");
      const ratio = window.devicePixelRatio;
      return places.map(([x, y]) => pen.getImageData(x * ratio, y * ratio, 1, 1).data.join());
    }"""
    colors: list[str] = page.locator("#timeline").evaluate(script, places)
    return colors


def test_the_header_names_model_precision_policy_version_and_the_other_pages(page: Page, url: str) -> None:
    stats = get(f"{url}/v1/steps")["stats"]
    assert (stats["dtype"], stats["policy"]) == ("int8", "fcfs")
    assert 0 < stats["uptime_s"] < 3600
    expect(page.locator("#model")).to_contain_text("int8")
    expect(page.locator("#model")).to_contain_text("policy fcfs")
    expect(page.locator("#version")).to_contain_text(f"version {stats['version']}, up ")
    for link in page.locator("nav a").all():
        with urllib.request.urlopen(f"{url}/{link.get_attribute('href')}", timeout=60) as response:
            assert response.status == 200


def test_each_cell_shows_what_the_record_of_its_step_says(page: Page, url: str) -> None:
    at = layout(page)
    steps = {step["step"]: step for step in get(f"{url}/v1/steps?limit=4096")["steps"]}
    numbers = range(at["firstStep"], at["lastStep"] + 1)
    assert len(numbers) > 20
    assert at["rows"] == sorted({chunk["seat"] for step in steps.values() for chunk in step["scheduled"]})
    places = [center(at, column, row) for column in range(len(numbers)) for row in range(len(at["rows"]))]
    colors = iter(pixels(page, places))
    seen: dict[tuple[str, str], set[str]] = {}
    for number in numbers:
        chunks = {chunk["seat"]: chunk for chunk in steps[number]["scheduled"]}
        for seat in at["rows"]:
            color, chunk = next(colors), chunks.get(seat)
            if chunk is None:
                assert color.endswith(",0"), f"step {number}, seat {seat} is empty"
            else:
                seen.setdefault((chunk["id"], chunk["phase"]), set()).add(color)
    assert all(len(shades) == 1 for shades in seen.values()), "a request has one colour a phase"
    assert len({color for shades in seen.values() for color in shades}) > 10


def test_the_pointer_names_a_cell_and_a_click_explains_its_request(page: Page, url: str) -> None:
    at = layout(page)
    step = get(f"{url}/v1/steps?since={at['firstStep'] - 1}&limit=4096")["steps"][0]
    chunk = step["scheduled"][0]
    x, y = center(at, 0, at["rows"].index(chunk["seat"]))
    page.locator("#timeline").hover(position={"x": x, "y": y})
    expect(page.locator("#cell")).to_contain_text(f"seat {chunk['seat']}: ")
    page.locator("#timeline").click(position={"x": x, "y": y})
    expect(page.locator("#details-title")).to_have_text(chunk["id"])
    expect(page.locator("#facts")).to_contain_text("finished: length")
    expect(page.locator("#facts")).to_contain_text("prefill chunk")
    page.keyboard.press("Escape")
    expect(page.locator("#details")).to_be_hidden()


def test_the_keyboard_reaches_every_cell(page: Page) -> None:
    at = layout(page)
    page.focus("#timeline")
    page.keyboard.press("ArrowLeft")
    cell = page.locator("#cell")
    expect(cell).to_contain_text(f"step {at['lastStep']:,}, seat {at['rows'][0]}")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    expect(cell).to_contain_text(f"step {at['lastStep'] - 1:,}, seat {at['rows'][1]}")
    page.keyboard.press("Home")
    page.keyboard.press("+")
    page.keyboard.press("End")
    assert layout(page)["columnWidth"] > at["columnWidth"]


def test_the_queue_shows_the_reasons_of_this_moment(browser: Browser, url: str) -> None:
    """What an old step said of a request that waits is not repeated: the list is /v1/requests' own."""
    page = browser.new_page()

    def answer(route: Any) -> None:
        now = {"request_id": "cmpl-abc123.1", "status": "waiting", "reason": "seats: now", "waited_s": {"seats": 2.0}}
        route.fulfill(json={"data": [{"sequences": [now]}]})

    def with_waiting(route: Any) -> None:
        body = route.fetch().json()
        body["stats"]["num_waiting"] = 1
        body["steps"][-1:] = [
            {**step, "deferred": [{"id": "cmpl-abc123.1", "why": "prefix: long ago"}]} for step in body["steps"][-1:]
        ]
        route.fulfill(json=body)

    page.route("**/v1/requests?*", answer)
    page.route("**/v1/steps?*", with_waiting)
    page.goto(url)
    expect(page.locator("#queue")).to_contain_text("seats: now, for 2.00 s")
    assert "long ago" not in page.inner_text("body")
    page.unroute_all(behavior="ignoreErrors")  # an answer may be under way
    page.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_nothing_is_wider_than_the_window(browser: Browser, url: str, scheme: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(url)
    expect(page.locator("#timeline-text")).to_contain_text("kept")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_a_running_server_is_traced(url: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with ThreadPoolExecutor(1) as pool:  # an event loop, the browser's, runs in this thread
        assert pool.submit(cli.main, ["trace", url, "--output", str(path)]).result() == 0
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X" and event["tid"]]
    assert len(slices) == sum(len(step["scheduled"]) for step in get(f"{url}/v1/steps?limit=4096")["steps"])


def test_the_api_page_lists_every_endpoint_of_the_description(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}/docs")
    listed = {text.split(" ")[1] for text in page.locator("dt").all_inner_texts()}
    assert listed == set(get(f"{url}/openapi.json")["paths"])
    expect(page.locator("main")).to_contain_text("max_tokens")
    page.close()
