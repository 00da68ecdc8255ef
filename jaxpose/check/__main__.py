"""Writes a page about the labels of a project before any training: `jaxpose check PROJECT`.

Input: a project, and options as `jaxpose train` takes them. Output: check.html, one file that needs no network, with
every labelled frame as a picture, rows that a training would refuse, counts, pairs, sizes and the split.
"""

import argparse
import sys
from pathlib import Path

from jaxpose.config.arguments import DONE, Arguments, make_folder, refuse_other_file
from jaxpose.errors import UserError
from jaxpose.quantities import size


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.check", "Writes a page about the labels of a project, before any training.")
    arguments.add_argument(
        "words",
        nargs="*",
        metavar="PROJECT [OPTION=VALUE]",
        help="the project, and options as jaxpose train takes them, such as data.split=video",
    )
    arguments.add_argument("--config", metavar="FILE.py[:PROJECT]", help="experiment, as jaxpose train takes it")
    arguments.add_argument("--out", default="check.html", metavar="FILE", help="the page; default: check.html")
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    from jaxpose.config import command_line, validate

    if not given.config and not any("=" not in word or Path(word).exists() for word in given.words):
        raise UserError("no project is given: jaxpose check PROJECT")
    config, _ = command_line.read([*(["--config", given.config] if given.config else []), *given.words])
    validate(config)
    out = Path(given.out).expanduser()
    refuse_other_file(out, "jaxpose.check")
    make_folder(out.absolute().parent)
    # These imports take seconds, which --help does not need.
    import jax

    from jaxpose.check.writing import write_check
    from jaxpose.console import console
    from jaxpose.formats.project import refuse_absent

    # The little that is computed needs no GPU, which a training may be using.
    jax.config.update("jax_platforms", "cpu")
    with console("jaxpose.check"):
        refuse_absent(config.data)
        sentence = write_check(config, out)
    print(f"{sentence}\ncheck: {out} ({size(out.stat().st_size)}); open it in a browser")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
