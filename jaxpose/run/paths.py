"""The names of the files and folders in a run folder."""

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"
STATUS_FILE = "status.json"
LOCK_FILE = ".lock"
RESTARTS_FILE = "restarts.json"
EXTENSIONS_FILE = "extensions.json"
FINISHED_FILE = "finished.json"
# Holds what is being downloaded, until all of it has arrived.
RESTORING_FOLDER = ".restoring"

CHECKPOINTS_FOLDER = "checkpoints"
PARAMETERS_FILE = "best.safetensors"
SUBSPACES_FILE = "pca.json"

LOG_FILE = "train.log"
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
PROFILE_FOLDER = "profile"

EVALUATION_FILE = "evaluation.json"
INDEX_FILE = "index.csv"
CLAIMS_FOLDER = ".claims"
VIDEO_TABLES_FOLDER = "video_preds"
IMAGE_TABLES_FOLDER = "image_preds"

# What the end of a training leaves, as globs, the mark of a finished run first. resume=extend deletes these.
RESULTS = (
    FINISHED_FILE,
    PARAMETERS_FILE,
    "predictions.csv",
    "predictions_*.csv",
    EVALUATION_FILE,
)

# Everything that jaxpose writes into a run folder, as globs. resume=overwrite deletes these and nothing else.
WRITTEN = (
    *RESULTS,
    LOG_FILE,
    METRICS_FILE,
    EXTENSIONS_FILE,
    f"{VIDEO_TABLES_FOLDER}/*.csv",
    f"{VIDEO_TABLES_FOLDER}/*.csv.partial",
    f"{VIDEO_TABLES_FOLDER}/*.parts",
    INDEX_FILE,
    CLAIMS_FOLDER,
    f"{TENSORBOARD_FOLDER}/events.out.tfevents.*",
    f"{PROFILE_FOLDER}/plugins",
    f"{CHECKPOINTS_FOLDER}/[0-9]*",
    RESTARTS_FILE,
    STATUS_FILE,
    SUBSPACES_FILE,
    RESTORING_FOLDER,
    SPLIT_FILE,
)

# What may be found in a folder that holds no run yet.
NO_RUN = {LOCK_FILE, RESTORING_FOLDER, f".{CONFIG_FILE}.tmp"}
