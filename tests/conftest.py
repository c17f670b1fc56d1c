"""Rules for every test: how skips are treated, and hypothesis without deadlines.

A test that can't run on this machine skips with a reason that begins with "cannot run here: ". Tests marked `slow`
are left out unless everything was asked for (./tools/test --all); then any other skip is a failure, so that a skip
never hides a test that could have run.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

CANNOT_RUN = "cannot run here: "
SLOW = "slow: ./tools/test --all runs it"

# Removed from the environment: programs under test take every ZHC_ variable for a configuration value.
IS_EVERYTHING = os.environ.pop("ZHC_TEST_ALL", "") == "1"

if os.environ.pop("ZHC_REQUIRE_SYSTEM", "") == "1":
    os.environ["TESTS_REQUIRE_SYSTEM"] = "1"  # tests/system/nspawn.py

# Where a desktop keeps sockets by the daemon's name: daemons under test have the same few names, and run side by side.
for variable in ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"):
    os.environ.pop(variable, None)

# A shell ignores Ctrl-C for what it starts in the background, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A newcomer's run looks at fewer examples: it has three minutes.
settings.register_profile("untimed", deadline=None, print_blob=True, max_examples=100 if IS_EVERYTHING else 15)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IS_EVERYTHING:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=SLOW))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was left out, a line for each reason: dozens of GPU tests would bury the rest one by one."""
    reasons = Counter(_skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if not reasons:
        return
    terminalreporter.section("not run here")
    for reason, count in sorted(reasons.items()):
        is_accident = reason != SLOW and not reason.startswith(CANNOT_RUN)
        hint = "; ./tools/test --all counts it as a failure" if is_accident else ""
        terminalreporter.line(f"{count:4} {reason}{hint}")


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where everything was asked for and the test could have run."""
    if not (IS_EVERYTHING and report.skipped):
        return
    reason = _skip_reason(report)
    if not reason.startswith(CANNOT_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped although everything was asked for: {reason}"
