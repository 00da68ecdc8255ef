"""The page in a headless Chromium, where there is one: no error on its console, and a narrow screen has no overflow."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.check.test_check import HOSTILE, ROWS, checked, write_image
from tests.report.test_browser import BROWSER

# What a person would measure by hand. The page's own policy would refuse a script in it, so it stands in a frame.
MEASURE = """<!doctype html><iframe id=page width={width} height=2000></iframe><pre id=found></pre><script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const page = frame.contentDocument, ring = page.querySelector("svg .kp-1 circle"), found = {{}};
  found.overflows = page.documentElement.scrollWidth > page.documentElement.clientWidth;
  found.alts = [...page.querySelectorAll("svg.frame")].every((one) => one.getAttribute("aria-label"));
  const box = page.querySelector("input[data-keypoint='1']");
  found.shown = frame.contentWindow.getComputedStyle(ring.parentNode).display;
  page.querySelector(".switches").open = true;
  box.focus();
  found.focused = page.activeElement === box;
  box.click();
  found.hidden = frame.contentWindow.getComputedStyle(ring.parentNode).display;
  found.back = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  document.getElementById("found").textContent = JSON.stringify(found);
}};
frame.src = {page!r};
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH")
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_keypoint_can_be_switched_off_and_nothing_fails(theme: str, width: int, tmp_path: Path) -> None:
    for name in ("<b>1", "2", "3", "4"):
        write_image(tmp_path / "project/labeled-data/v" / f"{name}.png")
    (tmp_path / "project/CollectedData.csv").write_text(ROWS)
    assert HOSTILE in checked(tmp_path / "project", folder=tmp_path).text
    (tmp_path / "measure.html").write_text(MEASURE.format(width=width, page="check.html"))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,2200", "--dump-dom"]
    command += ["--virtual-time-budget=5000", "--enable-logging=stderr", "--allow-file-access-from-files"]
    command += ["--blink-settings=preferredColorScheme=0"] * (theme == "dark")
    command += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "measure.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout)
    back = "rgb(20, 23, 26)" if theme == "dark" else "rgb(255, 255, 255)"
    assert [json.loads(one) for one in found] == [
        {"overflows": False, "alts": True, "shown": "inline", "focused": True, "hidden": "none", "back": back}
    ]
