"""The demo: what it writes, what it finds, and its report in a real browser."""

from __future__ import annotations

import errno
import shutil
import time

import numpy as np
import pytest
from click.testing import CliRunner
from selenium.webdriver.common.by import By

import hardsight as hs
from hardsight.cli import main
from hardsight.errors import OutputError, RunExistsError
from hardsight.run.demo import run_demo
from hardsight.run.evaluate import Explainer
from tests.review.made import App


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "demo"
    result = CliRunner().invoke(main, ["demo", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_the_demo_writes_tables_reports_and_a_checkpoint(demo):
    folder, _ = demo
    for name in ("model.safetensors", "train.npz", "train/report.html", "heldout/report.html"):
        assert (folder / name).stat().st_size > 1000
    train, heldout = hs.read_table(folder / "train"), hs.read_table(folder / "heldout")
    assert (len(train), len(heldout)) == (1348, 449)
    assert train.metadata["sample"] == "in-sample"
    assert {"suspicion", "aum", "forgetting_events", "mean_avh"} <= set(train.scores)
    assert heldout.metadata["sample"] == "out-of-sample"
    assert (heldout.column("label") == heldout.column("prediction")).mean() > 0.95


def test_the_demo_prints_what_it_found_and_what_to_run_next(demo):
    folder, text = demo
    assert "The ten labels most likely to be wrong" in text
    assert text.count("yes") >= 9  # planted errors among the ten suspects
    assert "planted label errors: 54" in text
    # what README.md says of any machine; chance gives 2
    for judge, least in (("doubt averaged over training: ", 48), ("AVH after training: ", 30)):
        assert int(text.split(judge)[1].split()[0]) >= least
    assert "nothing says what" not in text  # advice about a model that is our own
    words = " ".join(text.split())
    command = words.split("in place of these: ")[1].split(" hardsight report")[0].split()
    out = folder.parent / "again"
    again = CliRunner().invoke(main, [*command[1:-1], str(out)])
    assert again.exit_code == 0, again.output
    assert "nothing says what" not in again.output
    stored = hs.read_table(folder / "train")
    np.testing.assert_allclose(
        hs.read_table(out).column("avh"), stored.column("avh"), rtol=1e-5, atol=1e-6
    )


def test_the_demo_ends_with_the_review_of_its_planted_errors(demo, tmp_path):
    folder, text = demo
    command, _, run = text.splitlines()[-1].strip().rpartition(" ")
    assert (command, run) == ("hardsight review", str(folder / "train"))
    app = App(shutil.copytree(run, tmp_path / "train"), data=folder / "train.npz")
    until = time.monotonic() + 30  # curves are read in the background
    while not (items := app.queue(count=10)["items"])[0]["curve"] and time.monotonic() < until:
        time.sleep(0.1)
    app.close()
    printed = hs.read_table(folder / "train").suspects(10)["index"].tolist()  # "yes" for nine
    assert [item["index"] for item in items] == printed
    assert all(item["suggestion"] >= 0 and item["reason"] and item["curve"] for item in items[:9])
    assert all(len(item["nearest"]) >= 5 for item in items)


def test_the_review_of_the_demo_can_show_where_its_model_looked(demo):
    folder, _ = demo
    explainer = Explainer(hs.read_table(folder / "train"), {"data": str(folder / "train.npz")})
    picture, label = explainer.explained(7, "7")
    explainer.close()
    assert picture
    assert 0 <= label < 10


def test_a_second_demo_replaces_the_first_and_nothing_else(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(RunExistsError, match=r"files that are not a demo \(thesis\.txt\); choose"):
        run_demo(tmp_path / "mine", epochs=1)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    first = run_demo(tmp_path / "demo", epochs=1, seed=1)
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    again = run_demo(tmp_path / "demo", epochs=1, seed=1)
    assert first.train.to_pandas().equals(again.train.to_pandas())  # NaN equals NaN here
    np.testing.assert_array_equal(first.planted, again.planted)
    assert (tmp_path / "demo" / "notes.txt").read_text() == "mine"


def test_the_demo_report_opens_in_a_browser_in_light_and_dark(demo, chromium):
    bright = {"name": "prefers-color-scheme", "value": "light"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [bright]})
    page = (demo[0] / "train" / "report.html").as_uri()
    chromium.get(page)
    chromium.execute_script("localStorage.clear()")  # of pages that other tests opened
    chromium.get(page)
    assert chromium.find_element(By.TAG_NAME, "h1").text == "Digits with planted label errors"
    body = chromium.find_element(By.TAG_NAME, "body")
    for words in ("Accuracy", "Hardest overall", "Most confidently wrong", "Classes"):
        assert words in body.text
    pictures = chromium.find_elements(By.CSS_SELECTOR, "#examples img")
    assert len(pictures) >= 24
    assert chromium.execute_script(
        "return [...document.querySelectorAll('#examples img')]"
        ".every(i => !i.complete || i.naturalWidth === 8)"
    )
    light = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
    chromium.find_element(By.XPATH, "//button[contains(., 'Dark')]").click()
    dark = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert light != dark


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(sink, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.savez", full)
    with pytest.raises(OutputError, match="No space left on device; free some space or choose"):
        run_demo(tmp_path / "demo")
