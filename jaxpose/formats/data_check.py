"""The check of a training's data that --dry_run=data does: the report, and whether every image decodes."""

from jaxpose.config import SYNTHETIC, Config, resolve
from jaxpose.data.dataset import SYNTHETIC_FOLDER, check_decoding
from jaxpose.data.report import data_report
from jaxpose.formats.project import prepare
from jaxpose.terminal import print_lines


def show_data(config: Config) -> None:
    """Prints the lines of `data_report`, then decodes every image; needs no device.

    Args:
      config: as the user gave it.

    Raises:
      UserError: the project cannot be used.
    """
    if config.data.project == SYNTHETIC and not SYNTHETIC_FOLDER.exists():
        print(f"the run will make the synthetic project in {SYNTHETIC_FOLDER}, which does not exist yet")
        return
    config, found = prepare(resolve(config))
    print_lines("\n".join(data_report(config, found)))
    notes = check_decoding(found, config)
    print_lines("\n".join([*(f"{'note':12} {note}" for note in notes), "every image decodes"]))
