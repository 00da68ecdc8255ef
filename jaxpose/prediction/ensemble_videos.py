"""The videos of a project, as the members of an ensemble have predicted them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from jaxpose.config import Config
from jaxpose.data.sessions import video_files
from jaxpose.errors import UserError
from jaxpose.prediction.ensemble import write_ensembles
from jaxpose.prediction.ensemble_smoothing import smooth_ensembles
from jaxpose.prediction.listing import OutputFiles
from jaxpose.run.paths import INDEX_FILE, VIDEO_TABLES_FOLDER

_logger = logging.getLogger(__name__)


def combine_project_videos(config: Config, members: Sequence[Path], out: Path) -> None:
    """Writes the ensembles of the project's videos, and their smoothed tables; nothing if no member predicted videos.

    Args:
      config: of the ensemble.
      members: the run folders of the members.
      out: the run folder of the ensemble.
    """
    if config.eval.predict_videos == "no" or not all((member / INDEX_FILE).is_file() for member in members):
        return
    try:
        files = video_files(config.data, config.video).items()
        outputs: OutputFiles = {members[0] / VIDEO_TABLES_FOLDER / f"{name}.csv": file for name, file in files}
        tables = write_ensembles(members, outputs, out)
        smooth_ensembles(config.predict, config, members, tables, out)
    except (UserError, OSError) as error:
        # The labelled frames are evaluated; a video that cannot be combined must not make the training fail.
        _logger.warning(f"the videos' predictions are not combined: {error}; jaxpose predict --run {out} does it")
