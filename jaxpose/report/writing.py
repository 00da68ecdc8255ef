"""Writes the report of a run: report.html, with everything that it shows inside."""

from pathlib import Path

from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.phases import phase
from jaxpose.report.augmented import augmented_section
from jaxpose.report.comparing import comparing_section, parent_section
from jaxpose.report.confidence import confidence_section
from jaxpose.report.confusions import confusions_section
from jaxpose.report.errors import errors_section
from jaxpose.report.facts import RunFacts, read_facts
from jaxpose.report.headline import headline_section
from jaxpose.report.learning import learning_section, read_history
from jaxpose.report.page import make_page
from jaxpose.report.project_labels import read_labels
from jaxpose.report.running import running_section
from jaxpose.report.section import Section, paragraph
from jaxpose.report.sets import sets_section
from jaxpose.report.settings import settings_section
from jaxpose.report.traces import traces_section
from jaxpose.report.worst import worst_section
from jaxpose.run.paths import REPORT_FILE
from jaxpose.run.run_argument import run_folder


def write_report(run: Path, out: Path | None = None, other: Path | None = None, project: Project | None = None) -> Path:
    """Writes the report of a run, and returns the file.

    Args:
      run: a run folder, or a folder of runs: the newest; of an unfinished run, the report has what is there.
      out: the file; None is report.html in the run folder.
      other: a run to compare with; None is the parent of the run, if it has one.
      project: the labelled frames of the run, if the caller has read them.

    Raises:
      UserError: the folder is no run, a file in it is damaged, or the runs cannot be compared.
      OSError: the file cannot be written.
    """
    run, other = Path(run_folder(run)), Path(run_folder(other)) if other else None
    file = out or run / REPORT_FILE
    with phase("writing the report"):
        facts = read_facts(run)
        labels, problem = _labels(facts, project)
        history = read_history(facts.run)
        traces, videos = traces_section(facts)
        sections = [
            headline_section(facts, labels),
            *([comparing_section(facts, other)] if other else parent_section(facts)),
            learning_section(facts, history),
            errors_section(facts),
            worst_section(facts, labels),
            confidence_section(facts),
            confusions_section(facts, labels),
            traces,
            augmented_section(facts, labels),
            sets_section(facts),
            settings_section(facts),
            running_section(facts, history),
        ]
        if problem:
            sections.insert(1, Section("problem", "Not everything is here", paragraph(problem)))
        page = make_page(f"Run {run.resolve().name}", sections, videos, facts.config.data.keypoint_names)
        write_atomic(file, page.encode())
    return file


def _labels(facts: RunFacts, project: Project | None) -> tuple[Project | None, str]:
    """Returns the labels of the run's project, or why they cannot be read."""
    try:
        return read_labels(facts.config.data, project), ""
    except (UserError, OSError) as error:
        return None, f"The project cannot be read: {error}"
