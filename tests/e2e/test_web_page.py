"""The page in a real Chromium, on made-up clusters; skipped where there is none (Debian's package has it)."""

import asyncio
import json
import re
import sys
from urllib.parse import quote

import pytest
from support import chromium
from support.snapshots import FLAVOR, node, steady
from support.web_cluster import claimed, items
from support.web_page import serving, violations

from cli.demo.page import DemoPage
from cli.web.running import of_files, write
from crds.names import workload_name
from crds.settings import Settings

pytestmark = pytest.mark.skipif(chromium.found() is None, reason="no Chromium: apt-get install chromium")

DRAWN = "performance.getEntriesByName('paint').length > 0"
VIEWS = {
    "map": (DRAWN, "#/map"),
    "by queue": (DRAWN, "#/map?colour=queue"),
    "problems": (DRAWN, "#/map?colour=problem"),
    "table": ("document.querySelectorAll('.scroll tbody tr').length > 4", "#/map?as=table"),
    "machine": (
        "!!document.querySelector('.drawer svg.inside') && !!document.querySelector('.claimed li')",
        "#/map?host={machine}",
    ),
    "workload": ("document.querySelectorAll('.drawer .pods tr').length > 3", "#/map?workload={runs}"),
    "waits": ("!!document.querySelector('.drawer .relief')", "#/workloads?workload={waits}"),
    "queues": ("document.querySelectorAll('.queue').length === 4", "#/queues"),
    "workloads": ("document.querySelectorAll('.list tbody tr').length > 5", "#/workloads"),
    "history": ("!!document.querySelector('.history canvas, .state')", "#/history"),
    "what if": ("!!document.querySelector('#manifest')", "#/whatif"),
}


def named(made):
    """Names of a workload that runs with several pods, of one that waits, and of a machine with an inside."""
    workloads = [one for one in made if one["kind"] == "Workload"]
    running = [one for one in workloads if "admission" in one["status"]]
    runs = max(running, key=lambda one: one["spec"]["podSets"][0]["count"])
    waits = next(one for one in workloads if "admission" not in one["status"])
    machine = next(one["metadata"]["name"] for one in made if one["kind"] == "FlexTopo")
    key = "{0[namespace]}/{0[name]}".format
    return {"runs": key(runs["metadata"]), "waits": key(waits["metadata"]), "machine": machine}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    made = claimed(items(4, 4, 8, machines=16))
    path = tmp_path_factory.mktemp("web") / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    return path, named(made)


@pytest.fixture
async def tab():
    async with chromium.tab() as made:
        yield made


@pytest.fixture
async def page(snapshot, tab):
    """The page of the snapshot, opened; its address, and names of what is in it."""
    path, names = snapshot
    async with serving("-f", str(path)) as (_, link):
        await tab.open(link)
        await tab.until(DRAWN)
        yield link.partition("#")[0], names


async def show(tab, address, ready):
    await tab.js(f"location.hash = {json.dumps(address)}")
    await tab.until(ready, f"ready: {address}")
    await tab.settled()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_view_is_shown_without_an_error(tab, page, dark):
    _, names = page
    await tab.look(dark=dark)
    for name, (ready, address) in VIEWS.items():
        await show(tab, address.format(**names), ready)
        wide = await tab.js("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is wider than the window"
        assert await violations(tab) == [], name
    assert tab.errors == []


async def test_every_view_is_shown_on_a_tablet_and_a_phone(tab, page):
    _, names = page
    for width, height in ((820, 1180), (390, 844)):
        await tab.look(width, height, scale=2, mobile=True)
        for name, (ready, address) in VIEWS.items():
            await show(tab, address.format(**names), ready)
            assert await tab.js("document.documentElement.scrollWidth - innerWidth") <= 0, name
            last = await tab.js("[...document.querySelectorAll('nav a')].at(-1).getBoundingClientRect().right")
            assert last <= width, "all views are in sight"
            if name in {"queues", "workloads"}:  # their tables are lists there
                assert await violations(tab) == [], name
    await show(tab, "#/", DRAWN)
    assert await tab.js("document.querySelector('nav a[aria-current]').innerText") == "Map"
    assert tab.errors == []


BOX = (
    "(({left, right, top, bottom}) => [left, right, top, bottom])(document.querySelector('%s').getBoundingClientRect())"
)


async def test_nothing_lies_upon_the_map_and_one_sees_where_one_is(tab, page):
    """Neither a panel nor the buttons; and what the mouse was upon is said no more once keys go on elsewhere."""
    _, names = page
    whole = await tab.js(BOX % "canvas")
    await show(tab, f"#/map?workload={names['runs']}", "!!document.querySelector('.drawer .way')")
    (left, right, top, _), drawer, zoom = [await tab.js(BOX % one) for one in ("canvas", ".drawer", ".zoom")]
    assert left == whole[0]
    assert right <= drawer[0]
    assert right < whole[1], "it is narrower"
    assert zoom[3] <= top
    said = "document.querySelector('.tip')?.innerText ?? ''"
    for y in range(int(top) + 30, int(top) + 300, 13):
        await tab.mouse("mouseMoved", left + 90, y)
        await asyncio.sleep(0.1)
        if await tab.js(said):
            break
    assert await tab.js(said)
    await tab.key("/", "Slash", "/")
    await tab.until(f"({said}) === ''")
    await tab.js("document.activeElement.blur()")
    for _ in range(12):  # and zooming ends where a host fills the view
        await tab.mouse("mouseWheel", 300, 300, deltaX=0, deltaY=-600)
    where = await tab.until("document.querySelector('.where')?.innerText")
    assert where.startswith("b")
    await tab.settled()
    for y in range(200, 700, 40):  # somewhere in sight is a host
        await tab.mouse("mouseMoved", 500, y)
        await asyncio.sleep(0.05)
        if await tab.js("!!document.querySelector('.tip')"):
            break
    assert await tab.js("!!document.querySelector('.tip')")
    await tab.js("[...document.querySelectorAll('.zoom button')].at(-1).click()")
    await tab.until("!document.querySelector('.where')")


async def test_a_panel_says_what_was_asked_and_where_it_is_and_leads_to_the_map_and_back(tab, page):
    _, names = page
    await show(tab, f"#/workloads?workload={names['runs']}", "!!document.querySelector('.drawer .way')")
    told = await tab.js("document.querySelector('.drawer').innerText")
    order = [told.index(one) for one in ("Running for", "Asked for", "Placed in", "Timeline")]
    assert order == sorted(order)
    assert "all in one block (required)" in told
    assert f"-n {names['runs'].partition('/')[0]}" in told
    assert "kubectl topogate explain" in told
    await tab.js("[...document.querySelectorAll('.drawer a')].find(one => one.innerText === 'show on the map').click()")
    await tab.until("location.hash.startsWith('#/map') && !!document.querySelector('canvas')")
    await tab.until("document.querySelector('.drawer').innerText.includes('show in the list')")
    await tab.js(
        "[...document.querySelectorAll('.drawer a')].find(one => one.innerText === 'show in the list').click()"
    )
    await tab.until("location.hash.startsWith('#/workloads') && location.hash.includes('workload=')")

    # A namespace goes from view to view, and lists are sorted by address.
    await show(tab, "#/workloads?ns=vision&sort=since", "document.querySelectorAll('.list tbody tr').length > 2")
    names = await tab.js("[...document.querySelectorAll('.list tbody th a')].map(one => one.innerText)")
    assert {name.partition("/")[0] for name in names} == {"vision"}
    links = await tab.js("[...document.querySelectorAll('nav a')].map(one => one.hash)")
    assert all("ns=vision" in link for link in links), links
    await show(tab, "#/workloads?state=waiting&sort=since", "document.querySelectorAll('.list tbody tr').length > 2")
    ages = await tab.js("[...document.querySelectorAll('.list tbody tr')].map(one => one.children[4].innerText)")
    assert ages == sorted(ages, key=minutes, reverse=True), "who waits longest comes first"


def minutes(age):
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?", age)
    return sum(int(part or 0) * each for part, each in zip(found.groups(), (1440, 60, 1), strict=True))


async def test_the_key_is_out_of_the_address_at_once_and_stored_nowhere(tab, page):
    origin, _ = page
    assert "key" not in await tab.js("location.href")
    stored = await tab.js("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert json.loads(stored) == [{}, {}, ""]
    await tab.call("Page.reload")
    await tab.until("!!document.querySelector('#token')", "the door")
    asked = [request["url"] for request in tab.requests if "/api" in request["url"]]
    assert {url.partition("api")[0] for url in asked} == {origin}
    assert not [request["url"] for request in tab.requests if "key=" in request["url"] and "#" not in request["url"]]


async def test_a_wrong_key_is_told_and_opens_nothing(tab, page):
    origin, _ = page
    await tab.open(f"{origin}#key=wrong")
    await tab.until("document.body.innerText.includes('not the key')")
    assert await tab.js("document.querySelector('canvas') === null")


async def test_hover_says_who_and_a_click_opens_the_machine(tab, page):
    for y in range(180, 400, 13):  # there is a little room between hosts and racks
        await tab.mouse("mouseMoved", 300, y)
        await asyncio.sleep(0.1)
        if await tab.js("(document.querySelector('.tip')?.innerText ?? '').includes('of 8 GPUs')"):
            break
    await tab.click(300, y)
    await tab.until("!!document.querySelector('.drawer h2') && location.hash.includes('host=')")


async def test_without_a_mouse(tab, page):
    await tab.js("document.querySelector('canvas').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        await tab.key(key)
    said = await tab.until(
        "[...document.querySelectorAll('[role=status]')].map(one => one.innerText).find(one => /of 8 used/.test(one))"
    )
    await tab.key("Enter")
    await tab.until("!!document.querySelector('.drawer h2')")
    assert (await tab.js("document.querySelector('.drawer h2').innerText")).strip() == said.split(",")[0]
    await tab.js("document.querySelector('canvas').focus()")
    await tab.key("Escape")
    await tab.until("!document.querySelector('.drawer')")


async def test_search_finds_and_lights_up(tab, page):
    _, names = page
    await tab.key("/", "Slash", "/")
    await tab.until("document.activeElement.getAttribute('role') === 'combobox'")
    await tab.call("Input.insertText", text="b3/r2")
    await tab.until("document.querySelectorAll('[role=option]').length > 0")
    await tab.key("Enter")
    await tab.until("location.hash.includes('at=b3')")
    await show(tab, f"#/map?workload={names['runs']}", "!!document.querySelector('.drawer .way')")
    assert "Pods ungated" in await tab.js("document.querySelector('.drawer .way').innerText")


async def test_a_host_shows_who_has_which_devices_of_claims(tab, page):
    _, names = page
    await show(tab, f"#/map?host={names['machine']}", "!!document.querySelector('.claimed li')")
    groups = await tab.js(
        "[...document.querySelectorAll('.claimed ul')].map(ul => "
        "[ul.previousSibling.innerText, ...[...ul.children].map(one => one.innerText.trim())])"
    )
    assert groups[:4] == [
        ["Zone 0 gpu.example.com", "gpu-0 A", "gpu-1"],
        ["Zone 1 gpu.example.com", "gpu-2", "gpu-3 B"],
        ["Zone 2 gpu.example.com", "gpu-4", groups[2][2]],
        ["Zone 3 gpu.example.com", "gpu-6 tainted", "gpu-7"],
    ]
    assert groups[2][2].startswith("gpu-5 claim ")
    assert groups[4:] == [
        ["No zone told mig.example.com", "mig-0 blocked", "mig-1 B", "mig-2"],
        ["No zone told nic.example.com", "nic-0 A, in part"],
    ]
    rows = await tab.js("[...document.querySelectorAll('.drawer .pods tbody tr')].map(one => one.innerText)")
    assert "gpu.example.com: gpu-0; nic.example.com: nic-0" in rows[0]


async def test_one_that_waits_to_grow_says_what_it_lacks_and_who_is_in_the_way(tmp_path, tab):
    train = steady("train", ["r1h1", "r1h1"], 4)
    train[0]["spec"] |= {"parallelism": 4, "completions": 4}
    made = [FLAVOR, node("r1h1", "r1"), node("r1h2", "r1"), *train, *steady("other", ["r1h2"], 8)]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    key, other = (f"team/{workload_name('Job', name, f'uid-{name}')}" for name in ("train", "other"))
    async with serving("-f", str(path)) as (_, link):
        await tab.open(link)
        await tab.until(DRAWN)
        await show(tab, f"#/map?workload={key}", "!!document.querySelector('[aria-label=Growth] .relief')")
        told = await tab.js("document.querySelector('[aria-label=Growth]').innerText")
        assert "It waits to grow by 2 pods" in told
        assert "It would fit in r1 if this one was gone: team/other (1 pod, priority 0)." in told
        assert "Closest" not in told, "the table says that already"
        await tab.js("document.querySelector('.relief a').click()")
        await tab.until(f"decodeURIComponent(location.hash).includes({json.dumps(other)})")
        await tab.settled()
        assert tab.errors == []


async def test_what_if_says_where_a_job_would_go(tab, page):
    await show(tab, "#/whatif", "!!document.querySelector('#manifest')")
    await tab.js("document.querySelector('button.main').click()")
    await tab.until("document.querySelector('.answer')?.innerText.includes('would be placed')")


async def test_a_picture_stays_while_the_server_is_away_and_goes_on_after(snapshot, tab):
    path, _ = snapshot
    async with serving("-f", str(path)) as (_, link):
        port = link.partition("#")[0].rstrip("/").rpartition(":")[2]
        await tab.open(link)
        await tab.until(DRAWN)
    await tab.until("!!document.querySelector('.banner') && document.querySelector('.app').classList.contains('stale')")
    assert await tab.js("document.querySelector('canvas') !== null")
    async with serving("-f", str(path), port=int(port)):  # another process has another key: the door opens
        await tab.until("document.body.innerText.includes('not the key')")


EVIL = '<img src=x onerror="window.hacked=1">'
ENDS = "</script><script>window.hacked=1</script>"


def hostile():
    """A cluster all names, labels and messages of which try to be markup."""
    made = claimed(items(2, 2, 3, machines=2))
    text = json.dumps(made)
    for name in ("b1-r1", "pretrain", "chat", "language", "r2", "gpu-", "kept"):
        text = text.replace(name, name + json.dumps(f"{EVIL}{ENDS}'\"`${{1}}&lt;")[1:-1])
    return json.loads(text.replace("is short", json.dumps(EVIL + ENDS)[1:-1]))


@pytest.mark.parametrize("served", [True, False], ids=["served", "file"])
async def test_names_and_messages_are_text_and_never_markup(tmp_path, tab, served):
    path, made = tmp_path / "hostile.json", hostile()
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    names = {key: quote(name, safe="") for key, name in named(made).items()}
    file = tmp_path / "page.html"
    await asyncio.to_thread(write, file, of_files([str(path)], Settings()), Settings())
    async with serving("-f", str(path)) as (_, link):
        await tab.open(link if served else f"file://{file}")
        await tab.until(DRAWN)
        views = [address for _, address in VIEWS.values() if served or "whatif" not in address]
        for address in views:
            await tab.js(f"location.hash = {json.dumps(address.format(**names))}")
            await tab.settled()
            await tab.mouse("mouseMoved", 320, 320)
        await tab.js("document.querySelector('[role=combobox]').focus()")
        await tab.call("Input.insertText", text="img")
        await tab.settled()
    assert await tab.js("window.hacked") is None
    assert await tab.js("document.querySelectorAll('#page img').length") == 0
    assert [error for error in tab.errors if "Content Security" in error or "Error" in error] == []


async def test_a_file_opens_without_a_server_and_asks_nobody(tmp_path, snapshot, tab):
    path, names = snapshot
    file = tmp_path / "page.html"
    await asyncio.to_thread(write, file, of_files([str(path)], Settings()), Settings())
    await tab.open(f"file://{file}")
    await tab.until(DRAWN)
    links = await tab.js("[...document.querySelectorAll('nav a')].map(one => one.innerText)")
    assert links == ["Map", "Queues", "Workloads"]
    for name in ("machine", "workload", "queues", "table"):
        ready, address = VIEWS[name]
        await show(tab, address.format(**names), ready)
    assert [request["url"] for request in tab.requests if request["url"].startswith("http")] == []
    assert tab.errors == []


async def test_a_simulation_is_looked_at_from_moment_to_moment(tmp_path, tab):
    file = tmp_path / "sim.html"
    options = ("--blocks", "2", "--racks", "2", "--hosts", "4", "--jobs", "80", "--span", "2d", "--queues", "2")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "simulate", "run", *options, "-p", "topology", "--web", str(file)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    await tab.open(f"file://{file}")
    await tab.until(DRAWN)
    links = await tab.js("[...document.querySelectorAll('nav a')].map(one => one.innerText)")
    assert links == ["Map", "Queues", "Workloads", "History"]
    facts = "document.querySelector('.line').innerText"
    middle, end = await tab.js(facts), await tab.js("Number(document.querySelector('.slider input').max)")
    await show(tab, f"#/map?t={end}", f"({facts}) !== {json.dumps(middle)}")
    last = await tab.js(facts)
    await show(tab, "#/map?t=9&colour=workload", f"({facts}) !== {json.dumps(last)}")
    early, legend = await tab.js(facts), "document.querySelector('.legend').innerText"
    looks = await tab.js(legend)
    await show(tab, f"#/map?t={end}&colour=workload", f"({facts}) === {json.dumps(last)}")
    await show(tab, "#/map?t=9&colour=workload", f"({facts}) === {json.dumps(early)}")
    assert await tab.js(legend) == looks, "back again, all is as it was"
    await show(tab, "#/queues?t=9", "document.querySelectorAll('.queue').length === 2")
    assert await violations(tab) == []
    assert "used" in await tab.js("document.querySelector('.quota-head').innerText")
    await show(tab, "#/history?t=9", "!!document.querySelector('.u-legend')")
    assert "\N{EN DASH}" not in await tab.js("document.querySelector('.history').innerText")
    await show(tab, "#/workloads?t=9&state=running", "document.querySelectorAll('.list tbody tr').length > 0")
    await tab.js("document.querySelector('.list tbody a').click()")
    told = await tab.until("document.querySelector('.drawer .facts')?.innerText")
    assert "Asked for" in told
    assert "Placed in" in told
    assert tab.errors == []


async def test_a_browser_goes_over_to_what_the_demo_shows_next(tab, tmp_path):
    page = DemoPage()
    try:
        for name, hosts in (("before", 2), ("after", 3)):
            made = {"apiVersion": "v1", "kind": "List", "items": items(1, 1, hosts)}
            (tmp_path / f"{name}.json").write_text(json.dumps(made))
            link = await page.show("--snapshot", str(tmp_path / f"{name}.json"), "--cluster-name", name)
            if name == "before":
                await tab.open(link)
            await tab.until(f"document.body.innerText.includes('{name}')", f"at {name}")
    finally:
        await page.close()
