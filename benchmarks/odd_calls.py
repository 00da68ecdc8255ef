"""Does any odd call of a verb end with a traceback?

    python benchmarks/odd_calls.py --calls 1000 --seed 0 --out benchmarks/odd_calls.jsonl
    python benchmarks/odd_calls.py --out benchmarks/odd_calls.jsonl

Draws calls: a verb, then files, flags of its --help and options of the config with values that do not fit, or that fit
by chance. The files are a small project, empty and random files, folders, links in a circle and names that no file
has. Each call is a process with a limit of memory, and is stopped after --limit seconds. Appends one JSON line for each
verb, and one for each call that ends with a traceback, a signal or a code that is not documented; with such a call, it
ends with 1. Without --calls, prints the table.
"""

import argparse
import collections
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from json_lines import append_line, read_lines

from jaxpose import __main__ as console
from jaxpose import config as c
from jaxpose.config.option import flat_options

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
CODES = {0, 1, 2, 3, 4, 75, 85, 130}
TEXTS = (
    "", "0", "-1", "1", "3", "1e400", "nan", "-inf", "1e-320", "99999999999999999999", "0x10", "1_000", "true", "None",
    "auto", "[]", "[1, 2", "{}", "'", '"', "a,b,,c", "1x2", "0x0", "-5x7", "a=b", "=", "--", "-", "..", "/", "~", "*",
    "\u202eabc", "\x1b[31mred", "a\nb", "\u00e9" * 300, "x" * 5000, "C:\\x\\y", "file:///etc/passwd", "s3://nothing/at",
    "con", "$(id)", "%s%n", "lr", "resnet18", "cpu", "gpu:9", "charuco:8x11:24:18.75", "at-most:2", "1:2:3",
)  # fmt: skip
# A call of each verb that its arguments allow; half of the calls are one of these with some words changed.
WHOLE = """
init project --out new.py
check project --out new.html
train project train.steps=2 --dry_run=data
pretrain project train.steps=2 --dry_run
evaluate --run trained
evaluate --run trained --labels CollectedData.csv
predict --run trained --out new project/videos
predict --run trained --labeled --out new cut.mp4
track table.csv --animals 2 --out new.csv
calibrate project/videos --board charuco:8x11:24:18.75 --out new.toml
triangulate --calibration text.toml top=table.csv side=table.csv --out new.csv
draw project/videos/session00.mp4 table.csv --out new.mp4 --trail 3 --confidence 0.05
crop --run trained --out new --ratio 0.2
report --run trained --out new.html
compare trained trained/.. --test_only
suggest --run trained --frames 3 --out new
labels merge project/CollectedData.csv --project project
watch trained --every_s 1
doctor --out new
convert predictions table.csv --to deeplabcut --out new.h5
convert labels project --to coco --out new.json
convert lightning-pose folder --out new
convert deeplabcut noise.safetensors --out new
convert cameras text.toml --to anipose --out new.toml
export --run trained --out new.onnx --frame_size 64x64
label project --no-browser --port 8765
"""
# These would serve, wait for others or start processes of their own.
LEFT_OUT = {"launch"}


def main() -> int:
    """Makes the calls, or prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--calls", type=int, help="without it, the table is printed")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--limit", type=float, default=20.0, help="seconds of a call")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    given = arguments.parse_args()
    if given.calls is None:
        show(read_lines(given.out))
        return 0
    draw = random.Random(given.seed)
    verbs = [verb for verb in console.VERBS if verb not in LEFT_OUT]
    are_good = True
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as work:
        files = make_files(Path(work) / "given")
        flags = {verb: flags_of(verb) for verb in verbs}
        for number in range(given.calls):
            verb = verbs[number % len(verbs)]
            words = [verb, *draw_words(draw, verb, flags[verb], files)]
            if draw.random() < 0.5:
                verb, *rest = draw.choice(WHOLE.strip().splitlines()).split()
                words = [verb, *change(draw, rest, flags[verb], files)]
            folder = Path(work) / "here"
            shutil.copytree(Path(work) / "given", folder, symlinks=True)
            os.mkfifo(folder / "pipe")
            end, said = call(words, folder, given.limit)
            shutil.rmtree(folder, ignore_errors=True)
            found[verb][end] += 1
            if end not in (*map(str, CODES), "stopped"):
                are_good = False
                append_line(given.out, {"call": [shorten(word) for word in words], "end": end, "said": said[-600:]})
    for verb, ends in found.items():
        append_line(given.out, {"verb": verb, "seed": given.seed, "ends": dict(ends)})
    show(read_lines(given.out))
    return int(not are_good)


def shorten(word: str) -> str:
    """Returns a word of at most 80 characters."""
    return word if len(word) <= 80 else f"{word[:70]}... ({len(word)})"


def flags_of(verb: str) -> list[str]:
    """Returns the flags that --help of a verb lists."""
    page = subprocess.run([sys.executable, "-m", "jaxpose", verb, "--help"], capture_output=True, text=True, check=True)
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z_0-9]*", page.stdout)))


def make_files(folder: Path) -> list[str]:
    """Makes the files of the calls; returns their names, relative to the folder, and names of none."""
    from jaxpose.data.synthetic import make_project

    folder.mkdir(parents=True)
    project = make_project(folder / "project", videos=2, labelled_frames=4, video_frames=12)
    video = next((project / "videos").iterdir())
    options = ["out=trained", "train.steps=4", "data.input_width_px=64", "data.input_height_px=64", "model.width=8"]
    subprocess.run(
        [sys.executable, "-m", "jaxpose", "train", "project", *options, "log.tensorboard=false", "mesh.devices=1"],
        cwd=folder, check=True, capture_output=True, env=os.environ | ENVIRONMENT,
    )  # fmt: skip
    shutil.copy(folder / "trained" / "video_preds" / "session00.csv", folder / "table.csv")
    (folder / "cut.mp4").write_bytes(video.read_bytes()[: video.stat().st_size // 3])
    for suffix in ("csv", "h5", "slp", "json", "toml", "yaml", "py", "mp4", "png", "onnx", "safetensors", "npz", "mat"):
        (folder / f"empty.{suffix}").touch()
        (folder / f"noise.{suffix}").write_bytes(random.Random(suffix).randbytes(3000))
        (folder / f"text.{suffix}").write_text("scorer,a\nbodyparts,\x1b[1m\n=cmd(),\u202e,1e999\n" * 3)
    (folder / "folder").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text("{}")
    (folder / "circle").symlink_to("circle")
    (folder / "away").symlink_to("/etc/passwd")
    names = sorted(path.name for path in folder.iterdir())
    of_project = ["CollectedData.csv", "videos", f"videos/{video.name}"]
    return [*names, "pipe", "none", "../none.csv", *(f"project/{name}" for name in of_project)]


def draw_words(draw: random.Random, verb: str, flags: list[str], files: list[str]) -> Iterator[str]:
    """Yields the arguments of a call, after its verb."""
    options = [*flat_options(c.Config())]
    for _ in range(draw.choice((0, 1, 1, 2))):
        yield draw.choice(files) if draw.random() < 0.8 else draw.choice(TEXTS)
    for _ in range(draw.choice((0, 1, 2, 3, 5))):
        value = draw.choice((draw.choice(files), draw.choice(TEXTS), draw.choice(TEXTS)))
        if flags and draw.random() < 0.6:
            yield draw.choice(flags)
            if draw.random() < 0.85:
                yield value
        elif verb in ("train", "pretrain", "check", "init") or draw.random() < 0.2:
            yield f"{draw.choice(options)}={value}"
        else:
            yield value


def change(draw: random.Random, given: Sequence[str], flags: list[str], files: list[str]) -> list[str]:
    """Returns the arguments of a call with one to three words replaced, left out, repeated or added."""
    words = [*given]
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(words))
        odd = draw.choice((draw.choice(files), draw.choice(TEXTS)))
        kind = draw.choice(("replace", "replace", "leave out", "repeat", "add", "flag"))
        name, sign, _ = words[at].partition("=")
        new = {"replace": [f"{name}={odd}" if sign else odd], "leave out": [], "repeat": [words[at]] * 2}
        new |= {"add": [words[at], odd], "flag": [words[at], draw.choice(flags or ["--help"]), odd]}
        words[at : at + 1] = new[kind]
        if not words:
            break
    return words


def call(words: list[str], folder: Path, limit_s: float) -> tuple[str, str]:
    """Runs a call in a folder; returns how it ended, and what it wrote to stderr."""
    errors = folder.with_name("stderr")
    errors.touch()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_TRUNC), 2)
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
        os.environ |= ENVIRONMENT | {"JAXPOSE_CACHE": str(folder.with_name("cache"))}
        sys.argv = ["jaxpose", *words]
        code: Any = 1
        try:
            console.main()
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        # The child is a copy of this process, and must not clean up its folders.
        os._exit(code if isinstance(code, int) else 1)
    until, done, status = time.monotonic() + limit_s, 0, 0
    # waitpid has no time limit.
    while not done and time.monotonic() < until:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    said = errors.read_text(errors="replace")
    end = str(os.waitstatus_to_exitcode(status)) if done else "stopped"
    return ("traceback" if "Traceback (most recent call last)" in said else end), said


def show(lines: list[dict[str, Any]]) -> None:
    """Prints a Markdown table: how the calls of each verb ended."""
    verbs = [line for line in lines if "verb" in line]
    ends = sorted({end for line in verbs for end in line["ends"]})
    print(f"| verb | calls | {' | '.join(ends)} |\n|{'---|' * (2 + len(ends))}")
    for verb in dict.fromkeys(line["verb"] for line in verbs):
        total: collections.Counter[str] = collections.Counter()
        for line in verbs:
            if line["verb"] == verb:
                total.update(line["ends"])
        print(f"| {verb} | {total.total()} | {' | '.join(str(total[end] or '') for end in ends)} |")


if __name__ == "__main__":
    sys.exit(main())
