"""The page in a headless Chromium, where there is one: no error on its console, and every figure is drawn."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxpose.report.writing import write_report
from tests.written_runs import write_run, write_video

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH")
@pytest.mark.parametrize(
    ("width_px", "options"),
    [(1280, []), (500, ["--blink-settings=preferredColorScheme=0"])],
    ids=["wide and light", "narrow and dark"],
)
def test_every_figure_is_drawn_without_an_error(width_px: int, options: list[str], tmp_path: Path) -> None:
    rng, names = np.random.default_rng(0), ("<script>alert(1)</script>", "tail")
    sets = {f"labeled-data/v/{i}.png": "test" if i % 2 else "train" for i in range(20)}
    run = write_run(tmp_path / "run", names, sets, rng.gamma(2, 3, (20, 2)), rng.random((20, 2)))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    write_video(run, "v", names, rng.normal(0, 1, (5000, 2, 2)).cumsum(axis=0), rng.random((5000, 2)))
    # A high window, because figures are drawn when they come into view.
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width_px},14000", "--dump-dom"]
    # Virtual time may end before a busy machine has laid out the first frame, and figures wait for that.
    command += ["--run-all-compositor-stages-before-draw"]
    command += ["--virtual-time-budget=20000", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"]
    page = write_report(run).resolve().as_uri()
    done = subprocess.run([*map(str, command), *options, page], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    plots = re.findall(r'<div[^>]*class="plot[^"]*"[^>]*id="([\w-]+)"|<div[^>]*id="(traces)"', done.stdout)
    assert len(plots) >= 7 and done.stdout.count('class="plot-container plotly"') == len(plots)
    assert re.search(r"The smallest and the largest value of every \d+ frames are drawn", done.stdout)
    # A legend lies below Plotly's bar of 27 px; on a narrow page there is no bar, and it lies above the figure.
    tops_px = [float(top) for top in re.findall(r'<g class="legend"[^>]*translate\([^,]*,([^)]*)\)', done.stdout)]
    assert len(tops_px) >= 4 and all((27 <= top) == (width_px > 600) for top in tops_px), tops_px
    assert bool(re.search(r'<(?:a|button)[^>]*class="modebar-btn', done.stdout)) == (width_px > 600)
