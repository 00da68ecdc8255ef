"""The console: information on stdout, warnings on stderr with the verb's name, both above the progress bars."""

import io
import logging
import sys

import pytest

from jaxpose.terminal import HeldWarnings, console

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


def test_a_reader_that_is_gone_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError), console("jaxpose.predict"):
        logger.info("a.mp4 is done")
