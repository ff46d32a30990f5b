"""The page at control's address, in a real browser: what it shows, at phone width, by keyboard, in the dark, aloud.

Of a fleet with real processes; engines are fake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from scripts.fleet import Fleet
from tests.beds import needs
from tests.browser import Browser
from tests.e2e.conftest import Make, fake, model

pytestmark = needs("chromium", root=False)
GPUS = [
    {
        "uuid": "GPU-1",
        "index": 0,
        "name": "card <b>one</b>",
        "memory": 8 << 30,
        "memory_used": 4 << 30,
    },
    {
        "uuid": "GPU-2",
        "index": 1,
        "name": "card two",
        "memory": 8 << 30,
        "healthy": False,
        "trouble": "gone",
    },
]
SHOWN = "document.getElementById('replicas').innerText.includes('ready')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


def started(make: Make, token: str = "") -> Fleet:
    waits = model(fake("--alias", "huge"), gpus=1, gpu_memory="80GiB")
    fleet = make({"alpha": model(fake("--alias", "alpha")), "huge": waits})
    gpus = fleet.folder / "gpus.json"
    gpus.write_text(json.dumps(GPUS))
    fleet.more["agent"] = ["--gpus", str(gpus)]
    if token:
        (fleet.folder / "control").mkdir()
        (fleet.folder / "control" / "token").write_text(token)
        (fleet.folder / "control" / "token").chmod(0o600)
        fleet.http.headers["Authorization"] = f"Bearer {token}"
        (fleet.folder / "agent").mkdir()
        (fleet.folder / "agent" / "node-token").write_text(token)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    return fleet


def test_it_shows_the_fleet_and_goes_on_showing_it(make: Make, browser: Browser) -> None:
    fleet = started(make)
    browser.errors.clear()
    browser.open(fleet.urls["control"])
    browser.wait(SHOWN)
    browser.wait("document.getElementById('summary').textContent.includes('would be disturbed')")
    ended = [{"shard": "a-1/0", "verdict": "adopt"}, {"shard": "b-1/0", "verdict": "terminal"}]
    plan = json.dumps({"shards": ended, "actions": [], "disturbs": 0, "complete": True})
    summary = "document.getElementById('summary').textContent"
    assert browser.value(f"(showPlan({plan}), {summary})").startswith("1 of 1 engines go on")
    text = browser.value("document.body.innerText")
    for part in (
        "box1",
        "alpha",
        "card <b>one</b>: 4.0 of 8.0 GiB",
        "gone",
        "would be disturbed",
        "GPU 1",
    ):
        assert part in text, part
    assert browser.value("document.getElementById('ask').hidden"), "no token is needed here"
    fleet.kill("control")
    browser.wait("document.getElementById('leader').textContent.includes('does not answer')")
    assert "alpha" in browser.value("document.body.innerText"), "the last picture stays"
    fleet.start("control")
    browser.wait("document.getElementById('leader').textContent.includes('epoch 2')")
    assert [e for e in browser.errors if "net::ERR_" not in e] == []


def test_at_phone_width_nothing_is_cut_off(make: Make, browser: Browser) -> None:
    fleet = started(make)
    for width in (320, 390, 1280):
        browser.open(fleet.urls["control"], width=width)
        browser.wait(SHOWN)
        wide = browser.value("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} of {width} pixels"


def test_dark_and_light_can_both_be_read(make: Make, browser: Browser) -> None:
    """4.5 to 1 for every text (WCAG 2.2, 1.4.3), by the colours that the browser has worked out."""
    fleet = started(make)
    for dark in (False, True):
        browser.open(fleet.urls["control"], dark=dark)
        browser.wait(SHOWN)
        worst = browser.value(CONTRAST)
        assert worst["ratio"] >= 4.5, (dark, worst)
        assert browser.value("matchMedia('(prefers-color-scheme: dark)').matches") is dark


def test_it_is_read_aloud_as_tables_with_names(make: Make, browser: Browser) -> None:
    fleet = started(make)
    browser.open(fleet.urls["control"])
    browser.wait(SHOWN)
    names = browser.names()
    roles = {role for role, _ in names}
    assert {
        "main",
        "banner",
        "heading",
        "table",
        "columnheader",
        "rowheader",
        "cell",
        "status",
    } <= roles
    assert ("table", "Nodes of the fleet") in names
    assert ("button", "Hold still") in names
    assert all(
        name for role, name in names if role in {"button", "link", "table", "heading", "textbox"}
    )


def test_by_keyboard_alone_with_a_token(make: Make, browser: Browser) -> None:
    """The page without a token holds nothing; the field has the focus when it is asked for."""
    fleet = started(make, token="open-sesame")
    browser.open(fleet.urls["control"])
    browser.wait("document.activeElement.id === 'token'")
    assert "alpha" not in browser.value("document.body.innerText")
    browser.type("wrong")
    browser.press("Enter")
    browser.wait("document.getElementById('refused').textContent.includes('wrong')")
    browser.value("document.getElementById('token').focus()")
    browser.type("open-sesame")
    browser.press("Enter")
    browser.wait(SHOWN)
    browser.wait("document.activeElement.id === 'fleet'")
    # From the top of a page that was just opened; the token is kept as long as the tab is.
    browser.value("window.before = true")
    browser.open(fleet.urls["control"])
    browser.wait(f"!window.before && {SHOWN}")
    browser.press("Tab")
    browser.wait("document.activeElement.className === 'skip'")
    browser.press("Tab")
    browser.wait("document.activeElement.id === 'hold'")
    browser.press("Enter")
    browser.wait("document.getElementById('hold').getAttribute('aria-pressed') === 'true'")


def test_only_the_page_itself_is_open_and_nobody_may_frame_it(make: Make) -> None:
    fleet = started(make, token="open-sesame")
    url = fleet.urls["control"]
    bare = httpx.Client(trust_env=False)
    typed = {"Sec-Fetch-Site": "none"}
    for path in ("/", "/web/page.css", "/web/page.js"):
        answer = bare.get(f"{url}{path}", headers=typed if path == "/" else {})
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    assert bare.get(f"{url}/api/v1/status").status_code == 401
    assert bare.get(f"{url}/api/v1/status", headers=typed).status_code == 403
    assert bare.get(url, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert bare.get(f"{url}/web/__init__.py").status_code in (401, 404)
    bare.close()


CONTRAST = """(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.startsWith("rgba(0, 0, 0, 0")) return c; } return "rgb(255, 255, 255)"; };
  let worst = { ratio: 21, text: "" };
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetParent || e.className === "skip") continue;
    const a = light(getComputedStyle(e).color), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: e.textContent.slice(0, 60), color: getComputedStyle(e).color };
  }
  return worst;
})()"""
