"""README.md for the page of a package index, as scikit-build-core asks for it: links into the repository lead nowhere
there, so their text alone stays."""

import re
from collections.abc import Mapping
from pathlib import Path

RELATIVE_LINK = re.compile(r"!?\[([^\[\]]*)\]\((?![a-z]+:)[^()]*\)")


def without_relative_links(markdown: str) -> str:
    return RELATIVE_LINK.sub(r"\1", markdown)


def dynamic_metadata(field: str, settings: Mapping[str, object]) -> dict[str, str]:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    return {"content-type": "text/markdown", "text": without_relative_links(text)}
