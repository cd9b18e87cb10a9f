"""What a page makes of the samples that the relay tells it, in a real browser."""

from collections.abc import Iterator

import pytest

from tests.web.browser import Browser

# A relay whose samples are as a test wants them, in `told`; `ahead` is what a page's own clock gains, in ms.
STAGED = """
  window.told = [], window.asked = [], window.ahead = 0;
  const [real, now] = [window.fetch, performance.now.bind(performance)];
  performance.now = () => now() + window.ahead;
  window.fetch = async (path, options) => {
    if (!String(path).startsWith("/api/live")) return real(path, options);
    const after = Number(new URL(path, location).searchParams.get("after"));
    window.asked.push(after);
    return new Response(JSON.stringify({ samples: window.told.filter((sample) => sample.number > after) }));
  };
"""
TELL = """
  const at = Date.now() / 1000 - arguments[1];
  window.told = arguments[0].map((number) => ({
    number, at, rates: {}, workers: {}, latency: {}, counts: null, trouble: arguments[2] }));
"""
KNOWN = "return import('/static/live.js').then(({ live }) => live.samples.map((sample) => sample.number))"


@pytest.fixture
def staged(visitor: Browser) -> Iterator[Browser]:
    script = visitor.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": STAGED})
    yield visitor
    visitor.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def asked_again(browser: Browser, times: int) -> None:
    before = browser.run("return window.asked.length")
    browser.until(lambda: browser.run("return window.asked.length") >= before + times, "it asks again")


def test_samples_are_kept_once_however_wrong_the_browsers_clock_is(staged: Browser) -> None:
    staged.open("/audit")
    staged.run(TELL, [1, 2, 3], 60, None)
    staged.until(lambda: staged.run(KNOWN) == [1, 2, 3], "the samples are there")
    asked_again(staged, 3)
    assert staged.run(KNOWN) == [1, 2, 3]
    staged.run(TELL, [1, 2, 3, 4], 0, "no database")
    staged.until(lambda: staged.run(KNOWN) == [1, 2, 3, 4], "the new one is there too")
    asked_again(staged, 3)
    assert staged.run(KNOWN) == [1, 2, 3, 4]


def test_a_page_keeps_a_bounded_number_of_samples_even_if_they_are_of_the_future(staged: Browser) -> None:
    staged.open("/audit")
    staged.run(TELL, list(range(1, 2001)), -86400, None)
    staged.until(lambda: staged.run(KNOWN), "the samples are there")
    assert staged.run(KNOWN) == list(range(1101, 2001))


def test_a_relay_that_counts_from_the_beginning_again_is_heard_after_a_silence(staged: Browser) -> None:
    staged.open("/audit")
    staged.run(TELL, [7, 8, 9], 0, None)
    staged.until(lambda: staged.run(KNOWN) == [7, 8, 9], "the samples are there")
    staged.run(TELL, [1, 2], 0, None)
    asked_again(staged, 2)
    assert staged.run(KNOWN) == [7, 8, 9], "what is known stays while nothing new is told"
    staged.run("window.ahead = 41000")
    staged.until(lambda: staged.run(KNOWN) == [1, 2], "the new ones take the place of the old")
