"""A hook of MkDocs: pages whose source lies outside of docs/, and links that hold in both places.

Input: the pages that mkdocs.yml reads. Output: README.md is the home page, the other files of `OUTSIDE` are pages, too.
A link is written for the repository, such as `../configs/pretrained.py`; on the site it leads to the page of that file.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Each file of the repository and its page.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "launch/README.md": "starters.md",
    "benchmarks/README.md": "benchmarks.md",
    "LICENSE": "licence.md",
}
OUTSIDE |= {
    f"benchmarks/{file.name}": f"benchmarks/{file.name}"
    for file in sorted((ROOT / "benchmarks").glob("*.md"))
    if file.name != "README.md"
}
SOURCES = {page: source for source, page in OUTSIDE.items()}
CONFIGS = "configs.md"
_LINK = re.compile(r"\[([^][]*)\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)")
# What a browser loads by itself; a link that a reader may follow is none of it.
_LOADED = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//|
                         <link\b(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//|
                         url\(["']?(?:https?:)?//|@import\s+["'](?:https?:)?//""", re.VERBOSE)  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of `OUTSIDE` and the page of the configs."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text if source.endswith(".md") else f"# Licence\n\n{text}"))
    files.append(File.generated(config, CONFIGS, content=configs_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the text of a page with the links of the site."""
    place = page.file.src_uri
    return site_links(markdown, SOURCES.get(place, f"docs/{place}"), place, titles(config.nav or []))


def on_post_build(config: MkDocsConfig) -> None:
    """Checks that no page loads anything from the network.

    Raises:
      PluginError: a page does.
    """
    for file in sorted(Path(config.site_dir).rglob("*")):
        found = _LOADED.search(file.read_text()) if file.suffix in (".html", ".css") else None
        if found:
            raise PluginError(f"{file.relative_to(config.site_dir)} loads from the network: {found[0]}")


def site_links(markdown: str, source: str, page: str, title_of: dict[str, str]) -> str:
    """Returns a text of the repository with the links of the site; a link whose text is a file gets the page's title.

    Args:
      markdown: the text.
      source: its file in the repository.
      page: its page on the site.
      title_of: the title of each page.
    """

    def site_link(link: re.Match[str]) -> str:
        text, place = link[1], site_place(link[2], source)
        shown = title_of.get(place.partition("#")[0], text) if re.fullmatch(r"[\w./]+\.md", text) else text
        return f"[{shown}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{link[3]})"

    return _LINK.sub(site_link, markdown)


def titles(nav: list) -> dict[str, str]:
    """Returns the title of each page in the navigation of mkdocs.yml."""
    found: dict[str, str] = {}
    for entry in nav:
        for title, of in entry.items():
            found |= {of: title} if isinstance(of, str) else titles(of)
    return found


def site_place(link: str, source: str) -> str:
    """Returns where a link of a file leads on the site, relative to docs/. MkDocs names an unknown file."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if place == "configs":
        return CONFIGS
    if posixpath.dirname(place) == "configs":
        return f"{CONFIGS}#{posixpath.basename(place).replace('.', '')}"
    return OUTSIDE.get(place, place.removeprefix("docs/"))


def configs_page() -> str:
    """Returns the page with the files of configs/: the docstring of each, then its code."""
    text = "# Configs to copy\n\nEach file is a whole experiment; `--config configs/NAME.py` names it in any folder.\n"
    for file in sorted((ROOT / "configs").glob("*.py")):
        text += f"\n## {file.name}\n\n```python\n{file.read_text()}```\n"
    return text
