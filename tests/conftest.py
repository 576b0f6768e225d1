"""Settings of every test: the same examples each time, one thread unless told otherwise."""

import atexit
import functools
import gc
import importlib.metadata
import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import _extras, _forks, _seeds

# No deadline and no check of speed: a busy machine must not turn a test red.
settings.register_profile(
    "hardsight",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hardsight")

# Tensors of tests are tiny: more threads only wait for each other. No test may need one, though.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# A test can end a process but not cut the power, so waiting for the disk would show nothing, and
# it took longer than all training. What is synced, and when, tests/run_folder checks.
os.fsync = os.fstat  # still refuses a descriptor that is not open

# No test writes into the cache of whoever runs it; those of the cache have a folder of their own.
os.environ["HARDSIGHT_CACHE"] = "off"

# Lightning asks all installed packages for plugins, a file each, whenever a run begins.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

_seeds.shift_seeds()

gc.disable()  # until everything is imported: what modules make stays, and there is much of it


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Starts processes that may be killed; see :class:`tests._forks.Forks`."""
    found = _forks.Forks(tmp_path_factory.mktemp("forks"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One browser for all pages; tests set size and colours themselves."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking",
                 "disable-component-update", "disable-sync", "no-first-run",
                 "allow-file-access-from-files",
                 f"user-data-dir={tmp_path_factory.mktemp('profile')}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def pytest_collection_modifyitems(items):
    """Tests of stored numbers have no other seed."""
    for item in items:
        if _seeds.NUMBER and item.get_closest_marker("pinned"):
            item.add_marker(pytest.mark.skip(reason="compares with numbers of one seed"))


def pytest_collection_finish():
    """Leave what was imported out of every later search for garbage, which took half a second."""
    gc.collect()
    gc.freeze()
    # ten times as rarely through everything: a test leaves little that only this search would find
    gc.set_threshold(700, 10, 100)
    gc.enable()
    atexit.register(gc.unfreeze)  # or libraries tell of what is left over at the end


def pytest_addoption(parser):
    parser.addoption(
        "--core",
        action="store_true",
        help="skip what needs an extra that is not installed, instead of failing",
    )


def pytest_configure(config):
    if config.getoption("--core"):
        _extras.watch_refusals()


def pytest_runtest_logstart():
    _extras.refused.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return _without_extras(item.config, report, call, item.path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _without_extras(collector.config, report, getattr(report, "call", None), collector.path)


def _without_extras(config, report, call, path):
    if config.getoption("--core") and report.failed and call is not None and call.excinfo:
        missing = _extras.missing_extra(call.excinfo.value, str(report.longrepr))
        if missing is not None:
            report.outcome, report.longrepr = "skipped", (str(path), 1, missing)
    return report
