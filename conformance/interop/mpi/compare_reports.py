"""Compares two runs of mpi4py's own tests, over efa and over efa_rs: what fails over efa_rs has to fail over efa.

usage: compare_reports.py EFA EFA_RS, the directories with the reports of the ranks
"""

import re
import sys
from pathlib import Path

# A run with fewer tests than this is incomplete.
LEAST = 2000


def report(directory):
    """The number of tests of each rank, and the tests that fail on at least one."""
    ran, failed = [], set()
    for rank in ("0", "1"):
        file = Path(directory, rank)
        text = file.read_text(errors="replace")
        end = re.search(r"^Ran (\d+) tests in .*\n\s*(?:OK|FAILED)(.*)$", text, re.M)
        assert end, f"rank {rank} did not come to its end: {file}"
        ran.append(int(end[1]))
        failures = re.findall(r"^(?:FAIL|ERROR): (.*)", text, re.M)
        count = sum(int(number) for number in re.findall(r"(?:\(|, )(?:failures|errors)=(\d+)", end[2]))
        assert len(failures) == count, f"{count} tests fail, and the report has {failures}"
        failed.update(failures)
    assert min(ran) >= LEAST, f"{min(ran)} tests were run, and there are more than {LEAST}: {directory}"
    return min(ran), failed


(stock, stock_failed), (ran, failed) = map(report, sys.argv[1:])
assert ran == stock, f"{ran} tests, over efa {stock}"
assert failed <= stock_failed, f"these fail over efa_rs alone: {failed - stock_failed}"
print(f"{ran} tests, {len(failed)} fail, all of them over efa as well")
