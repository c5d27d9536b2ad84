"""Checks that each name is defined once in its namespace, in all of src/, including CUDA.

Two definitions of a type, inline function or inline variable in two files break the one-definition rule silently: each file
compiles, and the linker keeps one of them. -Wodr only reports them if g++ compiles both files with LTO into one library. This
script reads the sources, so it also covers files that nvcc compiles. Unnamed namespaces are separate for each file.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

SOURCES = Path("src/robocache")
# Text that is not code but may contain a brace: comments, strings, characters, preprocessor lines.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>\w*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'"""
    r"""|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE,
)
NAMESPACE = re.compile(r"namespace ?(?P<name>[\w:]*)$")
TYPE = re.compile(
    r"^(?:template ?<.*?> )?(?:struct|class|union|enum)(?: class| struct)? (?:(?:alignas|__align__) ?\(.*\) )?"
    r"(?P<name>[\w:]+)(?: final)?(?: : .*)?$"
)
VARIABLE = re.compile(r"^inline .*?(?P<name>\w+)(?:\[.*\])?(?: =.*)?$")
MAY_BE_IN_SEVERAL_FILES = re.compile(r"\b(?:inline|constexpr|template)\b")


def find_defined_name(head: str) -> str | None:
    """Returns the definition in `head`, the text before a brace or a semicolon: a name, or a function with its parameters."""
    if match := TYPE.search(head):
        return match["name"]
    if "(" in head:
        return head if MAY_BE_IN_SEVERAL_FILES.search(head) else None  # two other functions of one name would not link
    match = VARIABLE.search(head)
    return match and match["name"]


def find_definitions(text: str) -> set[str]:
    """Returns the definitions of one file, each with its namespace, without the contents of unnamed namespaces."""
    names = set()
    scopes: list[str | None] = []  # the name of each namespace; None for any other brace
    head = ""
    for token in re.findall(r"[{};]|[^{};]+", NO_CODE.sub(" ", text)):
        if token not in "{};":
            head = " ".join(token.split())
            continue
        namespace = NAMESPACE.search(head) if token == "{" else None
        if (
            all(scopes)
            and not namespace
            and (token == "{" or head.startswith("inline "))
            and (name := find_defined_name(head))
        ):
            names.add("::".join([*scopes, name]))
        if token == "{":
            scopes.append(namespace["name"] if namespace and None not in scopes else None)
        elif token == "}":
            scopes.pop()
        head = ""
    return names


def main() -> int:
    files_by_name = defaultdict(set)
    files = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".hpp", ".cpp", ".cu", ".cuh"))
    for path in files:
        for name in find_definitions(path.read_text()):
            files_by_name[name].add(path)
    repeated = {name: paths for name, paths in files_by_name.items() if len(paths) > 1}
    for name, paths in sorted(repeated.items()):
        print(f"{name}: defined in {' and '.join(map(str, sorted(paths)))}")
    print(f"one definition: {len(files)} files, {len(files_by_name)} names, {len(repeated)} defined twice")
    return 1 if repeated or not files_by_name else 0


if __name__ == "__main__":
    sys.exit(main())
