"""The section of the options: those that differ from the defaults and from the parent run, and all of them."""

from pathlib import Path
from typing import Any

from jaxpose.config import AugmentConfig, Config, resolve
from jaxpose.config.excerpt import excerpt
from jaxpose.config.option import flat_options
from jaxpose.errors import UserError
from jaxpose.report.facts import RunFacts
from jaxpose.report.section import Section, folded, paragraph, table
from jaxpose.run.identity import read_config
from jaxpose.run.paths import CONFIG_FILE


def settings_section(facts: RunFacts) -> Section:
    """Returns the options of a run."""
    default = resolve(Config(augment=AugmentConfig(preset=facts.config.augment.preset)))
    body = table(
        ["option", "default", "this run"],
        differing_options(default, facts.config),
        "Options that differ from the defaults",
    )
    body += _parent(facts)
    rows = [[name, _shown(value)] for name, (_, value) in flat_options(facts.config).items()]
    return Section("options", "Options", body + folded("Every option", table(["option", "value"], rows)))


def differing_options(before: Config, after: Config) -> list[list[str]]:
    """Returns a row for each option with different values: its name and both values."""
    old, new = flat_options(before), flat_options(after)
    return [[name, _shown(old[name][1]), _shown(value)] for name, (_, value) in new.items() if value != old[name][1]]


def _parent(facts: RunFacts) -> str:
    """Returns what differs from the run whose weights this one started from; "" if it did not start from a run."""
    given = facts.config.train.init_from
    if not given:
        return ""
    parent = Path(given).expanduser()
    if not (parent / CONFIG_FILE).is_file():
        return paragraph(f"The run started from {given}, where no {CONFIG_FILE} can be read.")
    try:
        config = read_config(parent / CONFIG_FILE)
    except UserError as error:
        return paragraph(f"The run started from {given}, whose options cannot be compared: {error}")
    rows = differing_options(config, facts.config)
    return table(["option", "parent run", "this run"], rows, f"Options that differ from the parent run {given}")


def _shown(value: Any) -> str:
    return excerpt(value, quoted=value == "")
