"""Checks that a C++ file includes the standard headers of what it uses, and uses what it names by `using`.

Where files are compiled together, or with headers that are compiled before, one lives on another's includes and no compiler
says so. A header counts as included where a project's header that the file includes has it.
"""

import re
import sys
from functools import cache
from pathlib import Path

ROOTS = [Path("src"), Path("tests/cpp")]
# The names in namespace std that a header is included for, as regular expressions.
NAMES = {
    "algorithm": r"all_of|any_of|clamp|copy(_n)?|count_if|equal|fill(_n)?|find_if|for_each|generate|lower_bound|max"
    r"|max_element|min|minmax_element|min_element|none_of|nth_element|ranges::\w+|remove_if|reverse|sort|stable_sort"
    r"|swap_ranges|transform|unique|upper_bound",
    "array": r"array",
    "atomic": r"atomic\w*|memory_order\w*",
    "bit": r"bit_cast|bit_ceil|bit_width|countl_zero|countr_zero|has_single_bit|popcount",
    "chrono": r"chrono::\w+",
    "cmath": r"acos|atan2|ceil|copysign|cos|exp|fabs|floor|fma|frexp|hypot|isfinite|isinf|isnan|ldexp|llround|log"
    r"|lround|nearbyint|nextafter|pow|round|scalbn|signbit|sin|sqrt|trunc",
    "condition_variable": r"condition_variable",
    "cstring": r"memcmp|memcpy|memmove|memset|strlen",
    "deque": r"deque",
    "filesystem": r"filesystem::\w+",
    "fstream": r"fstream|ifstream|ofstream",
    "functional": r"cref|function|greater|hash|less|plus|ref|reference_wrapper",
    "future": r"async|future|promise",
    "iomanip": r"setprecision|setw",
    "iostream": r"cerr|cout",
    "limits": r"numeric_limits",
    "list": r"list",
    "map": r"map|multimap",
    "memory": r"addressof|align|make_shared|make_unique\w*|shared_ptr|unique_ptr|weak_ptr",
    "mutex": r"call_once|lock_guard|mutex|once_flag|scoped_lock|unique_lock",
    "numbers": r"numbers::\w+",
    "numeric": r"accumulate|exclusive_scan|gcd|inclusive_scan|inner_product|iota|lcm|midpoint|partial_sum|reduce",
    "optional": r"nullopt\w*|optional",
    "random": r"bernoulli_distribution|mt19937\w*|normal_distribution|uniform_\w+_distribution",
    "regex": r"regex\w*",
    "set": r"set",
    "span": r"as_bytes|as_writable_bytes|span",
    "sstream": r"\w*stringstream",
    "stdexcept": r"invalid_argument|logic_error|out_of_range|runtime_error",
    "string": r"sto[dil]|stoll|string|to_string",
    "string_view": r"string_view",
    "thread": r"jthread|this_thread|thread",
    "tuple": r"apply|make_tuple|tie|tuple",
    "type_traits": r"common_type_t|conditional_t|decay_t|enable_if_t|false_type|integral_constant|is_\w+_v"
    r"|make_(un)?signed_t|remove_\w+_t|true_type|underlying_type_t",
    "unordered_map": r"unordered_map",
    "unordered_set": r"unordered_set",
    "utility": r"as_const|cmp_\w+|declval|exchange|forward|in_range|index_sequence|make_index_sequence|make_pair|move|pair"
    r"|swap",
    "variant": r"get_if|holds_alternative|variant|visit",
    "vector": r"vector",
}
USES = {header: re.compile(rf"\bstd::(?:{names})(?!\w)") for header, names in NAMES.items()}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
USING = re.compile(r"^using (?:[\w:]+::)?(\w+);", re.MULTILINE)
# In what is left a name is used.
NO_CODE = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|^\s*#\s*include[^\n]*', re.MULTILINE)


@cache
def included(path: Path) -> frozenset[str]:
    """The headers from outside that `path` and the project's headers in it include."""
    headers = set()
    for kind, name in INCLUDE.findall(path.read_text()):
        if kind == "<":
            headers.add(name)
            continue
        for folder in (Path("src"), Path(), path.parent):
            if (folder / name).is_file():
                headers |= included(folder / name)
                break
    return frozenset(headers)


def mistakes(path: Path) -> list[str]:
    """What is wrong with the uses of one file."""
    text = path.read_text()
    code = NO_CODE.sub("", text)
    found = [
        f"{name}: a source is compiled, not included" for _, name in INCLUDE.findall(text) if name.endswith(".cpp")
    ]
    for header, uses in USES.items():
        if header not in included(path) and (use := uses.search(code)):
            found.append(f"{use[0]}: include <{header}>")
    for name in USING.findall(code):
        if len(re.findall(rf"\b{name}\b", code)) == 1:
            found.append(f"using {name}: nothing here uses it")
    return found


def main() -> int:
    files = sorted(path for root in ROOTS for path in root.rglob("*") if path.suffix in (".cpp", ".hpp"))
    wrong = [f"{path}: {mistake}" for path in files for mistake in mistakes(path)]
    print(*wrong, f"uses: {len(files)} files, {len(wrong)} mistakes", sep="\n")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
