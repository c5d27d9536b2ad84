"""Sums the JUnit files of a test run into one final line, and fails if any test or part of the run failed.

usage: count_tests.py RESULTS [FAILED_PART...]

RESULTS holds a folder of .xml files for each part. A part named as failed without a failing test (its build failed, it
crashed) and a part without any test each count as one failed test.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count_results(part: Path) -> tuple[int, int, int]:
    """Returns the numbers of passed, failed and skipped tests of one part."""
    passed = failed = skipped = 0
    for report in sorted(part.glob("*.xml")):
        root = ElementTree.parse(report).getroot()
        # tests/python/conftest.py writes how many tests it did not collect because they need CUDA.
        skipped += sum(int(entry.get("value", 0)) for entry in root.iter("property") if entry.get("name") == "not_run")
        for case in root.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                skipped += 1
            else:
                passed += 1
    return passed, failed, skipped


def main() -> int:
    results, failed_parts = Path(sys.argv[1]), sys.argv[2:]
    totals = [0, 0, 0]
    for part in sorted(path for path in results.iterdir() if path.is_dir()):
        passed, failed, skipped = count_results(part)
        remark = ""
        if part.name in failed_parts and failed == 0:
            failed, remark = 1, "  did not finish: see its output above"
        elif passed + failed + skipped == 0:
            failed, remark = 1, "  ran no test"
        print(f"{part.name:10} {passed:6} passed {failed:4} failed {skipped:4} skipped{remark}")
        totals = [total + n for total, n in zip(totals, (passed, failed, skipped), strict=True)]
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
