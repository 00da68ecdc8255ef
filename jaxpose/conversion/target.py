"""What a conversion of labels or predictions writes."""

import dataclasses
import datetime
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Target:
    """What is written.

    Attributes:
      form: the format, one of those of `label_files` or `prediction_tables`.
      out: a file with the suffix of the form; for tables, or labels of DeepLabCut, a folder.
      scorer: who labelled, or the name of the network in a table of DeepLabCut; "" keeps that of the source.
      session_start: for NWB, the time of the first frame, with its time zone.
      overwrite: replace files with other content.
    """

    form: str
    out: Path
    scorer: str = ""
    session_start: datetime.datetime | None = None
    overwrite: bool = False
