"""Pages in a real browser: empty, full, with errors, 400 px wide; by login, by form, by keyboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.server import Server, eventually, fill, gemm, record, serving

from tuner.cli.main import run
from tuner.night import stored
from tuner.results.record import Wanted, new_id
from tuner.service.pages import local, templates
from tuner.store import Store, watched

QUESTION = "operation=gemm&dims=512,512,512&device=NVIDIA+H200"
PAGES = (
    "/", "/problems", f"/problem?{QUESTION}", "/problem?operation=gemm&dims=77,7,7&device=NVIDIA+H200",
    "/device?name=NVIDIA+H200", "/jobs", "/kernels", "/wanted", "/docs",
)  # fmt: skip
HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server that everyone on this machine may use for everything."""
    db = f"sqlite:///{folder}/studies.db"
    fill(db)
    assert run(["allow", str(TOY), "--db", db]) == 0
    spec = write_device(folder / "device.json", baseline_s=1e-3, pace=2.0)
    with serving(db, folder, "--local-admin", "--device", spec) as running:
        yield running


def html(server: Server, path: str) -> str:
    """A page as a browser gets it, without one."""
    page = httpx.get(server.base + path, headers=HTML)
    assert page.status_code == 200, page.text
    return page.text


class Seen:
    """A page, with what the browser had to say and where it asked."""

    def __init__(self, chromium: Any, **more: Any) -> None:
        self.context = chromium.new_context(**more)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda told: self.said.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _asked(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws"):
            self.hosts.add(urlsplit(url).netloc)

    def open(self, url: str) -> None:
        """Opens a page, and waits for its plots."""
        self.page.goto(url)
        if self.page.query_selector("#figures"):
            self.page.wait_for_selector("body[data-drawn]")


def test_every_page_shows_and_asks_nobody_else(server: Server, chromium: Any) -> None:
    seen = Seen(chromium, color_scheme="dark")
    for path in PAGES:
        for width in (400, 1100):
            seen.page.set_viewport_size({"width": width, "height": 800})
            if width == 400:
                seen.open(server.base + path)
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert seen.said == [], path
        assert seen.page.query_selector("h1").inner_text()
    assert seen.hosts == {urlsplit(server.base).netloc}
    seen.context.close()


def test_figures_can_be_hovered_and_read_and_ask_no_cloud(server: Server, chromium: Any) -> None:
    seen = Seen(chromium, viewport={"width": 1100, "height": 900})
    # As over plain http, where a browser has no clipboard.
    seen.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    seen.open(f"{server.base}/problem?{QUESTION}")
    assert len(seen.page.query_selector_all(".plot .main-svg")) >= 2
    legend = seen.page.locator("#over-time .legendtext").all_text_contents()
    assert legend == ["champion", "cuBLAS", "cuBLASLt"]
    assert re.search("<dt>error</dt><dd>2e-07 rms", html(server, f"/problem?{QUESTION}"))
    point = seen.page.query_selector("#history .points path")
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    seen.page.wait_for_selector("#history .hovertext")
    buttons = seen.page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert "Download plot as a PNG" in buttons
    assert not [title for title in buttons if "Share" in title or "loud" in title]
    for plot in seen.page.query_selector_all(".plot"):
        frame, title = plot.bounding_box(), plot.query_selector(".xtitle")
        if title:
            place = title.bounding_box()
            labels = [label.bounding_box() for label in plot.query_selector_all(".xtick")]
            assert place["y"] + place["height"] <= frame["y"] + frame["height"]
            assert all(label["y"] + label["height"] <= place["y"] for label in labels)
    seen.page.click("[data-copy]")
    seen.page.wait_for_selector("[data-copy]:text-is('Copied')")
    assert seen.said == []
    seen.context.close()


def test_a_job_is_submitted_followed_and_cancelled(server: Server, folder: Path, chromium: Any) -> None:
    # So slow that the job does not end before the page has shown some of its trials.
    write_device(folder / "device.json", baseline_s=1e-3, pace=20.0)
    seen = Seen(chromium)
    seen.open(f"{server.base}/jobs")
    plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [4000]\nseconds = 300\n'
    seen.page.fill("textarea[name=plan]", plan.replace("squares", "squares_"))
    seen.page.click("button:text-is('Submit')")
    assert "plan:3: " in seen.page.inner_text("[role=alert]")
    assert "squares_" in seen.page.input_value("textarea[name=plan]")
    seen.page.fill("textarea[name=plan]", plan)
    seen.page.fill("input[name=seconds]", "300")
    seen.page.click("button:text-is('Submit')")
    seen.page.wait_for_url("**/jobs/*")
    trials = lambda: int(seen.page.inner_text("[data-bind=trials]"))
    before = eventually(trials)
    eventually(lambda: trials() > before)  # without loading the page again
    seen.page.wait_for_selector("#plots .main-svg")
    seen.open(f"{server.base}/")
    assert "toy 4000 float32 plain" in seen.page.inner_text(".cards")
    seen.page.click(".cards a")
    seen.page.click("text=Cancel")
    seen.page.wait_for_selector("#live .state.cancelled", timeout=60_000)
    seen.context.close()
    write_device(folder / "device.json", baseline_s=1e-3, pace=2.0)


def test_a_page_is_usable_with_the_keyboard(server: Server, chromium: Any) -> None:
    seen = Seen(chromium)
    seen.open(f"{server.base}/")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    for _ in range(20):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("document.activeElement.id") == "q":
            break
    seen.page.keyboard.type("gemm 512 512 512")
    seen.page.select_option("#d", "NVIDIA H200")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url("**/problem?*")
    assert "gemm 512 x 512 x 512" in seen.page.inner_text("h1")
    seen.context.close()


def test_optuna_dashboard_opens_on_the_study_one_came_from(server: Server, chromium: Any) -> None:
    job = server.post("/v1/jobs", json={"problem": {"file": str(TOY), "dims": [900]}, "trials": 6}).json()["id"]
    eventually(lambda: server.get(f"/v1/jobs/{job}").json()["state"] == "done")
    asked = "operation=toy&dims=n=900&dtype=float32&layout=plain&device=Fake+board"
    eventually(lambda: "optuna/study" in html(server, f"/problem?{asked}"))
    assert re.search("Result</h2>.*blocks", html(server, f"/jobs/{job}"), re.DOTALL)
    seen = Seen(chromium)
    seen.open(f"{server.base}/problem?{asked}")
    seen.page.click("text=Open the study in optuna-dashboard")
    seen.page.wait_for_url("**/optuna/dashboard/studies/*")
    seen.page.wait_for_selector("text=toy", timeout=30_000)
    seen.page.goto(f"{server.base}/optuna/dashboard")
    seen.page.wait_for_selector("button:has-text('Reload')")
    dead = seen.page.locator("button:has-text('Create'), [aria-label$=' study']")
    assert dead.count() >= 3
    assert not any(one.is_visible() for one in dead.all())
    seen.page.click("text=Back to tile-tuner")
    seen.page.wait_for_selector("h1:text-is('Overview')")
    assert seen.hosts == {urlsplit(server.base).netloc}
    uneven = ({"BM": 8}, {"BM": [1, 2], "BN": "x"}, {})
    with Store.open(server.db) as store:
        store.add([record(gemm(70, 70, 70), 1e-3, config=one, study="uneven") for one in uneven])
    number = server.get("/optuna/study", name="uneven").headers["location"].rpartition("/")[2]
    assert len(server.get(f"/optuna/api/studies/{number}", after=0).json()["trials"]) == len(uneven)
    for method in ("DELETE", "POST", "PUT"):
        assert httpx.request(method, f"{server.base}/optuna/api/studies/1").status_code == 405
    seen.context.close()


def test_the_overview_tells_what_the_sentinels_of_the_last_night_found(server: Server) -> None:
    alert = {
        "told": "the driver changed", "why": "the driver was 1.0 and is 2.0", "change": 0.043,
        "since": "2026-01-01T22:00:00+00:00", "command": "tuner watch explain gemm 512 512 512",
        "problems": [{}, {}],
    }  # fmt: skip
    behind = {"problem": "gemm 7 x 7 x 7", "told": "its bits", "command": "tuner champions rollback gemm 7 7 7"}
    report = {
        "begun_at": "2026-01-01T22:00:00+00:00", "ended_at": "2026-01-02T06:30:00+00:00", "stopped": "",
        "sentinels": [{}] * 3, "no_sentinels": None, "alerts": [alert], "behind": [behind], "confirmed": [],
        "rolled_back": [],
    }  # fmt: skip
    with Store.open(server.db) as store:
        stored.note(store, new_id(), stored.ENDED, report)
    text = html(server, "/")
    assert "<strong>The driver changed</strong>: 2 problems slower by 4.3 %" in text
    assert "3 sentinels timed, 0 champions confirmed" in text
    assert (alert["command"] in text, behind["command"] in text) == (True, True)
    with Store.open(server.db) as store:
        calm = report | {"alerts": [], "behind": [], "sentinels": [{}]}
        stored.note(store, new_id(), stored.ENDED, calm)
    text = html(server, "/")
    assert "1 sentinel timed, 0 champions confirmed, nothing slower." in text


def test_a_fresh_clone_shows_what_is_published(tmp_path: Path) -> None:
    """...and a server under a path of a proxy links there."""
    asked = "/problem?operation=gemm&dims=4096,4096,4096&device=NVIDIA+H200"
    with serving(f"sqlite:///{tmp_path}/none.db", tmp_path, "--no-jobs", "--root-path", "/tuner") as own:
        texts = {
            path: html(own, path)
            for path in ("/", "/problems", "/jobs", "/wanted", "/device?name=NVIDIA+H200", asked)
        }
        for text in texts.values():
            links = re.findall(r'(?:href|src|action)="([^"]+)"', text)
            assert all(link.startswith(("/tuner/", "#")) for link in links), links
        assert own.get("/optuna/dashboard").status_code == 404
        assert re.search(r'NVIDIA H200</a>.*<td class="n">\d+ of 179 ', texts["/"])
        assert "<option>NVIDIA H200" in texts["/"].partition("</option>")[0] + "</option>"
        for name in ("speedups", "map", "roofline"):
            assert f'id="{name}"' in texts["/device?name=NVIDIA+H200"]
        assert "The latest champions" not in texts["/"], "those of others are no news"
        assert "measured limits" in texts["/device?name=NVIDIA+H200"]
        # Share of the limit, registers, spilled bytes, shared bytes, occupancy.
        facts = r'(<td class="n">\d+( %)?</td>){5}'
        assert re.search(facts, texts["/device?name=NVIDIA+H200"])
        hover = r"gemm 64 x 64 x 64 float32 nn\\u003cbr\\u003e\w+, [\d.]+ us, [\d.]+ x cuBLAS"
        assert re.search(hover, texts["/device?name=NVIDIA+H200"])
        assert "Nothing was measured" not in texts[asked]
        assert 'id="over-time"' not in texts[asked], "one champion is no development"
        record = re.search(r'href="/tuner(/records/[^"]+)">its record', texts[asked])
        assert "gemm 4096 x 4096 x 4096" in html(own, record[1])
        assert own.get(f"/v1{record[1]}").json()["id"] in record[1]


def test_problems_are_sorted_by_their_figures(server: Server) -> None:
    words = f"champions pin gemm 256 256 256 --layout nn --why x --db {server.db} --device"
    assert run([*words.split(), "NVIDIA H200"]) == 0
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    columns: dict[str, tuple[int, str, Any]] = {
        "time": (4, r"([\d.]+) (\w+)<", lambda value, unit: float(value) * units[unit]),
        "ratio": (5, r"(\d+\.\d+) x", float), "crowned": (6, 'datetime="([^"]+)"', str),
        "state": (7, r">(.*)</td>", str), "records": (8, r">(\d+)<", int),
    }  # fmt: skip

    def values(sort: str) -> list[Any]:
        at, pattern, read = columns[sort]
        rows = re.findall("<tr><td>.*</tr>", html(server, f"/problems?operation=gemm&sort={sort}"))
        found = [re.search(pattern, row.split("<td")[at + 1]) for row in rows]
        return [read(*one.groups()) for one in found if one]

    # A new snapshot is made within seconds.
    eventually(lambda: len(set(values("state"))) > 1)
    for sort in columns:
        assert len(set(values(sort))) > 1
        assert values(sort) == sorted(values(sort), reverse=True)


def test_what_is_wanted_can_be_tuned_from_its_page(server: Server) -> None:
    with Store.open(server.db) as store:
        wanted = [Wanted(gemm(300, 300, 300), "cuda", "Fake board", "default", 4, 8.0)]
        watched.add_demand(store, wanted)
    first = "gemm 300 x 300 x 300 float32 nn</a> on Fake board: asked 4 times, tuning saves 8 s"
    assert first in html(server, "/")
    text = html(server, "/wanted")
    assert ("8 s of all calls" in text, '<td class="n">2 s</td>' in text) == (True, True)
    assert 'name="problem" value="gemm 300 300 300 float32 nn"' in text
    assert 'name="device" value="fake:' in text


def test_a_doubtful_ratio_is_not_green() -> None:
    shown = '{% from "macros.html" import ratio %}{{ ratio(28.035, doubts) }}'
    doubtful, sure = (templates().from_string(shown).render(doubts=doubts) for doubts in (["busy"], []))
    assert 'class="doubt" title="busy">28.035 x, provisional' in doubtful
    assert 'class="good">28.035 x' in sure


def test_login_exchanges_a_token_for_a_cookie(guarded: tuple[Server, dict[str, str]], chromium: Any) -> None:
    own, secrets = guarded
    secret = secrets["keeper"]
    seen = Seen(chromium)
    seen.open(f"{own.base}/problem?{QUESTION}")
    assert "/login?next=" in seen.page.url
    seen.page.fill("input[name=token]", "tuner_wrong")
    seen.page.keyboard.press("Enter")
    assert re.search("unknown, expired|too many wrong", seen.page.inner_text("[role=alert]"))
    seen.page.fill("input[name=token]", secret)
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url("**/problem?*")
    assert seen.page.inner_text(".who span") == "keeper"
    cookie = seen.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert secret not in seen.page.content()
    jar = {cookie["name"]: cookie["value"]}
    for path, body in (("/jobs/new", {"data": {"problem": "gemm 8 8 8"}}), ("/v1/jobs", {"json": {}})):
        assert httpx.post(own.base + path, cookies=jar, **body).status_code == 403, "a forged request"
    told = json.loads(seen.page.evaluate("fetch('/v1/champions').then(r => r.text())"))
    assert told["count"] > 3
    seen.page.click("text=Log out")
    seen.page.wait_for_url("**/login")
    assert httpx.get(f"{own.base}/v1/champions", cookies=jar).status_code in (401, 429)
    assert "session" not in own.log.read_text()
    seen.context.close()


@pytest.mark.parametrize(("target", "place"), [
    ("/jobs?state=done", "/jobs?state=done"), ("//evil.example", "/"), ("https://evil.example", "/"),
    ("/\\evil.example", "/"), ("javascript:alert(1)", "/"), ("/a\nb", "/"), ("//[", "/"),
])  # fmt: skip
def test_a_login_leads_nowhere_else(target: str, place: str) -> None:
    assert local(target) == place


def test_data_in_a_page_cannot_end_it() -> None:
    data = {"name": "</script><script>alert(1)</script>&amp;", "nan": float("nan")}
    text = templates().from_string("{{ data | tojson }}").render(data=data)
    assert "<" not in text
    assert json.loads(text) == data | {"nan": None}
