"""Damaged and hostile variants of a file, drawn from a random generator: any bytes, and edits that know the format."""

import csv
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

# Texts in the place of a cell, a name or a number.
TEXTS = (
    "", " ", "nan", "NaN", "inf", "-inf", "1e400", "-1e400", "1e308", "1e-320", "-1", "0", "99999999999999999999",
    "1" * 5000, "0x10", "1_000", "1,5", "\u0661\u0662", "true", "null", "None", "=cmd()|'x'!A1", "@SUM(A1)", "<script>",
    "\x1b]0;title\x07\x1b[31m", "\u202egnp.exe", "\u200b", "a\nb", "a\rb", "\t", "\x7f", "\x85", "\ufeff", "\ud800",
    "\U0001f42d", "e\u0301", "x" * 100_000, "../../../etc/passwd", "/etc/passwd", "C:\\x", "..\\x", "CON",
    "a" * 300, "%s%n{0}", "$(id)", "'", '"', "a,b", ";", "#", "&a", "*a", "!!python/object/apply:os.system [id]",
)  # fmt: skip
_NUMBERS = (
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    -(2**63),
    10**400,
    0.5,
    1e308,
    -1e308,
    5e-324,
)
_DEEP = 100_000


def edit(draw: random.Random, content: bytes, suffix: str) -> tuple[str, bytes]:
    """Returns the kind of an edit and the edited content.

    Args:
      draw: chooses.
      content: of a valid file.
      suffix: of its name, which says the format.
    """
    known = _KNOWN.get(suffix, ())
    change = draw.choice(known) if known and draw.random() < 0.6 else draw.choice(_ANY)
    return change.__name__.removeprefix("_"), change(draw, content)


def _span(draw: random.Random, content: bytes) -> tuple[int, int]:
    """Returns the ends of a random block; half of the blocks lie in the first 512 bytes."""
    size = len(content) if draw.random() < 0.5 else min(len(content), 512)
    first = draw.randrange(size + 1)
    return first, min(len(content), first + draw.choice((1, 4, 16, 100, 1000, 10_000)))


def _flip(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 64)) if content else 0):
        place = draw.randrange(len(content) if draw.random() < 0.5 else min(len(content), 512))
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _truncate(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.choice((0, 1, 7, len(content) // 2, len(content) - 1, draw.randrange(len(content) + 1)))]


def _cut_out(draw: random.Random, content: bytes) -> bytes:
    first, last = _span(draw, content)
    return content[:first] + content[last:]


def _repeat(draw: random.Random, content: bytes) -> bytes:
    first, last = _span(draw, content)
    return content[:last] + content[first:last] * draw.choice((1, 1, 2, 50)) + content[last:]


def _swap(draw: random.Random, content: bytes) -> bytes:
    a, b, c, d = sorted(draw.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _overwrite(draw: random.Random, content: bytes) -> bytes:
    """Puts an integer, zeros, or random bytes over a block."""
    width, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    first = min(_span(draw, content)[0], max(0, len(content) - width))
    number = draw.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1))
    block = draw.choice((number.to_bytes(width, order), bytes(width * 8), draw.randbytes(width * 4)))
    return content[:first] + block + content[first + len(block) :]


def _append(draw: random.Random, content: bytes) -> bytes:
    return content + draw.choice((b"\0", b"\n\n", b"\x1b[2J", content, draw.randbytes(100), bytes(100_000)))


def _replace_all(draw: random.Random, content: bytes) -> bytes:
    return draw.choice(
        (b"", b"\0" * 1000, draw.randbytes(5000), b"\xff\xfe", b"\xef\xbb\xbf", b"[" * _DEEP, b"\n" * 999)
    )


_ANY: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _flip, _truncate, _cut_out, _repeat, _swap, _overwrite, _overwrite, _append, _replace_all,
)  # fmt: skip


# Text.


def _encoded(draw: random.Random, text: str) -> bytes:
    """Returns the text in UTF-8, sometimes in another encoding."""
    kind = draw.choice(("utf-8",) * 12 + ("utf-16", "latin-1", "utf-8-sig"))
    try:
        return text.encode(kind, "surrogatepass" if kind != "latin-1" else "replace")
    except UnicodeError:
        return text.encode("utf-8", "replace")


def _cell(draw: random.Random, content: bytes) -> bytes:
    """Puts a text into a cell of a CSV file; half of the cells are in its header or its first column."""
    rows = _rows(content)
    row = draw.choice(rows[:4] if draw.random() < 0.4 else rows)
    if row:
        row[0 if draw.random() < 0.2 else draw.randrange(len(row))] = draw.choice(TEXTS)
    return _encoded(draw, _joined(rows))


def _table(draw: random.Random, content: bytes) -> bytes:
    """Changes rows and columns of a CSV file."""
    rows = _rows(content)
    at, other = draw.randrange(len(rows)), draw.randrange(len(rows))
    width = max(map(len, rows))
    column, next_column = draw.randrange(width), draw.randrange(width)
    kind = draw.randrange(9)
    if kind == 0:
        rows[at], rows[other] = rows[other], rows[at]
    elif kind == 1:
        rows.insert(at, rows[other])
    elif kind == 2:
        del rows[at]
    elif kind == 3:
        rows[at] = rows[at] * draw.choice((2, 3000))
    elif kind == 4:
        rows[at] = rows[at][: draw.randrange(len(rows[at]) + 1)]
    elif kind == 5:
        rows = [row[:column] + row[column : column + 1] * draw.choice((2, 2, 1000)) + row[column + 1 :] for row in rows]
    elif kind == 6:
        rows = [row[:column] + row[column + 1 :] for row in rows]
    elif kind == 7:
        for row in rows:
            if max(column, next_column) < len(row):
                row[column], row[next_column] = row[next_column], row[column]
    else:
        rows = rows[: draw.randrange(5)]
    return _joined(rows, draw.choice((",",) * 6 + (";", "\t"))).encode("utf-8", "replace")


def _rows(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline=""))) or [[""]]


def _joined(rows: list[list[str]], delimiter: str = ",") -> str:
    memory = io.StringIO()
    csv.writer(memory, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return memory.getvalue()


def _json_value(draw: random.Random, content: bytes) -> bytes:
    """Replaces, removes or repeats a value of a JSON file, or nests it deeply."""
    whole = [json.loads(content)]
    holders = [whole, *(holder for holder in _holders(whole[0]) if holder)]
    # Most places of a large file are numbers in long lists.
    few = [holder for holder in holders if isinstance(holder, dict)] or holders
    holder: Any = draw.choice(few if draw.random() < 0.7 else holders)
    key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    kind = draw.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 1:
        holder[draw.choice(TEXTS)] = holder.pop(key)
    else:
        holder[key] = _odd_json(draw)
    text = json.dumps(whole[0] if whole else None)
    if kind == 7:
        text = text.replace(f'"{_MARK}"', "[" * _DEEP + "]" * _DEEP).replace("{", '{"a": 1, "a": 2, ', 1)
    return text.replace(f'"{_MARK}"', "1e999").encode("utf-8", "surrogatepass")


_MARK = "a place for what json.dumps cannot write"


def _odd_json(draw: random.Random) -> Any:
    others = (None, True, [], {}, [[]], [1, 2], {"a": 1}, float("nan"), float("inf"), _MARK, [None] * 3, ["a"] * 3)
    return draw.choice((draw.choice(TEXTS), draw.choice(_NUMBERS), draw.choice(others)))


def _holders(value: Any) -> list[Any]:
    """Returns the lists and dicts in a value."""
    if not isinstance(value, list | dict):
        return []
    entries = value.values() if isinstance(value, dict) else value
    return [value, *(holder for entry in entries for holder in _holders(entry))]


def _json_line(draw: random.Random, content: bytes) -> bytes:
    """Edits a line of a file with a JSON value in each."""
    lines = content.splitlines() or [b"{}"]
    at = draw.randrange(len(lines))
    lines[at] = _json_value(draw, lines[at])
    return b"\n".join(lines) + b"\n"


def _word(draw: random.Random, content: bytes) -> bytes:
    """Replaces a word or number of a text in YAML, TOML or HTTP, in any place."""
    places = list(re.finditer(rb"[^\s,:=\[\]{}\"']+", content)) or [re.match(b"", content)]
    place: Any = draw.choice(places)
    new = draw.choice((*TEXTS, *map(str, _NUMBERS), "[]", "{}", "[[1]]", "{a: 1}", "1979-05-27", "~", "|", ">", "- "))
    return content[: place.start()] + new.encode("utf-8", "surrogatepass") + content[place.end() :]


def _line(draw: random.Random, content: bytes) -> bytes:
    """Removes, repeats, exchanges or indents lines."""
    lines = content.splitlines(keepends=True) or [b""]
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = draw.choice((b" ", b"\t", b"  - ")) + lines[at]
    return b"".join(lines)


def _yaml_bomb(draw: random.Random, content: bytes) -> bytes:
    """Adds anchors that grow tenfold in each of twelve lines, nesting, tags, or merges of themselves."""
    letters = list(zip("abcdefghijk", "bcdefghijkl", strict=True))
    grow = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in letters)
    merge = "a: &a {x: 1}\n" + "".join(
        f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n" for old, new in letters
    )
    deep, flow = "".join(f"{' ' * depth}a:\n" for depth in range(2000)), "k: " + "[" * 5000 + "]" * 5000
    tags = (
        "k: !!python/name:os.system", "k: !!timestamp 2024-13-45", "k: !!binary x", "k: !!set {a, b}", "k: !!int many",
        "? [a, b]\n: 1", "&x k: *x", "k: &x [*x]", "? {a: 1}\n: 1", "k: !!omap [a: 1]", "<<: 1", "k: !!float x",
    )  # fmt: skip
    keys = list(re.finditer(rb"(?m)^ *[\w]+:(.*)$", content))
    if keys and draw.random() < 0.4:
        # The value of a key that is read.
        place = draw.choice(keys)
        new = draw.choice((b" *l", b" &x [*x]", b" {<<: *a}", b" [{k: *l}]", b" " + b"[" * 5000 + b"]" * 5000))
        return grow.encode() + content[: place.start(1)] + new + content[place.end(1) :]
    new = draw.choice((grow, merge, deep, flow, draw.choice(tags), draw.choice(tags)))
    return content + b"\n" + new.encode() + b"\n"


def _many(draw: random.Random, content: bytes) -> bytes:
    """Adds very many lines, or a very long one."""
    line = draw.choice(
        (b"[a.b]\n", b"k = 1\n", b"x: 1\n", b"a,b,c\n", b"{}\n", b"a" * 2**20 + b"\n", b"a." * 5000 + b"b = 1\n")
    )
    return content + line * draw.choice((1, 3, 20_000 if len(line) < 100 else 1))


# Archives and headers.


def _png_size(draw: random.Random, content: bytes) -> bytes:
    """Changes the header of a PNG file, with the right checksum."""
    header = bytearray(content[16:29])
    if draw.random() < 0.6:
        width, height = (draw.choice((0, 1, 5000, 16_384, 65_536, 2**20, 2**31 - 1)) for _ in range(2))
        header[:8] = struct.pack(">II", width, height)
    else:
        header[draw.randrange(8, 13)] = draw.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
    return content[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + content[33:]


def _png_bomb(draw: random.Random, content: bytes) -> bytes:
    """Returns a PNG of a few MB that decodes to gigabytes."""
    side = draw.choice((16_384, 32_768, 60_000))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(2**24), 1)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return content[:8] + b"".join(chunks)


def _json_header(draw: random.Random, content: bytes) -> bytes:
    """Changes the header of a safetensors file: its length (8 bytes), or a value of its JSON."""
    length = int.from_bytes(content[:8], "little")
    if draw.random() < 0.3:
        wrong = draw.choice((0, 1, length - 1, length + 1, len(content), 2**31, 2**63, 2**64 - 1))
        return wrong.to_bytes(8, "little") + content[8:]
    header = _json_value(draw, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _member(draw: random.Random, content: bytes) -> bytes:
    """Edits, renames, repeats, removes or blows up a member of a zip archive, which gets new checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    # The pickle is one of many members, and the smallest.
    pickled = [at for at, (name, _) in enumerate(members) if name.endswith(".pkl")]
    at = draw.choice(pickled) if pickled and draw.random() < 0.6 else draw.randrange(len(members))
    name, held = members[at]
    kind = draw.randrange(6)
    if kind < 3:
        members[at] = name, draw.choice(_ANY)(draw, held)
    elif kind == 3:
        members[at] = draw.choice(("../canary", "/tmp/canary", "x" * 5000, "archive/data/../../x")), held
    elif kind == 4:
        del members[at]
    else:
        members[at] = name, bytes(2**28)
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED if kind == 5 else zipfile.ZIP_STORED) as archive:
        for name, held in members:
            archive.writestr(name, held)
    return memory.getvalue()


def _mat_entry(draw: random.Random, content: bytes) -> bytes:
    """Replaces a value of a MATLAB file: a variable, a cell, or a field of a structure in a cell."""
    import numpy as np
    import scipy.io

    variables = {k: v for k, v in scipy.io.loadmat(io.BytesIO(content)).items() if not k.startswith("__")}
    name = draw.choice(list(variables))
    odds = (0.0, np.nan, "text", np.zeros((0, 3)), np.ones((3, 3)), 1e308, {"K": 1.0}, np.array([["a", "b"]]), np.inf)
    odd: Any = draw.choice(odds)
    if draw.random() < 0.2:
        variables[draw.choice((name, "other"))] = odd
        return _saved(variables)
    cells = variables[name].ravel()
    at = draw.randrange(len(cells))
    fields = cells[at].dtype.names if draw.random() < 0.8 else None
    if fields:
        cells[at][draw.choice(fields)][0, 0] = np.asarray(odd)
    else:
        cells[at] = np.asarray(odd)
    variables[name] = cells[None] if draw.random() < 0.8 else cells[:1]
    return _saved(variables)


def _saved(variables: dict[str, Any]) -> bytes:
    import scipy.io

    memory = io.BytesIO()
    scipy.io.savemat(memory, variables)
    return memory.getvalue()


def _column(draw: random.Random, content: bytes) -> bytes:
    """Replaces, renames, repeats or removes a column of a Parquet file, or removes its rows."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    at, rows = draw.randrange(table.num_columns), table.num_rows
    odds = ([None], [float("nan")], ["text"], [-1], [1e308], [True], [[1, 2]], [b"\xff"], [2**62])
    column = pyarrow.array(draw.choice(odds) * rows)
    kind = draw.randrange(5)
    if kind == 0:
        table = table.slice(0, draw.choice((0, 1)))
    elif kind == 1:
        table = table.remove_column(at)
    elif kind == 2:
        table = table.append_column(draw.choice((table.column_names[at], "x" * 5000, "", "=1", "a\x1b[1m")), column)
    elif kind == 3:
        table = table.replace_schema_metadata({b"jaxpose": b"[" * 20_000, b"pandas": b"{}"})
    else:
        table = table.set_column(at, table.column_names[at], column)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def _hdf5_entry(draw: random.Random, content: bytes) -> bytes:
    """Changes a dataset, an attribute or a link of an HDF5 file."""
    import h5py

    memory = io.BytesIO(content)
    with h5py.File(memory, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = draw.choice(names)
        entry = file[name]
        if entry.attrs and draw.random() < 0.4:
            _change_attribute(draw, entry)
        elif draw.random() < 0.5 and isinstance(entry, h5py.Dataset) and entry.size and entry.dtype.names is None:
            _change_values(draw, entry)
        else:
            _change_link(draw, file, name)
    return memory.getvalue()


def _change_attribute(draw: random.Random, entry: Any) -> None:
    name = draw.choice(list(entry.attrs))
    if draw.random() < 0.2:
        del entry.attrs[name]
        return
    odd = draw.choice((*TEXTS[:60], *_NUMBERS, b"\xff", [1, 2], "[" * 20_000, "{}", "[null]", '{"a": 1}'))
    try:
        entry.attrs[name] = odd
    except (TypeError, ValueError, OverflowError, OSError, RuntimeError):
        entry.attrs[name] = 0


def _change_values(draw: random.Random, entry: Any) -> None:
    at = draw.randrange(entry.size)
    flat = entry[...].reshape(-1)
    odd: Any = draw.choice((float("nan"), float("inf"), -1, 1e300, 2**31 - 1, -(2**31), 0, 255))
    if flat.dtype.kind in "SO":
        odd = draw.choice(TEXTS).encode("utf-8", "surrogatepass").replace(b"\0", b"")
    try:
        flat[at] = odd
    except (ValueError, OverflowError):
        flat[at] = 0
    if draw.random() < 0.2:
        flat[:] = flat[at]
    entry[...] = flat.reshape(entry.shape)


def _change_link(draw: random.Random, file: Any, name: str) -> None:
    """Replaces an entry by nothing, a link, or a dataset of another kind or a huge shape without stored values."""
    import h5py
    import numpy as np

    entry = file[name]
    old = entry[...] if isinstance(entry, h5py.Dataset) and entry.size else np.zeros(1)
    shape = entry.shape if isinstance(entry, h5py.Dataset) and entry.shape else (1,)
    del entry
    kind = draw.randrange(9)
    attrs = dict(file[name].attrs)
    del file[name]
    if kind == 0:
        return
    if kind == 1:
        file[name] = h5py.SoftLink(draw.choice(("/", f"/{name}", "/nothing", ".")))
    elif kind == 2:
        file[name] = h5py.ExternalLink("/etc/passwd", "/x")
    elif kind == 3:
        huge = draw.choice(((2**40,), (2**20, 2**20), (2**33, *shape[1:])))
        file.create_dataset(name, huge, old.dtype if old.dtype.kind != "O" else "f8", chunks=tuple(1 for _ in huge))
    elif kind == 4:
        file[name] = np.zeros((0, *shape[1:]), old.dtype if old.dtype.kind != "O" else "f8")
    elif kind == 5:
        file[name] = draw.choice((1.5, 2**62, "text", b"\xff", np.array([True]), np.array([b"a", b"b"])))
    elif kind == 6:
        file.create_group(name)
    elif kind == 7 and old.dtype.kind != "O":
        file[name] = np.concatenate([old, old]) if old.ndim else old
    elif old.dtype.kind != "O":
        file[name] = old[..., None] if draw.random() < 0.5 else old[: len(old) // 2] if old.ndim else old
    for key, value in attrs.items():
        if name in file and kind > 2:
            file[name].attrs[key] = value


_TABLES, _TEXT = (_cell, _cell, _table), (_word, _word, _word, _line, _many)
_KNOWN: dict[str, tuple[Callable[[random.Random, bytes], bytes], ...]] = {
    ".csv": (*_TABLES, _cell, _many),
    ".json": (_json_value, _json_value, _json_value, _line),
    ".jsonl": (_json_line, _json_line, _line),
    ".yaml": (*_TEXT, _yaml_bomb),
    ".toml": _TEXT,
    ".http": (_word, _word, _line),
    ".png": (_png_size, _png_bomb),
    ".safetensors": (_json_header,),
    ".pt": (_member,),
    ".mat": (_mat_entry,),
    ".parquet": (_column,),
    ".h5": (_hdf5_entry,),
    ".slp": (_hdf5_entry,),
}
