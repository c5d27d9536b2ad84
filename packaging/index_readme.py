"""Makes README.md for the page of a package index, for scikit-build-core. Links into the repository do not work there, so the
page only has the text of these links. The page installs the package by its name and leaves out what needs a checkout."""

import re
from collections.abc import Mapping
from pathlib import Path

RELATIVE_LINK = re.compile(r"!?\[([^\[\]]*)\]\((?![a-z]+:)[^()]*\)")
NEEDS_CHECKOUT = re.compile(r"<!-- checkout:begin -->\n.*?<!-- checkout:end -->\n\n?", re.DOTALL)
INSTALL = re.compile(r"^pip install '\.\[all\]'.*$", re.MULTILINE)


def make_index_page(readme: str) -> str:
    page = INSTALL.sub(
        "pip install 'robocache[all]'    # all: the libraries of every format", NEEDS_CHECKOUT.sub("", readme)
    )
    return RELATIVE_LINK.sub(r"\1", page)


def dynamic_metadata(field: str, settings: Mapping[str, object]) -> dict[str, str]:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    return {"content-type": "text/markdown", "text": make_index_page(readme)}
