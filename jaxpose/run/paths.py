"""The names of the files and folders in a run folder."""

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"
STATUS_FILE = "status.json"
LOCK_FILE = ".lock"
RESTARTS_FILE = "restarts.json"
EXTENSIONS_FILE = "extensions.json"
FINISHED_FILE = "finished.json"
# Hold a download until it is complete, and then until its files are moved.
RESTORING_FOLDER, RESTORED_FOLDER = ".restoring", ".restored"

# The run folders of the members of an ensemble, by their numbers.
MEMBERS_FOLDER = "members"

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST_FILE = "manifest.json"
# The manifests of all complete checkpoints, as a glob.
CHECKPOINT_MANIFESTS = f"{CHECKPOINTS_FOLDER}/*/{MANIFEST_FILE}"
PARAMETERS_FILE = "best.safetensors"
SUBSPACES_FILE = "pca.json"
ARITHMETIC_FILE = "arithmetic.json"

LOG_FILE = "train.log"
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
TRACKER_FILE = "tracker.json"
TRACKER_LOG_FILE = "tracker.log"
PROFILE_FOLDER = "profile"

EVALUATION_FILE = "evaluation.json"
EVALUATED_FILE = "evaluated.json"
CALIBRATION_FILE = "calibration.json"
CALIBRATION_TABLE = "calibration.csv"
REPORT_FILE = "report.html"
INDEX_FILE = "index.csv"
CLAIMS_FOLDER = ".claims"
VIDEO_TABLES_FOLDER = "video_preds"
IMAGE_TABLES_FOLDER = "image_preds"
LABELED_VIDEOS_FOLDER = "labeled_videos"

# Results of a training, as globs, beginning with the mark of a finished run. resume=extend deletes them.
RESULTS = (
    FINISHED_FILE,
    PARAMETERS_FILE,
    "predictions.csv",
    "predictions_*.csv",
    EVALUATION_FILE,
    EVALUATED_FILE,
    CALIBRATION_FILE,
    CALIBRATION_TABLE,
    REPORT_FILE,
)

# Everything that jaxpose writes into a run folder, except config.json, predictions of images and labelled videos, as
# globs.
# resume=overwrite deletes these and nothing else; a remote copy holds these and config.json.
WRITTEN = (
    *RESULTS,
    LOG_FILE,
    METRICS_FILE,
    TRACKER_FILE,
    TRACKER_LOG_FILE,
    EXTENSIONS_FILE,
    f"{VIDEO_TABLES_FOLDER}/*.csv",
    f"{VIDEO_TABLES_FOLDER}/*.csv.partial",
    f"{VIDEO_TABLES_FOLDER}/*_smoothed.json",
    f"{VIDEO_TABLES_FOLDER}/*.parts",
    INDEX_FILE,
    CLAIMS_FOLDER,
    f"{TENSORBOARD_FOLDER}/events.out.tfevents.*",
    f"{PROFILE_FOLDER}/plugins",
    f"{CHECKPOINTS_FOLDER}/[0-9]*",
    RESTARTS_FILE,
    STATUS_FILE,
    SUBSPACES_FILE,
    ARITHMETIC_FILE,
    RESTORING_FOLDER,
    RESTORED_FOLDER,
    SPLIT_FILE,
)

# Files that may exist in a folder without a run.
NO_RUN = {LOCK_FILE, RESTORING_FOLDER, RESTORED_FOLDER, f".{CONFIG_FILE}.tmp", f".{CONFIG_FILE}.0.tmp"}
