"""A real Chromium without a window, driven by its DevTools protocol over a WebSocket. Debian's package has it."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 90.0


def found():
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page. ``errors``: what it said was wrong on its console, or threw."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self._waiting, self.errors, self.requests = {}, [], []
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            body = json.loads(message.data)
            if "id" in body:
                waiting = self._waiting.pop(body["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(body)
            elif body["method"] == "Runtime.exceptionThrown":
                details = body["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif body["method"] == "Log.entryAdded" and body["params"]["entry"]["level"] == "error":
                entry = body["params"]["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")
            elif body["method"] == "Network.requestWillBeSent":
                self.requests.append(body["params"]["request"])

    async def call(self, method, **params):
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(SECONDS):
            body = await answer
        assert "error" not in body, (method, body)
        return body["result"]

    async def look(self, width=1440, height=900, *, dark=False, scale=1, mobile=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url):
        if await self.js("location.href.split('#')[0]") == url.split("#")[0]:
            await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)

    async def js(self, text):
        """The value of an expression; a promise is waited for."""
        result = await self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (text, result["exceptionDetails"])
        return result["result"].get("value")

    async def until(self, text, what=""):
        """Wait for an expression to be true; returns its value."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                while True:
                    with suppress(AssertionError):
                        if value := await self.js(text):
                            return value
                    await asyncio.sleep(0.05)
        seen = await self.js("document.body.innerText.slice(0, 1500)")
        raise AssertionError(f"never {what or text}; errors {self.errors}; the page says:\n{seen}")

    async def settled(self):
        """Wait for two frames and a little."""
        await asyncio.sleep(0.35)
        await self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    async def key(self, key, code=None, text=""):
        params = {"key": key, "code": code or key, **({"text": text} if text else {})}
        virtual = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}.get(key, 0)
        await self.call("Input.dispatchKeyEvent", type="keyDown", windowsVirtualKeyCode=virtual, **params)
        await self.call("Input.dispatchKeyEvent", type="keyUp", windowsVirtualKeyCode=virtual, **params)

    async def mouse(self, kind, x, y, **more):
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def click(self, x, y):
        await self.mouse("mouseMoved", x, y)
        await self.mouse("mousePressed", x, y, button="left", clickCount=1)
        await self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    async def picture(self, path):
        data = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(Path(path).write_bytes, base64.b64decode(data["data"]))


@asynccontextmanager
async def tab():
    """A tab of a browser of its own, with nothing stored."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = (
            *("--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu"),
            *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
            *(
                "--disable-dev-shm-usage",
                "--ignore-certificate-errors",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
                f"--user-data-dir={folder}",
            ),
        )
        browser = await asyncio.create_subprocess_exec(
            found(), *options, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            port_file = Path(folder) / "DevToolsActivePort"
            async with asyncio.timeout(SECONDS):
                while not (port_file.exists() and port_file.read_text().strip()):
                    await asyncio.sleep(0.05)
            port = port_file.read_text().split()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = await answer.json()
                address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    made = Tab(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await made.call(f"{domain}.enable")
                    await made.look()
                    yield made
                    made._reader.cancel()
        finally:
            browser.terminate()
            await browser.wait()
