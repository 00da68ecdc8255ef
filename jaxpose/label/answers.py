"""The file of corrections that `jaxpose track` reads, in which single answers change: other rows keep their bytes."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.labelling.label_file import csv_line, line_end, split_rows
from jaxpose.text_file import SAVE_AS_UTF_8, read_text
from jaxpose.tracking.corrections import COLUMNS, Correction, parse_corrections
from jaxpose.tracking.review import COLUMNS as REVIEW_COLUMNS
from jaxpose.tracking.review import EXTRA, MISSING
from jaxpose.tracking.review_file import Place


@dataclasses.dataclass(frozen=True)
class AnswerFile:
    """The content of a file of corrections.

    Attributes:
      file: the path; absent before the first answer.
      header: names of the columns.
      head: the text of the header.
      rows: the text of each row, with its line end.
      cells: {name of a column: cell} of each row.
      encoding: of the text.
    """

    file: Path
    header: Sequence[str]
    head: str
    rows: Sequence[str]
    cells: Sequence[Mapping[str, str]]
    encoding: str = "utf-8"

    @property
    def text(self) -> str:
        """The text of the file."""
        return self.head + "".join(self.rows)

    def content(self) -> bytes:
        """Returns the bytes of the file."""
        return self.text.encode(self.encoding)

    def corrections(self) -> list[Correction]:
        """Returns the answers as `jaxpose track` reads them; raises UserError if it would refuse one."""
        return parse_corrections(self.file, self.text.removeprefix("\ufeff"))

    def answers(self) -> dict[Place, str]:
        """Returns {place: answer} of the rows about decisions; "" for a row without an answer."""
        return {_place(cells): cells["answer"] for cells in self.cells if _is_decision(cells)}

    def changed(self, place: Place, answer: str | None, others: Mapping[str, str]) -> "AnswerFile":
        """Returns the file with another answer to a place.

        Args:
          place: that of a row of the file, or of a new last one.
          answer: a new answer; "" leaves the row without one, None removes it.
          others: the other cells of a new row, as in a review.
        """
        head, rows, cells = self.head, list(self.rows), list(self.cells)
        known = [row for row, of_row in enumerate(cells) if _is_decision(of_row) and _place(of_row) == place]
        if not known and answer is None:
            return self
        if not known:
            end = line_end(head) or "\n"
            head = head if line_end(head) else head + end
            if rows and not line_end(rows[-1]):
                rows[-1] += end
            cells.append(dict.fromkeys(self.header, "") | {**place._asdict(), **others, "answer": answer or ""})
            rows.append(csv_line([cells[-1][name] for name in self.header], end))
        elif answer is None:
            del rows[known[-1]], cells[known[-1]]
        else:
            row = known[-1]
            (of_row,) = csv.reader(io.StringIO(rows[row], newline=""))
            of_row[self.header.index("answer")] = answer
            rows[row], cells[row] = csv_line(of_row, line_end(rows[row])), {**cells[row], "answer": answer}
        return dataclasses.replace(self, head=head, rows=rows, cells=cells)


def read_answers(file: Path) -> AnswerFile:
    """Reads a file of corrections; one that is absent has no row.

    Raises:
      UserError: it is not one, or its text cannot be written again byte for byte.
      OSError: it cannot be read.
    """
    try:
        content = read_bytes(file, most_bytes=None)
    except FileNotFoundError:
        return AnswerFile(file, REVIEW_COLUMNS, csv_line(REVIEW_COLUMNS, "\n"), [], [])
    text, encoding = read_text(file)
    mark = "\ufeff" * content.decode(encoding, "replace").startswith("\ufeff")
    if (mark + text).encode(encoding, "replace") != content:
        raise UserError(f"{file} is not a UTF-8 CSV file, so its rows cannot be kept byte for byte: {SAVE_AS_UTF_8}")
    # Refuses a file that `jaxpose track` could not read.
    parse_corrections(file, text)
    (_, header), *rows = split_rows(file, text)[0]
    texts = split_rows(file, text)[1]
    cells = [dict(zip(header, [*row, *[""] * len(header)], strict=False)) for _, row in rows]
    return AnswerFile(file, header, mark + texts[0], texts[1:], cells, encoding)


def _place(cells: Mapping[str, str]) -> Place:
    values = [cells[name] for name in Place._fields]
    return Place(*(str(int(value)) if value.isascii() and value.isdigit() else value for value in values))


def _is_decision(cells: Mapping[str, str]) -> bool:
    """Returns whether a row can have an answer; an empty line is no row."""
    return any(cells[name] for name in COLUMNS) and cells.get("kind") not in (EXTRA, MISSING)
