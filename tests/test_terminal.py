"""What a terminal shows and what a pipe gets: on a real terminal (pty), read by a terminal emulator."""

import concurrent.futures
import importlib.machinery
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from jaxpose import predict, terminal
from jaxpose.draw import main as draw_main
from jaxpose.evaluate import main as evaluate_main
from jaxpose.report.__main__ import main as report_main
from jaxpose.terminal import table_lines, wrapped
from tests.small_run import command, environment, make_config
from tests.terminal import Shown, show

ESCAPE = "\x1b"
# A run with names that a careless program would read as markup, emoji or numbers; a warning and a bar on the way.
RUN = """
import logging
import sys
import time
from pathlib import Path
from jaxpose.config import LogConfig
from jaxpose import progress
from jaxpose.progress import phase
from jaxpose.run.log import RunLog
from jaxpose.terminal import quiet

progress.SHOWN_ON_TERMINAL_S = progress.TICK_S = 0.05
folder = Path(sys.argv[1])
with quiet("--quiet" in sys.argv), RunLog(folder, LogConfig(tensorboard=False), 20, 0) as log:
    log.block("jaxpose", {"run folder": str(folder), "keypoints": "[bold]paw[/bold], :mouse:, [/]" + ", tail" * 30})
    for step in range(1, 21):
        log.step(step, {"loss": 1.0}, images=4, wait_s=0.0)
        if step == 5:
            logging.getLogger("jaxpose.run").warning("[red]session[0][/red] :cat: has gaps; " + "look at it " * 12)
            log.text("step 5  " + "val_loss 0.5  " * 9)
        time.sleep(0.03)
    with phase("evaluating [bold]", 3):
        time.sleep(0.3)
    lines = [f"everything is in {folder}", f"report: {folder}/report.html; open it in a browser"]
    log.end("training is done", {"run folder": str(folder), "open": f"{folder}/report.html"}, lines)
"""
NAMES = ("[bold]paw[/bold], :mouse:, [/]", "[red]session[0][/red] :cat: has gaps;")


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def plain(shown: Shown) -> str:
    """What was written, without escape codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.text).replace("\r\n", "\n").replace("\r", "\n")


Runs = dict[str, tuple[Path, Shown | subprocess.CompletedProcess[str]]]
# RUN on terminals, with their columns and variables, and in pipes, with their variables; each more arguments.
ON_TERMINALS: dict[str, tuple[int, dict[str, str], tuple[str, ...]]] = {
    "40": (40, {}, ()), "80": (80, {}, ()), "300": (300, {}, ()), "no colour": (80, {"NO_COLOR": "1"}, ()),
    "dumb": (80, {"TERM": "dumb"}, ()), "quiet": (80, {}, ("--quiet",)),
}  # fmt: skip
IN_PIPES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "pipe": ({}, ()), "forced": ({"FORCE_COLOR": "1"}, ()), "narrow": ({"TTY_COMPATIBLE": "1", "COLUMNS": "40"}, ()),
    "quiet pipe": ({}, ("--quiet",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run folder of every RUN, and what it showed; they run at the same time, because they mostly sleep."""
    folder = tmp_path_factory.mktemp("runs")

    def on_terminal(name: str) -> Shown:
        columns, variables, more = ON_TERMINALS[name]
        return show([sys.executable, "-c", RUN, str(folder / name), *more], columns, variables)

    def in_pipe(name: str) -> subprocess.CompletedProcess[str]:
        variables, more = IN_PIPES[name]
        program = [sys.executable, "-c", RUN, str(folder / name), *more]
        return subprocess.run(program, env=os.environ | variables, capture_output=True, text=True, check=True)

    with concurrent.futures.ThreadPoolExecutor(len(ON_TERMINALS) + len(IN_PIPES)) as pool:
        for name in (*ON_TERMINALS, *IN_PIPES):
            (folder / name).mkdir()
        started = {name: pool.submit(on_terminal, name) for name in ON_TERMINALS}
        started |= {name: pool.submit(in_pipe, name) for name in IN_PIPES}
        return {name: (folder / name, one.result()) for name, one in started.items()}


def on_terminal(runs: Runs, name: str) -> tuple[Path, Shown]:
    folder, shown = runs[name]
    assert isinstance(shown, Shown)
    return folder, shown


def in_pipe(runs: Runs, name: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder, done = runs[name]
    assert isinstance(done, subprocess.CompletedProcess)
    return folder, done


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_a_run_on_a_terminal(columns: int, runs: Runs) -> None:
    folder, shown = on_terminal(runs, str(columns))
    assert shown.code == 0 and not shown.is_cursor_hidden, shown.text
    text = words(shown.lines)
    for name in (*NAMES, "jaxpose run folder", "training is done", "step 5 val_loss"):
        assert name in text, text
    # A path stays one word, which the terminal itself breaks.
    assert f"\n  open        {folder}/report.html\n" in plain(shown)
    written = [line for line in plain(shown).splitlines() if str(folder) not in line]
    assert max(map(len, written)) <= columns
    # The bar came, said how far it is and how long it takes, and went; so did that of the phase.
    assert any(re.match(r"training ━.* \d+/20 .*ETA", bar) for bar in shown.bars), shown.bars
    assert any(re.search(r" 0/3 .*ETA", bar) and bar.startswith("evaluatin") for bar in shown.bars), shown.bars
    assert columns == 40 or any(bar.startswith("evaluating [bold]") for bar in shown.bars)
    assert not [line for line in shown.lines if "━" in line or "evaluating" in line]
    # The log has the same lines as that of a run in a pipe.
    log = (folder / "train.log").read_text()
    assert f" everything is in {folder}\n" in log and ESCAPE not in log and "training is done" not in log
    assert ", tail" * 30 in log and "\n  run folder  " in log


@pytest.mark.parametrize("name", ["pipe", "forced", "narrow"])
def test_a_pipe_gets_whole_lines_without_escape_codes(name: str, runs: Runs) -> None:
    folder, done = in_pipe(runs, name)
    assert ESCAPE not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == f"  keypoints   {NAMES[0]}" + ", tail" * 30
    assert lines[-2:] == [f"everything is in {folder}", f"report: {folder}/report.html; open it in a browser"]
    assert any(re.match(r"step 10/20  50%  loss 1  .* ETA \d\d:\d\d$", line) for line in lines)
    assert done.stderr.startswith(f"warning: {NAMES[1]} look at it ") and done.stderr.count("\n") == 1


def test_colours_are_off_where_they_are_not_wanted(runs: Runs) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert coloured.search(on_terminal(runs, "80")[1].text)
    _, shown = on_terminal(runs, "no colour")
    assert not coloured.search(shown.text) and shown.bars
    _, shown = on_terminal(runs, "dumb")
    assert ESCAPE not in shown.text and not shown.bars and "step 10/20  50%" in shown.text


def test_quiet_leaves_warnings_and_the_result(runs: Runs) -> None:
    folder, done = in_pipe(runs, "quiet pipe")
    result = [f"everything is in {folder}", f"report: {folder}/report.html; open it in a browser"]
    assert done.stdout.splitlines() == result
    assert done.stderr.startswith(f"warning: {NAMES[1]}") and done.stderr.count("\n") == 1
    log = (folder / "train.log").read_text()
    assert "step 20/20  100%" in log and "report: " in log and "  run folder  " in log
    folder, shown = on_terminal(runs, "quiet")
    result = [f"everything is in {folder}", f"report: {folder}/report.html; open it in a browser"]
    assert not shown.bars and "".join(words(shown.lines).split()).endswith("".join("".join(result).split()))


# A bar of two lines; a signal is told above it.
STOPPED = """
import sys
import time
from jaxpose.progress import Bar
from jaxpose import early_signals
early_signals.install("verb")
from jaxpose.cluster.signals import Interrupt
print("begins", flush=True)
bar = Bar("training", 50, "step")
bar.note = "loss 1"
if sys.argv[1] == "early":
    time.sleep(60)
with Interrupt() as interrupt:
    while interrupt.signal is None:
        time.sleep(0.05)
    time.sleep(0.3)
bar.close()
print("ends", flush=True)
"""


@pytest.mark.parametrize(
    ("moment", "code", "last"),
    [
        ("early", 130, ["verb: stopped by SIGINT; nothing is lost, the same command continues"]),
        ("late", 0, ["SIGINT: saving at the next step, press Ctrl-C again to leave at once", "ends"]),
    ],
)
def test_ctrl_c_leaves_a_clean_terminal(moment: str, code: int, last: list[str]) -> None:
    sent = list[float]()

    def stop(text: str, child: subprocess.Popen) -> None:
        if "loss 1" in text and not sent:
            sent.append(time.monotonic())
            child.send_signal(signal.SIGINT)

    shown = show([sys.executable, "-c", STOPPED, moment], on_text=stop)
    assert shown.code == code and shown.bars and not shown.is_cursor_hidden
    assert shown.lines == ["begins", *last]


@pytest.mark.slow
def test_a_training_on_a_terminal_ends_with_the_one_path_to_open(project: Path, tmp_path: Path) -> None:
    config = make_config(project, tmp_path / "run", train__steps=4, train__val_every_epochs=1.0, log__report=True)
    arguments = command(config, tmp_path)
    shown = show([sys.executable, "-m", "jaxpose.train", *arguments], environment=environment(), seconds=300)
    assert shown.code == 0 and not shown.is_cursor_hidden, shown.text
    assert any(bar.startswith("training") and "/4 steps" in bar for bar in shown.bars), shown.bars
    text = plain(shown)
    assert text.rstrip().endswith(f"\n  open in a browser  {tmp_path}/run/report.html"), text[-2000:]
    assert (tmp_path / "run" / "report.html").is_file()
    lines = [line for line in text.splitlines() if str(tmp_path) not in line and str(project) not in line]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert shown.lines[0].startswith("jaxpose ") and "error in px  frames" in text


@pytest.mark.parametrize("verb", ["evaluate", "predict", "report"])
def test_the_verbs_have_quiet(
    verb: str, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    run = ["--run", str(trained_run), "--quiet"]
    on_one = [*run, "--devices", "1", "--out", str(tmp_path)]
    video = trained_run.parent / "project" / "videos" / "session00.mp4"
    if verb == "evaluate":
        assert evaluate_main(on_one) == 0
    elif verb == "predict":
        assert predict.main([*on_one, str(video)]) == 0
        assert "predictions of 1 input are in" in capsys.readouterr().out
        table = tmp_path / "video_preds" / "session00.csv"
        assert draw_main([str(video), str(table), "--quiet"]) == 0
    else:
        assert report_main([*run, "--out", str(tmp_path / "page.html")]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "") and str(tmp_path) in out


def test_a_notebook_draws_bars_if_it_has_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython on a terminal is no notebook; here, no stream is a terminal."""
    widgets = types.ModuleType("ipywidgets")
    widgets.__spec__ = importlib.machinery.ModuleSpec("ipywidgets", None)
    for config, installed, draws in (
        (None, widgets, False),
        ({"TerminalIPythonApp": {}}, widgets, False),
        ({"IPKernelApp": {}}, widgets, True),
        ({"IPKernelApp": {}}, None, False),
    ):
        shell = None if config is None else types.SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda shell=shell: shell))
        monkeypatch.setitem(sys.modules, "ipywidgets", installed)
        assert terminal.draws_bars() is draws
        with terminal.quiet(True):
            assert not terminal.draws_bars()


def test_lines_are_wrapped_at_words_below_their_second_column() -> None:
    assert wrapped("one two three", 80) == "one two three"
    assert wrapped("name  one two three four", 14) == "name  one two\n      three\n      four"
    assert wrapped("  note one two three", 12) == "  note one\n    two\n    three"
    path = "/a" * 50
    assert wrapped(f"  open  {path} now", 20).split() == ["open", path, "now"]
    command = "the next step: jaxpose labels merge suggested --project 'my mice'"
    assert wrapped(command, 20) == command


def test_columns_that_do_not_fit_follow_in_further_tables() -> None:
    rows = [["", "A", "B", "C"], ["nose", "1", "22", "333"], ["tail", "4", "55", "666"]]
    assert table_lines(rows) == ["      A  B   C", "nose  1  22  333", "tail  4  55  666"]
    narrow = ["      A  B", "nose  1  22", "tail  4  55", "", "      C", "nose  333", "tail  666"]
    assert table_lines(rows, 12) == narrow
