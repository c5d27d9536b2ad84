"""Makes README.md for the page of a package index, for scikit-build-core. Links into the repository do not work there, so the
page only has the text of these links."""

import re
from collections.abc import Mapping
from pathlib import Path

RELATIVE_LINK = re.compile(r"!?\[([^\[\]]*)\]\((?![a-z]+:)[^()]*\)")


def remove_relative_links(markdown: str) -> str:
    return RELATIVE_LINK.sub(r"\1", markdown)


def dynamic_metadata(field: str, settings: Mapping[str, object]) -> dict[str, str]:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    return {"content-type": "text/markdown", "text": remove_relative_links(text)}
