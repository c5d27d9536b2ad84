"""Sphinx's configuration for the site. `./dev docs` builds the site into build/docs."""

import os
import re
from pathlib import Path

import robocache

project = "RoboCache"
author = "the RoboCache authors"
version = release = robocache.__version__
html_title = f"RoboCache {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_show_copyright = False
html_copy_source = False
pygments_style, pygments_dark_style = "default", "github-dark"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has the types
autodoc_default_options = {"members": True}
napoleon_use_rtype = napoleon_use_ivar = False
default_role = "literal"  # one backtick in a docstring is code
add_module_names = False

# READMEs beside the code are also pages of the site: docs/site includes them, and links to a README become links to its page.
PAGES = {"../examples/README.md": "site/cpp.md", "../src/robocache/README.md": "site/library.md"}
HERE = Path(__file__).resolve().parent


def remove_private_parts(header: str) -> str:
    """Returns a header without its includes, its namespace and its private parts."""
    text = (HERE.parent / "src" / header).read_text()
    text = re.sub(r"\n+( *) private:\n.*?(?=\n\1}|\n\1 public:)", "", text, flags=re.DOTALL)
    text = re.sub(r"^(#|namespace robocache {|}  // namespace robocache).*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def insert_headers(app, docname: str, source: list[str]) -> None:
    if docname == "site/headers":
        included = re.findall(r'#include "(.+)"', (HERE.parent / "src/robocache/robocache.hpp").read_text())
        parts = (f"## {header}\n\n```cpp\n{remove_private_parts(header)}\n```\n" for header in included)
        source[0] += "\n" + "\n".join(parts)


def replace_links(app, docname: str, source: list[str]) -> None:
    """Replaces each link out of docs with a link to a page of the site, or with the file's path if it is not a page."""
    page = f"{docname}.md"
    origin = next((origin for origin, included in PAGES.items() if included == page), None)
    folder = HERE if origin is None else (HERE / origin).parent
    if origin is not None:
        source[0] = (HERE / origin).read_text()
    elif docname.startswith("site/"):
        return

    def replace_link(match: re.Match[str]) -> str:
        text, path, anchor = match[1], (folder / match[2]).resolve(), match[3] or ""
        path_from_docs = os.path.relpath(path, HERE)
        target = PAGES.get(path_from_docs, path_from_docs)
        if target.startswith("../"):
            return f"`{os.path.relpath(path, HERE.parent)}`"
        return f"[{text}]({os.path.relpath(target, Path(page).parent)}{anchor})"

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)", replace_link, source[0])


def setup(app) -> None:
    app.connect("source-read", replace_links)
    app.connect("source-read", insert_headers)
