"""Does any damaged or hostile file end jaxpose with a traceback, a crash, a hang, a full memory or another meaning?

    python benchmarks/fuzz.py --cases 1240 --seed 0 --out benchmarks/fuzz.jsonl
    python benchmarks/fuzz.py --out benchmarks/fuzz.jsonl

Damages a valid file of every format that jaxpose reads (see edits.py), calls a verb that reads it (see fuzzed.py) with
limits of time and memory, and requires the right result, or one line for each mistake that names the file, with exit
code 2 or 4. The requests of the page of `jaxpose label` are damaged in the same way. A process works on one case after
the other; if it dies, its case is a fault, and another process goes on. Appends one JSON line for each reader, and one
for each fault; with a fault, it ends with 1. Without --cases, prints the table.

    python benchmarks/fuzz.py --case "COCO JSON:12" --seed 0 --keep FOLDER --out faults.jsonl
    python benchmarks/fuzz.py --cases 500 --given "table SLP=FILE.slp" --out given.jsonl

repeats one case and keeps its files, or begins with a file that somebody else wrote.
"""

import argparse
import collections
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edits import edit
from fuzz_requests import PAGE, fuzz_page
from fuzzed import ADDRESSES_BYTES, LIMIT_BYTES, LIMIT_S, READERS, Reader, jaxpose, make_files
from json_lines import append_line, read_lines

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
RIGHT, REFUSED = "right", "refused"
# The number of the case in which a reader's files are not damaged.
UNDAMAGED = -1
_REFUSALS = {2, 4}
# Longer lines are no message for a person.
_LONGEST_LINE = 2000
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Case(NamedTuple):
    """A case of a reader; the number draws the damage."""

    reader: str
    number: int


class Outcome(NamedTuple):
    """How a case ended: RIGHT, REFUSED or a fault; what was written; its CPU seconds."""

    end: str
    said: str = ""
    cpu_s: float = 0.0


def main() -> int:
    """Runs the cases, or prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cases", type=int, help="of all readers; without, prints the table")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--readers", help="only these, with semicolons between them")
    arguments.add_argument("--given", action="append", default=[], metavar="READER=PATH",
                           help="begin with this file or project instead of jaxpose's own")  # fmt: skip
    arguments.add_argument("--case", metavar="READER:NUMBER", help="only this one")
    arguments.add_argument("--files", type=Path, help="valid files of an earlier call; made and kept if absent")
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
    _make_files(given.files, work)
    readers = _readers(given.given, work / "given")
    names = given.readers.split(";") if given.readers else [*readers, *([] if given.given else [PAGE])]
    cases = [Case(name, number) for name in names for number in range(-(-(given.cases or 0) // len(names)))]
    if given.case:
        name, _, number = given.case.rpartition(":")
        cases = [Case(name, int(number))]
    counts = collections.Counter(case.reader for case in cases)
    lines: dict[str, dict[str, Any]] = {
        name: {"reader": name, "seed": given.seed, "cases": 0, RIGHT: 0, REFUSED: 0} for name in counts
    }
    faults = 0
    undamaged = [Case(name, UNDAMAGED) for name in counts if name != PAGE and not given.given]
    bench = Bench(readers, given.seed, work, given.keep)
    for case, found in bench.work_on([*undamaged, *(case for case in cases if case.reader != PAGE)]):
        if case.number != UNDAMAGED:
            _count(lines[case.reader], found)
        if found.end not in (RIGHT, REFUSED):
            faults += 1
            said = found.said.replace(str(work), "")[-1500:]
            append_line(given.out, {"fault": found.end, **case._asdict(), "seed": given.seed, "said": said})
    if counts[PAGE]:
        requests, wrong = fuzz_page(work / "given" / "csv", given.seed, counts[PAGE])
        lines[PAGE] |= requests
        faults += len(wrong)
        for sentence in wrong:
            append_line(given.out, {"fault": sentence, "reader": PAGE, "seed": given.seed})
    for line in lines.values():
        append_line(given.out, line)
    show(read_lines(given.out))
    return not faults


def _make_files(kept: Path | None, work: Path) -> None:
    """Makes the valid files in `work`/given, or copies those of an earlier call."""
    if kept and kept.exists():
        shutil.copytree(kept, work / "given")
        return
    child = os.fork()
    if child == 0:
        _redirect(work / "said")
        _exit_after(lambda: make_files(_new(work / "given")))
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"the files could not be made: {(work / 'said').read_text()[-2000:]}")
    if kept:
        shutil.copytree(work / "given", kept)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _readers(given: list[str], root: Path) -> dict[str, Reader]:
    """Returns the readers; those of --given have its files in the place of jaxpose's own."""
    readers = {}
    for number, words in enumerate(given):
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
    return readers or READERS


class Bench:
    """Works on cases in processes, one at a time.

    Args:
      readers: all readers by name.
      seed: draws the damage.
      work: a folder, with the valid files in given/.
      keep: where the files of faults are copied; None: nowhere.
    """

    def __init__(self, readers: dict[str, Reader], seed: int, work: Path, keep: Path | None):
        self._readers, self._seed, self._work, self._keep = readers, seed, work, keep
        self._results, self._said, self._comparing = (work / name for name in ("results.jsonl", "said", "comparing"))

    def work_on(self, cases: list[Case]) -> Iterator[tuple[Case, Outcome]]:
        """Yields the outcome of each case."""
        left = list(cases)
        while left:
            self._results.unlink(missing_ok=True)
            status = self._start(left)
            done = [Outcome(**line) for line in read_lines(self._results)]
            yield from zip(left, done, strict=False)
            left = left[len(done) :]
            if self._comparing.exists():
                # The other reader died, such as HDF5 in PyTables: nothing can be known.
                self._comparing.unlink()
                yield left.pop(0), Outcome(RIGHT, self._text())
            elif status and left:
                # The case during which the process died.
                number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                is_limit = number in (signal.SIGPROF, signal.SIGKILL)
                yield left.pop(0), Outcome("hang" if is_limit else f"died: {status}", self._text())

    def _start(self, cases: list[Case]) -> int:
        """Starts a process for cases and waits for it; returns its status, 0 if it finished or gave up by itself."""
        child = os.fork()
        if child == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_BYTES, ADDRESSES_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _redirect(self._said)
            _exit_after(lambda: self._work_in_child(cases))
        seen, since = -1, time.monotonic()
        done, status = 0, 0
        # A process that sleeps uses no CPU time, which is limited.
        while not done and time.monotonic() - since < 20 * LIMIT_S:
            time.sleep(0.05)
            done, status = os.waitpid(child, os.WNOHANG)
            size = self._results.stat().st_size if self._results.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()
        if not done:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        return status

    def _work_in_child(self, cases: list[Case]) -> None:
        for case in cases:
            found = self._run(case)
            memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if memory_bytes > LIMIT_BYTES:
                found = found._replace(end="memory")
            append_line(self._results, found._asdict())
            if memory_bytes > LIMIT_BYTES:
                return

    def _run(self, case: Case) -> Outcome:
        """Damages a file of a reader and calls the reader."""
        draw, reader = random.Random(f"{self._seed} {case.reader} {case.number}"), self._readers[case.reader]
        folder = self._work / "here" / reader.folder
        os.chdir(self._work)
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(self._work / "given" / reader.folder, folder, copy_function=os.link)
        file = draw.choice([file for glob in reader.files for file in sorted(folder.glob(glob))])
        calls = [draw.choice(reader.calls)]
        kinds: list[str] = []
        if case.number == UNDAMAGED:
            calls = list(dict.fromkeys(reader.calls))
        else:
            kinds = _damage(draw, file)
        before_s = time.process_time()
        # An import counts as well, but not against the first case of a reader.
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S if kinds else 10 * LIMIT_S)
        ends = [self._call(call, reader, folder, file) for call in calls]
        signal.setitimer(signal.ITIMER_PROF, 0)
        cpu_s = time.process_time() - before_s
        end = next((end for end in ends if end not in (RIGHT, REFUSED)), ends[0])
        if not kinds and set(ends) != {RIGHT}:
            end = "the undamaged file is not read"
        if any((folder / place / "canary").exists() for place in ("..", "../..")):
            end = "wrote a file outside"
        if self._keep and end not in (RIGHT, REFUSED):
            shutil.copytree(folder, self._keep / f"{case.reader}-{case.number}", dirs_exist_ok=True)
        words = " / ".join(call if isinstance(call, str) else call.__name__ for call in calls)
        return Outcome(end, f"{file.name}, {' and '.join(kinds)}, {words}\n{self._text()}", cpu_s)

    def _call(self, call: Any, reader: Reader, folder: Path, file: Path) -> str:
        """Calls a reader; returns RIGHT, REFUSED, or the kind of a fault."""
        os.chdir(folder)
        os.ftruncate(1, 0)
        try:
            code = _code_of(call, folder, file)
            sys.stdout.flush()
            sys.stderr.flush()
            said = self._text()
            if code in reader.done and reader.meaning:
                self._comparing.touch()
                try:
                    if not reader.meaning(file, folder):
                        return "other meaning"
                finally:
                    self._comparing.unlink()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            return "memory" if "MemoryError" in self._text() else "traceback"
        return _end(code, said, file, reader)

    def _text(self) -> str:
        with self._said.open("rb") as stream:
            return stream.read(2**20).decode(errors="surrogateescape")


def _damage(draw: random.Random, file: Path) -> list[str]:
    """Edits a file once or twice; returns the kinds of the edits."""
    content, kinds = file.read_bytes(), []
    for _ in range(draw.choice((1, 1, 1, 2))):
        try:
            kind, content = edit(draw, content, file.suffix)
        except Exception:  # the first edit left nothing that the second one can read
            kind = "as before"
        kinds.append(kind)
    # The file is a link to the valid one.
    file.unlink()
    file.write_bytes(content)
    return kinds


def _redirect(said: Path) -> None:
    """Lets the output of this process go to a file."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _exit_after(work: Any) -> None:
    """Calls a function and ends this process, a copy of another one, whose folders it must not clean up."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code_of(call: Any, folder: Path, file: Path) -> int:
    """Returns the exit code of a verb, or the one that a verb has which calls a function."""
    from jaxpose.config.arguments import exit_code_of

    if isinstance(call, str):
        return jaxpose([word.replace("{}", str(file.relative_to(folder))) for word in call.split()])
    return exit_code_of("jaxpose", lambda: call(file) or 0)


def _end(code: int, said: str, file: Path, reader: Reader) -> str:
    """Returns RIGHT, REFUSED, or the kind of a fault, from an exit code and what was written."""
    if "Traceback (most recent call last)" in said or "MemoryError" in said or "bad_alloc" in said:
        return "traceback" if "Traceback" in said else "memory"
    if found := _CONTROLS.search(said):
        return f"prints U+{ord(found[0]):04X}"
    if code in reader.done:
        return RIGHT
    if code not in _REFUSALS:
        return f"code {code}"
    if max(map(len, said.splitlines()), default=0) > _LONGEST_LINE:
        return "long line"
    # A refusal names the file, or the folder that was given with it.
    names = (file.name, file.parent.name, "data.project", *reader.aliases)
    return REFUSED if any(name in said for name in names) else "refused without its name"


def _count(line: dict[str, Any], found: Outcome) -> None:
    for key in ("cases", found.end):
        line[key] = line.get(key, 0) + 1
    line["longest_cpu_s"] = max(line.get("longest_cpu_s", 0.0), round(found.cpu_s, 1))


def show(lines: Iterable[dict[str, Any]]) -> None:
    """Prints a Markdown table: how the cases of each reader ended."""
    total: dict[str, collections.Counter[str]] = {}
    for line in (line for line in lines if "cases" in line):
        counter = total.setdefault(line["reader"], collections.Counter())
        counter.update({key: value for key, value in line.items() if key in ("cases", RIGHT, REFUSED)})
    print("| reader | cases | right | refused | faults |\n|---|---|---|---|---|")
    total["all"] = sum(total.values(), collections.Counter())
    for reader, counter in total.items():
        faults = counter["cases"] - counter[RIGHT] - counter[REFUSED]
        print(f"| {reader} | {counter['cases']} | {counter[RIGHT]} | {counter[REFUSED]} | {faults} |")


if __name__ == "__main__":
    sys.exit(main())
