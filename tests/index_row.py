"""A row of the index of predictions."""

from jaxpose.prediction.index import DONE, Row


def row(**changes: object) -> Row:
    """The row of a video that is done."""
    values = {
        "path": "/in/x.mp4", "size": 10, "mtime": "1.5", "files": "f", "model": "m", "frames_announced": 3,
        "frames_delivered": 3, "seconds": 0.5, "state": DONE, "reason": "", "table": "video_preds/x.csv",
        "table_size": 5, "table_sha256": "s", "run": "r", "arithmetic": "a",
    }  # fmt: skip
    return Row(**(values | changes))
