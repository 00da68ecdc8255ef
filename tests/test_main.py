"""The console command, and what the package offers to Python."""

import importlib
import inspect
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxpose
from jaxpose import __main__ as command
from jaxpose.errors import UserError
from tests.test_entry import HEAVY, verb_without
from tests.test_rooms import PACKAGE

# Files and rooms of the package that `python -m jaxpose.<verb>` runs.
OF_THE_PACKAGE = {file.stem for file in PACKAGE.glob("[a-z]*.py") if '__name__ == "__main__"' in file.read_text()}
OF_THE_PACKAGE |= {file.parent.name for file in PACKAGE.glob("*/__main__.py")}


def called(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["/anywhere/bin/jaxpose", *arguments])
    return command.run(), *capsys.readouterr()


def test_help_has_a_line_for_every_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    pages = [called(*argv, monkeypatch=monkeypatch, capsys=capsys) for argv in ([], ["--help"], ["-h"])]
    assert pages[0] == pages[1] == pages[2]
    code, out, err = pages[0]
    assert (code, err) == (0, "") and len(out.splitlines()) <= 32
    assert {line.split()[0] for line in out.splitlines() if line.startswith("  ")} >= OF_THE_PACKAGE
    assert set(command.VERBS) == OF_THE_PACKAGE


def test_every_verb_ends_the_process_with_a_code_that_no_later_signal_changes() -> None:
    files = [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.glob("*/__main__.py"), PACKAGE / "__main__.py"]
    for file in files:
        text = file.read_text()
        if '__name__ == "__main__"' in text:
            assert re.search(r"exit_with\(|^    start\(", text, re.MULTILINE) and "sys.exit(" not in text, file


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    found = called("--version", monkeypatch=monkeypatch, capsys=capsys)
    assert found == (0, f"jaxpose {jaxpose.__version__}\n", "")


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("trian", "there is no verb trian; did you mean train?"),
        ("zzz", "there is no verb zzz; the verbs are init, check, train, pretrain, evaluate"),
        ("--versoin", "there is no flag --versoin; did you mean --version?"),
        ("", "there is no verb ''; the verbs are init, check, train"),
    ],
)
def test_an_unknown_verb_gets_the_nearest_and_exit_code_2(
    verb: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    code, out, err = called(verb, monkeypatch=monkeypatch, capsys=capsys)
    assert (code, out) == (2, "") and err.startswith(f"jaxpose: {says}") and err.count("\n") == 1


@pytest.mark.parametrize("verb", sorted(OF_THE_PACKAGE))
def test_the_help_of_a_verb_needs_no_package_that_takes_long(verb: str) -> None:
    code, out, err = verb_without(HEAVY, "jaxpose", verb, "--help")
    assert (code, err) == (0, "") and out.startswith(f"usage: jaxpose {verb} "), (out, err)
    assert len(out.splitlines()) <= 40 and f"python -m jaxpose.{verb}" not in out


def test_the_arguments_reach_the_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    code, _, err = called("doctor", "--outt", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, err) == (2, "jaxpose.doctor: there is no flag --outt; did you mean --out?\n")
    code, _, err = verb_without(HEAVY, "jaxpose", "train", "my-project", "train.stpes=3")
    assert (code, err) == (
        2,
        "jaxpose.train: there is no option train.stpes; did you mean train.steps?\n",
    )


# The command, whose import of one module takes a minute.
SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {slow!r}:
            print("importing", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:  # as numpy does it
                raise ImportError("failed to import") from None

sys.meta_path.insert(0, Slow())
sys.argv = ["jaxpose", {verb!r}, "--run", "x"]
from jaxpose.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("verb", "slow", "code", "says"),
    [
        (
            "train",
            "jaxpose.entry",
            130,
            "jaxpose.train: stopped by SIGINT; nothing is lost, the same command continues",
        ),
        ("predict", "jaxpose.entry", 130, "jaxpose.predict: stopped by SIGINT; nothing is lost"),
        # A package that a verb imports before it reads its arguments, and one that it imports later.
        *(
            pytest.param(verb, "argparse", 130, "jaxpose", marks=() if verb in ("init", "labels") else pytest.mark.slow)
            for verb in command.VERBS
            if verb not in ("train", "predict")
        ),
        ("report", "jaxpose.run.identity", 130, "jaxpose"),
        *(
            pytest.param(verb, "jaxpose.run.identity", 130, "jaxpose", marks=pytest.mark.slow)
            for verb in ("crop", "suggest")
        ),
    ],
)
def test_a_signal_during_the_import_of_a_verb_is_one_line(verb: str, slow: str, code: int, says: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT.format(verb=verb, slow=slow)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # A verb may say before what it does.
    assert process.stdout is not None and "importing\n" in iter(process.stdout.readline, "")
    time.sleep(0.1)
    process.send_signal(2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.startswith(says) and err.count("\n") == 1


IMPORTED = "import sys; before = set(sys.modules); import jaxpose; print(sorted(set(sys.modules) - before))"
# In a fresh process, so that this is the first import of each.
FROM_THE_PACKAGE = """
from jaxpose import Config, load, train
import jaxpose, jaxpose.train, sys
assert jaxpose.train is train is sys.modules["jaxpose.train"]
from jaxpose.errors import UserError
for call in (train, jaxpose.train, jaxpose.train.train):
    try:
        call(Config())
    except UserError as error:
        print(str(error)[:12])
try:
    load("nowhere")
except UserError as error:
    print(error)
"""


def test_importing_the_package_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout == "['jaxpose']\n"


def test_what_the_package_offers_is_the_same_whoever_imports_it_first() -> None:
    done = subprocess.run([sys.executable, "-c", FROM_THE_PACKAGE], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["data.project"] * 3 + ["nowhere is not a run folder: it does not exist"], (
        done.stdout, done.stderr,
    )  # fmt: skip
    # Here, other tests have imported the modules first.
    from jaxpose import Config, load, train
    from jaxpose.train import main
    from jaxpose.train import train as function

    module = importlib.import_module("jaxpose.train")
    assert train is jaxpose.train is module and train.main is main and train.train is function
    assert jaxpose.load is load is importlib.import_module("jaxpose.predict").load
    assert jaxpose.Config is Config is importlib.import_module("jaxpose.config").Config
    assert inspect.signature(train) == inspect.signature(function)
    with pytest.raises(UserError, match="data.project"):
        train(Config(), dry_run=True)


def test_a_name_that_the_package_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'jaxpose' has no attribute 'trian'"):
        jaxpose.trian  # noqa: B018
    assert {"Config", "load", "train", "__version__"} <= set(dir(jaxpose))
    assert (Path(jaxpose.__file__).parent / "py.typed").is_file()
