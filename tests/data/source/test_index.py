"""Values with an index of pandas are read by position only if the index does not object."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import hardsight as hs
from hardsight.data import group_columns, open_source
from hardsight.data.source import check_index
from hardsight.errors import DataError

NAMES = ["a", "b", "c", "d"]
FRAME = pd.DataFrame(np.eye(4), index=NAMES)
OTHER_ORDER = pd.Series([0, 1, 0, 1], index=["b", "a", "d", "c"])
SORTED = pd.Series([0, 0, 1, 1], index=[0, 2, 1, 3])


def test_an_index_in_another_order_than_the_data_s_is_refused():
    says = (
        r"the index of labels holds the entries of the data's index in another order.*"
        r"labels\.reset_index\(drop=True\).*labels\.reindex\(X\.index\)"
    )
    with pytest.raises(DataError, match=says):
        check_index(OTHER_ORDER, FRAME, option="labels")
    with pytest.raises(DataError, match=says):
        check_index(OTHER_ORDER, pd.Series(list("wxyz"), index=NAMES), option="labels")
    with pytest.raises(DataError, match="in another order"):
        check_index(SORTED, FRAME.reset_index(drop=True), option="labels")
    pairs = pd.MultiIndex.from_product([["a", "b"], [1, 2]])
    with pytest.raises(DataError, match="in another order"):
        check_index(pd.Series(range(4), index=pairs[::-1]), FRAME.set_index(pairs), option="labels")


def test_numbers_of_rows_in_another_order_are_refused_if_the_data_has_no_index():
    says = r"numbers 0 to 3 in another order.*reset_index\(drop=True\).*labels\.sort_index\(\)"
    for data in (FRAME.to_numpy(), FRAME.to_numpy().tolist(), "rows.npy"):
        with pytest.raises(DataError, match=says):
            check_index(SORTED, data, option="labels")


@pytest.mark.parametrize(
    ("values", "data"),
    [
        (OTHER_ORDER.reset_index(drop=True), FRAME),
        (OTHER_ORDER.reindex(NAMES), FRAME),
        (OTHER_ORDER, FRAME.to_numpy()),
        (OTHER_ORDER, FRAME.reset_index(drop=True)),
        (OTHER_ORDER[:3], FRAME),
        (SORTED.sort_index(), FRAME.to_numpy()),
        (pd.Series([0, 1], index=[7, 3]), FRAME.to_numpy()[:2]),
        (pd.Series([0, 1], index=[1.5, "a"]), FRAME[:2]),
        (OTHER_ORDER.to_numpy(), FRAME),
        (OTHER_ORDER.tolist(), FRAME),
        (None, FRAME),
    ],
)
def test_an_index_that_does_not_object_leaves_positions(values, data):
    check_index(values, data, option="labels")


def test_labels_and_groups_of_a_run_are_held_to_the_index_of_its_data():
    rows, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    frame = pd.DataFrame(rows, columns=["a", "b", "c"], index=[f"r{at}" for at in range(40)])
    ordered = pd.Series(labels, index=frame.index)
    turned, numbered = ordered[::-1], pd.Series(labels)[::-1]
    model = LogisticRegression().fit(frame, labels)
    with pytest.raises(DataError, match="the index of labels holds the entries"):
        hs.score(model, frame, labels=turned)
    with pytest.raises(DataError, match="the index of labels holds the numbers 0 to 39"):
        hs.score(None, rows.astype(np.float32), labels=numbered, out_of_sample=2)
    with pytest.raises(DataError, match=r"the index of group\['side'\] holds the entries"):
        hs.score(model, frame, labels=ordered, group={"side": turned})
    table = hs.score(model, frame, labels=ordered, group={"side": turned.reindex(frame.index)})
    np.testing.assert_array_equal(table.column("side"), labels)
    with pytest.raises(DataError, match=r"the index of group\['side'\] holds the numbers"):
        group_columns(open_source(rows, labels=labels), {"side": numbered})
