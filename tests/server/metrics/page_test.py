#!/usr/bin/env python3
"""The live page in a real browser, headless Chromium, over a server under load.

Its numbers agree with /metrics, nothing appears in the console, no other host is asked, no script but its own
runs, texts of the server stay text, nothing needs scrolling to the side at 320 pixels, colours have contrast
in light and in the dark, and what a screen reader needs is there. --screenshots=DIR keeps pictures.
Exits with 77, which ctest shows as skipped, without chromium (Debian's package of that name).
"""

import argparse
import base64
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/deploy"))
from process import Normd  # noqa: E402

SKIPPED = 77
CONFIG_WITH_HTML = 'instance_norm { channels: "<img src=x onerror=alert(1)><script>alert(2)</script>" }'
# What an element's text lies on, and whether the two differ as much as WCAG 2 wants (4.5).
LOW_CONTRAST = """
(() => {
  const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = colour => numbers(colour).slice(0, 3).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (numbers(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const low = new Set();
  for (const node of document.querySelectorAll('body *')) {
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    if (!node.getClientRects().length || node.tagName === 'SCRIPT') continue;
    const style = getComputedStyle(node);
    const pair = [light(node instanceof SVGElement ? style.fill : style.color), light(ground(node))].sort();
    if ((pair[1] + 0.05) / (pair[0] + 0.05) < 4.5) low.add(`${node.tagName} ${node.className} ${node.textContent}`);
  }
  return [...low];
})()"""
UNNAMED = """
[...document.querySelectorAll('table')].filter(t => !t.caption || !t.caption.textContent).map(() => 'a table')
  .concat([...document.querySelectorAll('th')].filter(t => !t.scope).map(t => `th ${t.textContent}`))
  .concat([...document.querySelectorAll('svg')].filter(s => !s.getAttribute('aria-label') ||
      s.getAttribute('role') !== 'img').map(() => 'a picture'))
  .concat([...document.querySelectorAll('[tabindex]')].filter(r => !r.getAttribute('aria-label')).map(() => 'a region'))
  .concat(document.querySelectorAll('h1').length === 1 ? [] : ['h1'])
  .concat(document.querySelector('#state').getAttribute('aria-live') === 'polite' ? [] : ['state'])
  .concat(document.documentElement.lang ? [] : ['language'])"""


def check(condition, text):
    if not condition:
        sys.exit(f"page_test: {text}")


class Browser:
    """Chromium, spoken to through pipes in its DevTools protocol."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        # Far from the numbers 3 and 4, which the browser reads from and writes to.
        to_read, self.to_browser = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in os.pipe())
        self.from_browser, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in os.pipe())

        def ends():
            os.dup2(to_read, 3)
            os.dup2(to_write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking",
             "--force-prefers-reduced-motion", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=ends, pass_fds=(3, 4))
        os.close(to_read)
        os.close(to_write)
        self.received = b""
        self.number = 0
        self.events = []
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                check("error" not in answer, f"{method}: {answer.get('error')}")
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        while b"\0" not in self.received:
            part = os.read(self.from_browser, 1 << 20)
            check(part, "the browser ended")
            self.received += part
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        check("exceptionDetails" not in result, f"{expression}: {result.get('exceptionDetails')}")
        return result["result"].get("value")

    def wait_for(self, expression, seconds=60):
        end = time.monotonic() + seconds
        # An exception: the page is not there yet.
        while not self.evaluate(f"(() => {{ try {{ return {expression}; }} catch (error) {{ return false; }} }})()"):
            check(time.monotonic() < end, f"not within {seconds} s: {expression}\n" +
                  str(self.evaluate("document.body.innerText")))
            time.sleep(0.2)

    def size(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 500)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self):
        """What the console and the log have, and the addresses that were asked."""
        found, addresses = [], set()
        self.evaluate("0")
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(str(parameters["entry"]["text"]))
            elif event["method"] == "Network.requestWillBeSent":
                addresses.add(parameters["request"]["url"])
        return found, addresses

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        with contextlib.suppress(OSError):
            self.folder.cleanup()


class Server(Normd):
    def __init__(self, programs, models, *flags):
        super().__init__(programs / "normd", models, *flags)

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=10) as answer:
            return answer.read().decode()

    def samples(self, name):
        """{labels as a dictionary's items: value} of the series of that name."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if match := re.match(rf"{name}(?:\{{(.*)\}})? (\S+)$", line):
                labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1) or "")
                found[tuple(sorted(labels))] = float(match.group(2))
        return found


def load(programs, server, *flags, succeeds=True):
    subprocess.run([programs / "normload", f"--server={server.address}", "--concurrency=4", "--duration=1500ms",
                    "--warmup=0s", "--max_error_share=1", *flags], check=succeeds, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=60)


def by_model_and_method(server):
    """{(model, method): (requests, failed)}, as /metrics counts them, of the methods that compute."""
    found = {}
    for labels, value in server.samples("normd_requests_total").items():
        labels = dict(labels)
        if labels["method"] in ("Normalize", "NormalizeStream", "ModelInfer", "ModelStreamInfer"):
            key = labels["model"], labels["method"]
            requests, failed = found.get(key, (0, 0))
            found[key] = requests + value, failed + (value if labels["code"] != "OK" else 0)
    return found


def quantile(server, model, method, share):
    """As Prometheus' histogram_quantile."""
    buckets = sorted((float(dict(labels)["le"]), value) for labels, value in
                     server.samples("normd_request_duration_seconds_bucket").items()
                     if (dict(labels)["model"], dict(labels)["method"]) == (model, method))
    low, below, rank = 0.0, 0.0, share * buckets[-1][1]
    for bound, count in buckets:
        if count >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return None


def check_numbers(browser, server):
    """After a load that ended, with all of it in the last minute."""
    wanted = by_model_and_method(server)
    total = int(sum(requests for requests, _ in wanted.values()))
    browser.wait_for(f"data.minute.requests >= {total}")
    minute = browser.evaluate("data.minute")
    found = {(row["model"], row["method"]): (row["requests"], row["failed"]) for row in minute["calls"]}
    check(found == wanted, f"calls: the page has {found}, /metrics {wanted}")
    rows = {(row["model"], row["method"]): row for row in minute["calls"]}
    for (model, method), row in rows.items():
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value = quantile(server, model, method, share)
            check(abs(row[name] - value) <= 1e-6 * value, f"{model} {method} {name}: {row[name]}, wanted {value}")
    shown = browser.evaluate(
        "[...document.querySelectorAll('tbody')][0].innerText.replace(/\\u00a0/g, ' ')")
    for (model, method), row in rows.items():
        digits = browser.evaluate(f"text(rate({row['requests']} / {minute['seconds']}))")
        check((model or "(no loaded model)") in shown and method in shown and digits in shown,
              f"{model} {method} {digits} in: {shown}")
    check(any(failed for _, failed in wanted.values()) and len(wanted) >= 4, f"the load: {wanted}")
    gauges = browser.evaluate("Object.fromEntries(Object.entries(data.metrics).map("
                              "([name, list]) => [name, list.reduce((sum, one) => sum + one.value, 0)]))")
    for name in ("normd_ready", "normd_connections_limit", "normd_inflight_limit_bytes", "normd_lanes",
                 "normd_queue_limit_requests", "normd_connections_accepted_total", "process_max_fds"):
        value = sum(server.samples(name).values())
        check(gauges[name] == value, f"{name}: the page has {gauges[name]}, /metrics {value}")


def check_looks(browser, screenshots):
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        for width in (320, 768, 1280):
            browser.size(width)
            browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            scrolls = browser.evaluate("document.documentElement.scrollWidth")
            check(scrolls <= width, f"{width} pixels: the page is {scrolls} wide")
            low = browser.evaluate(LOW_CONTRAST)
            check(not low, f"{scheme}, {width} pixels: too little contrast: {low}")
            if screenshots:
                browser.screenshot(screenshots / f"{scheme}_{width}.png")
    unnamed = browser.evaluate(UNNAMED)
    check(not unnamed, f"without a name for a screen reader: {unnamed}")
    browser.size(1280)
    browser.scheme("light")


def check_under_load(programs, chromium, screenshots):
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder) / "models"
        shutil.copytree(SOURCE / "deploy/models", models)
        broken = models / "broken"
        (broken / "1").mkdir(parents=True)
        (broken / "config.textproto").write_text(CONFIG_WITH_HTML)
        with Server(programs, models, "--max_queue_requests=2", "--max_inline_bytes=0") as server, \
                Browser(chromium) as browser:
            browser.size(1280)
            browser.send("Page.navigate", url=f"http://{server.metrics}/?query=<script>alert(3)</script>")
            browser.wait_for("document.querySelector('#state').textContent === 'Ready'")
            # So that the first reading is over.
            browser.wait_for("data && data.lines.seconds.length > 0")
            mix = "instance_norm_64:1x64x28x28,layer_norm_1024:8x1024"
            load(programs, server, f"--mix={mix},instance_norm_64:4x64x28x28:float32:0.1:stream", "--concurrency=16")
            load(programs, server, f"--mix={mix}", "--protocol=oip")
            load(programs, server, "--model=instance_norm_64", "--shape=1x63x1x1", "--duration=1s", succeeds=False)
            check_numbers(browser, server)
            check("<img src=x" in browser.evaluate("document.body.innerText"), "the broken model's error is shown")
            check(browser.evaluate("document.images.length") == 0, "its HTML is no element")
            check(browser.evaluate("document.querySelectorAll('script').length") == 1, "there is one script")
            check_looks(browser, screenshots)
            found, addresses = browser.complaints()
            check(not found, f"in the console: {found}")
            check(all(one.startswith((f"http://{server.metrics}/", "data:")) for one in addresses), f"asked: {addresses}")
            # Only now, because the refusal is in the console.
            browser.evaluate("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; "
                             "document.body.append(s)")
            check(browser.evaluate("window.ran") is None, "an inline script that is not the page's runs")
            os.kill(server.pid, signal.SIGTERM)
            browser.wait_for("/^(No answer|Not ready: the server is stopping)/.test("
                             "document.querySelector('#state').textContent)")


def check_not_ready(programs, chromium):
    with tempfile.TemporaryDirectory() as folder, Server(programs, folder) as server, Browser(chromium) as browser:
        browser.send("Page.navigate", url=f"http://{server.metrics}/")
        browser.wait_for("document.querySelector('#state').textContent === 'Not ready: no model is loaded'")
        check(not browser.complaints()[0], f"in the console: {browser.complaints()[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("skipped: no chromium (Debian's package of that name)")
        return SKIPPED
    check_under_load(options.bin, chromium, options.screenshots)
    check_not_ready(options.bin, chromium)
    return 0


if __name__ == "__main__":
    sys.exit(main())
