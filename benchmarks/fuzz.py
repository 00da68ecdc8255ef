"""Does any damaged or hostile file end jaxpose with a traceback, a crash, a hang, a full memory or another meaning?

    python benchmarks/fuzz.py --cases 6000 --seed 0 --out benchmarks/fuzz.jsonl
    python benchmarks/fuzz.py --out benchmarks/fuzz.jsonl

Damages a valid file of every format that jaxpose reads (see edits.py), calls a verb that reads it (see fuzzed.py) in a
process with limits of time and memory, and requires the right result, or one line for each mistake that names the
file, exit code 2 or 4. The requests of the page of `jaxpose label` are damaged in the same way. Appends one JSON line
for each reader, and one for each fault; with a fault, it ends with 1. Without --cases, prints the table.

    python benchmarks/fuzz.py --case "COCO JSON:12" --seed 0 --keep FOLDER --out faults.jsonl
    python benchmarks/fuzz.py --cases 500 --given "table SLP=FILE.slp" --out given.jsonl

repeats one case and keeps its folder, or begins with a file that somebody else wrote.
"""

import argparse
import collections
import importlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from edits import edit
from fuzz_requests import PAGE, fuzz_page
from fuzzed import ADDRESSES_BYTES, LIMIT_BYTES, LIMIT_S, READERS, Reader, jaxpose, make_files
from json_lines import append_line, read_lines

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
RIGHT, REFUSED = "right", "refused"
# Exit codes of a case's process that no verb has.
_RAISED, _OTHER_MEANING = 90, 91
_REFUSALS = {2, 4}
# Longer lines are no message for a person.
_LONGEST_LINE = 2000
_NO_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Outcome(NamedTuple):
    """How a case ended: RIGHT, REFUSED or a fault; what it wrote; its CPU time and its largest memory."""

    end: str
    said: str
    cpu_s: float
    memory_bytes: int


def main() -> int:
    """Runs the cases, or prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cases", type=int, help="of all readers together; without it, the table is printed")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--readers", help="only these, with semicolons between them")
    arguments.add_argument("--given", action="append", default=[], metavar="READER=PATH",
                           help="a file, or the folder of a project, to begin with instead of jaxpose's own")  # fmt: skip
    arguments.add_argument("--case", metavar="READER:NUMBER", help="only this one")
    arguments.add_argument("--keep", type=Path, help="folder for the files of faults")
    given = arguments.parse_args()
    if given.cases is None and given.case is None:
        show(read_lines(given.out))
        return 0
    with tempfile.TemporaryDirectory() as work:
        return int(not run(given, Path(work)))


def run(given: argparse.Namespace, work: Path) -> bool:
    """Runs the cases in a folder, and returns whether there was no fault."""
    os.environ |= ENVIRONMENT | {"JAXPOSE_CACHE": str(work / "cache")}
    made = _in_child(lambda: make_files(_new(work / "given")), work / "said", 600, has_limits=False)
    if made[0]:
        raise SystemExit(f"the files could not be made: {made[1]}")
    readers = _readers(given, work / "given")
    names = [PAGE, *readers] if not given.given else list(readers)
    names = given.readers.split(";") if given.readers else names
    cases = [(name, number) for number in range(-(-(given.cases or 0) // len(names))) for name in names]
    if given.case:
        name, _, number = given.case.rpartition(":")
        cases = [(name, int(number))]
    counts = collections.Counter(name for name, _ in cases)
    _import_all(work, {name: reader for name, reader in readers.items() if counts[name]})
    lines = {name: {"reader": name, "seed": given.seed, "cases": 0, RIGHT: 0, REFUSED: 0} for name in names}
    is_good = True
    if counts[PAGE]:
        found = fuzz_page(work / "given" / "csv", given.seed, counts[PAGE])
        lines[PAGE] |= {key: found[key] for key in found if key != "faults"}
        is_good = not found["faults"]
        for fault in found["faults"]:
            append_line(given.out, {"fault": fault, "reader": PAGE, "seed": given.seed})
    for name, number in cases:
        if name != PAGE:
            draw = random.Random(f"{given.seed} {name} {number}")
            found = run_case(readers[name], draw, work, given.keep and given.keep / f"{name}-{number}")
            _count(lines[name], found)
            if found.end not in (RIGHT, REFUSED):
                is_good = False
                said = found.said.replace(str(work), "")[-1500:]
                append_line(given.out, {"fault": found.end, "reader": name, "number": number, "seed": given.seed, "said": said})
    for line in lines.values():
        append_line(given.out, line)
    show(read_lines(given.out))
    return is_good


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _readers(given: argparse.Namespace, root: Path) -> dict[str, Reader]:
    """Returns the readers; those of --given have its files in the place of jaxpose's own."""
    if not given.given:
        return READERS
    readers = {}
    for number, words in enumerate(given.given):
        name, _, path = words.partition("=")
        folder, source = root / f"given{number}", Path(path)
        if source.is_dir():
            shutil.copytree(source, folder)
            globs = READERS[name].files
        else:
            shutil.copytree(root / READERS[name].folder, folder)
            shutil.copy(source, folder)
            globs = (source.name,)
        readers[f"{name}={source.name}"] = READERS[name]._replace(folder=folder.name, files=globs)
    return readers


def _import_all(work: Path, readers: dict[str, Reader]) -> None:
    """Imports what the calls import: each case is a copy of this process, and need not import it again.

    The calls themselves run in copies: libraries that start threads or devices cannot be copied afterwards.
    """
    names = work / "modules"
    for name, reader in readers.items():
        for number, call in enumerate(reader.calls):
            folder = work / "here" / reader.folder
            _copy(work / "given", folder)
            files = [file for glob in reader.files for file in sorted(folder.glob(glob))]

            def work_undamaged(call: Any = call, folder: Path = folder, file: Path = files[0]) -> int | None:
                code = _call(call, folder, file)
                names.write_text("\n".join(sys.modules))
                return code

            found = _in_child(work_undamaged, work / "said", 120)
            if os.waitstatus_to_exitcode(found[0]) not in reader.done:
                print(f"{name}, call {number}, of the undamaged file: {found[1][-600:]}", file=sys.stderr)
            for module in names.read_text().splitlines() if names.exists() else ():
                try:
                    importlib.import_module(module)
                except Exception:  # some are parts of a package that is imported in another way
                    continue


def _copy(given: Path, folder: Path) -> None:
    """Makes a folder that has the files of `given` as hard links."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(given / folder.name, folder, copy_function=os.link, symlinks=True)


def run_case(reader: Reader, draw: random.Random, work: Path, keep: Path | None) -> Outcome:
    """Damages a file of a reader and calls the reader."""
    folder = work / "here" / reader.folder
    _copy(work / "given", folder)
    file = draw.choice([file for glob in reader.files for file in sorted(folder.glob(glob))])
    call = draw.choice(reader.calls)
    content, kinds = file.read_bytes(), []
    for _ in range(draw.choice((1, 1, 1, 2))):
        try:
            kind, content = edit(draw, content, file.suffix)
        except Exception:  # the first edit left nothing that the second one can read
            kind = "as before"
        kinds.append(kind)
    file.unlink()
    file.write_bytes(content)

    def work_on() -> int:
        code = _call(call, folder, file)
        if code in reader.done and reader.meaning and (folder.parent / "out.csv").exists():
            return code if reader.meaning(file, folder) else _OTHER_MEANING
        return code

    status, said, cpu_s, memory_bytes = _in_child(work_on, work / "said", LIMIT_S)
    end = _end(status, said, file, reader)
    if memory_bytes > LIMIT_BYTES:
        end = "memory"
    if (work / "canary").exists() or (work / "here" / "canary").exists():
        end = "wrote a file outside"
    if keep and end not in (RIGHT, REFUSED):
        shutil.copytree(folder, keep, dirs_exist_ok=True)
    words = call if isinstance(call, str) else call.__name__
    return Outcome(end, f"{file.name}, {' and '.join(kinds)}, {words}\n{said}", cpu_s, memory_bytes)


def _call(call: Any, folder: Path, file: Path) -> int:
    from jaxpose.errors import UserError

    os.chdir(folder)
    if isinstance(call, str):
        return jaxpose([word.format(file.relative_to(folder)) if word == "{}" or "={}" in word else word for word in call.split()])
    try:
        return call(file) or 0
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _in_child(work: Any, said: Path, limit_s: float, has_limits: bool = True) -> tuple[int, str, float, int]:
    """Calls a function in a copy of this process; returns its status, what it wrote, CPU seconds and bytes."""
    said.touch()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        out = os.open(said, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if has_limits:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_BYTES, ADDRESSES_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        code: Any = _RAISED
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # The child is a copy of this process, and must not clean up its folders.
        os._exit(code)
    until, done, status, usage = time.monotonic() + 4 * limit_s, 0, 0, None
    while not done and time.monotonic() < until:
        time.sleep(0.003)
        done, status, usage = os.wait4(child, os.WNOHANG)
    if not done or usage is None:
        os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    text = said.read_bytes()[:2**20].decode(errors="surrogateescape")
    return status, text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _end(status: int, said: str, file: Path, reader: Reader) -> str:
    """Returns RIGHT, REFUSED, or the kind of a fault."""
    if "MemoryError" in said or "bad_alloc" in said:
        return "memory"
    if os.WIFSIGNALED(status):
        is_limit = os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
        return "hang" if is_limit else f"signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    if "Traceback (most recent call last)" in said or code == _RAISED:
        return "traceback"
    if code == _OTHER_MEANING:
        return "other meaning"
    if found := _NO_CONTROLS.search(said):
        return f"prints U+{ord(found[0]):04X}"
    if max(map(len, said.splitlines()), default=0) > _LONGEST_LINE:
        return "long line"
    if code in reader.done:
        return RIGHT
    if code not in _REFUSALS:
        return f"code {code}"
    # A refusal names the file, or the folder that was given with it.
    names = (file.name, file.parent.name, "data.project")
    return REFUSED if any(name in said for name in names) else "refused without its name"


def _count(line: dict[str, Any], found: Outcome) -> None:
    line["cases"] += 1
    line[found.end] = line.get(found.end, 0) + 1
    line["longest_cpu_s"] = max(line.get("longest_cpu_s", 0.0), round(found.cpu_s, 1))
    line["most_memory_mib"] = max(line.get("most_memory_mib", 0), found.memory_bytes // 2**20)


def show(lines: Iterable[dict[str, Any]]) -> None:
    """Prints a Markdown table: how the cases of each reader ended."""
    total: dict[str, collections.Counter[str]] = {}
    for line in (line for line in lines if "cases" in line):
        counter = total.setdefault(line["reader"], collections.Counter())
        counter.update({key: value for key, value in line.items() if key in ("cases", RIGHT, REFUSED)})
        for key in ("longest_cpu_s", "most_memory_mib"):
            counter[key] = max(counter[key], line.get(key, 0))
    print("| reader | cases | right | refused | faults | longest CPU s |\n|---|---|---|---|---|---|")
    for reader, counter in total.items():
        faults = counter["cases"] - counter[RIGHT] - counter[REFUSED]
        print(f"| {reader} | {counter['cases']} | {counter[RIGHT]} | {counter[REFUSED]} | {faults} | {counter['longest_cpu_s']} |")
    whole = [sum(counter[key] for counter in total.values()) for key in ("cases", RIGHT, REFUSED)]
    print(f"| all | {whole[0]} | {whole[1]} | {whole[2]} | {whole[0] - whole[1] - whole[2]} | |")


if __name__ == "__main__":
    sys.exit(main())
