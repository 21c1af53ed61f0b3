"""How Sphinx builds the site: the Markdown of the repository where it lies, notebooks, and the reference from docstrings.

Source is the whole repository, so that the relative links of every page hold on the site as they do on GitHub:

    python -m sphinx -W --keep-going -n -q -c docs/site . SITE

Nothing on the site is fetched from elsewhere. With ``-W`` a link or an anchor that leads nowhere fails the build, and so does a page that
``navigation.toml`` does not name.
"""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from parsim.version import __version__  # noqa: E402

with (HERE / "navigation.toml").open("rb") as _file:
    NAVIGATION: dict[str, list[str]] = tomllib.load(_file)["navigation"]

project = "parsim"
author = "The parsim authors"
copyright = author  # noqa: A001 - Sphinx's name
release = __version__
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
include_patterns = ["*.md", "docs/**.md", "notebooks/*", "validation/**README.md", "tests/corpus/README.md"]
exclude_patterns = [".*", ".*/**", "parsim/**", "parsim-out/**"]
suppress_warnings = ["myst.header"]  # a page may begin with a table under its title

myst_heading_anchors = 4
autodoc_typehints = "description"
default_role = "code"  # single backticks of docstrings
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
nitpick_ignore_regex = [("py:.*", ".*")]  # classes of other packages have pages elsewhere

highlight_language = "none"  # a block that names no language has none
html_theme = "furo"
html_title = "parsim"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

_FOLDER = re.compile(r"(\]\()([\w./-]+)(\))")


def notebook_as_markdown(text: str) -> str:
    """A notebook as a page: its words and its code. Outputs are not kept in the repository; the tests run every cell."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"]).strip("\n")
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(page))
    if path.suffix == ".ipynb":
        source[0] = notebook_as_markdown(source[0])

    def readme_of(link: re.Match[str]) -> str:
        inside = (path.parent / link[2] / "README.md").is_file()
        return f"{link[1]}{link[2].rstrip('/')}/README.md{link[3]}" if inside else link[0]

    source[0] = _FOLDER.sub(readme_of, source[0])  # a folder's page is its README, as on GitHub
    if page == root_doc:
        source[0] += "".join(_toctree(caption, pages) for caption, pages in NAVIGATION.items())


def _toctree(caption: str, pages: list[str]) -> str:
    lines = "\n".join("/" + page for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{lines}\n```\n"


def _front_page(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)
    app.connect("build-finished", _front_page)
