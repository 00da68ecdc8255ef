"""The outcomes of jobs: written to the index, reported, and what is left of the work removed."""

import dataclasses
import logging
import shutil
from pathlib import Path

from jaxpose.files import sha256_of
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.index import PredictionIndex
from jaxpose.prediction.index_row import CHECKSUM_DIGITS, DAMAGED, DONE, FAILED
from jaxpose.prediction.job import Job, remove_leftovers
from jaxpose.prediction.table_files import PARTIAL, remove_tables
from jaxpose.quantities import count

_logger = logging.getLogger(__name__)


class Outcomes:
    """What became of jobs, here and in other processes.

    Args:
      index: of the folder of results.
      claims: those on the work in that folder.

    Attributes:
      reported: the reasons that were logged here.
    """

    def __init__(self, index: PredictionIndex, claims: Claims):
        self._index, self._claims = index, claims
        self.reported: set[str] = set()
        self._failed: set[str] = set()

    def is_settled(self, job: Job) -> bool:
        """Returns whether a job needs no more work: done or damaged, or failed in this process."""
        return job.row.table in self._failed or job.is_settled_by(self._index.rows().get(job.row.table))

    def settle_done(self, job: Job, rows: int, seconds: float, arithmetic: str) -> None:
        """Records that the tables of a job are written, and what their last bits depend on."""
        dropped = job.dropped_frames()
        reason = "; ".join(filter(None, [dropped, job.unknown_length(rows)]))
        self._settle(job, DONE, reason, rows, seconds, arithmetic, warning=dropped)

    def settle_failed(self, job: Job, reason: str) -> None:
        """Records why a job cannot be finished now; its finished segments stay for the next command."""
        self._settle(job, FAILED, reason)

    def settle_lost(self, job: Job, reason: str) -> None:
        """Records why the work on a job has to begin again, and removes its segments."""
        shutil.rmtree(job.parts, ignore_errors=True)
        self._settle(job, FAILED, reason)

    def settle_damaged(self, job: Job, reason: str, scratch: Path | None = None) -> None:
        """Records that an input cannot be predicted to the end; the rows in the folder `scratch` are kept."""
        state, rows = job.state_without_frames(), 0
        if state == DAMAGED:
            # Tables under this name are of frames that were here before.
            remove_tables(job.table)
        if scratch:
            rows, of = job.rescue(scratch), len(job.sources)
            verb = "is" if rows == 1 else "are"
            some = f"; its {count(rows, 'row')}" if job.video else f"\n{count(rows, 'row')} of {count(of, 'image')}"
            reason += f"{some} {verb} in {job.table}{PARTIAL}"
        self._settle(job, state, reason, rows)

    def _settle(
        self,
        job: Job,
        state: str,
        reason: str,
        rows: int = 0,
        seconds: float = 0.0,
        arithmetic: str = "",
        warning: str | None = None,
    ) -> None:
        """Records an outcome, and logs the warning, by default the reason."""
        self._index.note(
            dataclasses.replace(
                job.row,
                state=state,
                reason=reason,
                frames_delivered=rows,
                seconds=round(seconds, 3),
                table_size=self._index.bytes_of(job.table) if state == DONE else 0,
                table_sha256=sha256_of(job.table)[:CHECKSUM_DIGITS] if state == DONE else "",
                arithmetic=arithmetic,
            )
        )
        warning = reason if warning is None else warning
        if warning:
            self.reported.add(warning)
            _logger.warning(warning)
        if state == FAILED:
            self._failed.add(job.row.table)
        else:
            remove_leftovers(job.table, self._claims)
