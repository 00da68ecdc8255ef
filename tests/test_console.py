"""The console: information on stdout, warnings on stderr with the verb's name, both above the progress bars."""

import io
import logging
import sys
import types

import pytest
import tqdm
import tqdm.auto

from jaxpose import phases
from jaxpose.console import HeldWarnings, console

logger = logging.getLogger("jaxpose.prediction.worker")


def test_information_goes_to_stdout_and_each_line_of_a_warning_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with console("jaxpose.predict"):
        logger.info("a.mp4: 100 % of 20 frames")
        logger.warning("b.mp4 is no video\nc.mp4 is empty")
        logger.error("%d of %d inputs failed", 2, 3)
        logger.debug("nobody sees this")
    assert capsys.readouterr() == (
        "a.mp4: 100 % of 20 frames\n",
        "jaxpose.predict: b.mp4 is no video\njaxpose.predict: c.mp4 is empty\njaxpose.predict: 2 of 3 inputs failed\n",
    )


def test_the_logger_is_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    package = logging.getLogger("jaxpose")
    before = package.handlers[:], package.level, package.propagate
    with pytest.raises(KeyError), console("jaxpose.predict"):
        raise KeyError
    assert (package.handlers, package.level, package.propagate) == before
    logger.info("after")
    assert capsys.readouterr() == ("", "")


def test_warnings_before_the_log_of_a_run_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with console("jaxpose.train", logging.WARNING), HeldWarnings():
        logger.warning("checkpoint 4 is damaged")
        logger.info("nobody sees this")
        assert capsys.readouterr() == ("", "")
    assert capsys.readouterr() == ("", "jaxpose.train: checkpoint 4 is damaged\n")


def test_a_line_wipes_the_progress_bar_and_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with console("jaxpose.predict"), tqdm.tqdm(total=10, mininterval=0, file=terminal) as bar:
        bar.update(5)
        drawn = len(terminal.getvalue())
        logger.info("a.mp4 is done")
    shown = terminal.getvalue()[drawn:]
    wiped, line, again = shown.partition("a.mp4 is done\n")
    assert line and not wiped.strip() and "5/10" in again


def test_a_notebook_gets_the_bars_of_notebooks_and_a_terminal_those_of_terminals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPython on a terminal is none; nor is a kernel's stderr, where bars would not be drawn otherwise."""
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: ("widget", options))
    shells = {"none": None, "terminal": {"TerminalIPythonApp": {}}, "kernel": {"IPKernelApp": {}}}
    for name, config in shells.items():
        shell = None if config is None else types.SimpleNamespace(config=config)
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda shell=shell: shell))
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        assert phases.draws_bars() == (name == "kernel")
        bar = phases.make_bar(total=3)
        assert bar == ("widget", {"total": 3}) if name == "kernel" else type(bar) is tqdm.tqdm


def test_a_reader_that_is_gone_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError), console("jaxpose.predict"):
        logger.info("a.mp4 is done")
