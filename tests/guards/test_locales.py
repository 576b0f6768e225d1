"""Names of files in every locale: pyarrow takes them as UTF-8, so that it gets open files alone."""

from __future__ import annotations

import ast
from pathlib import Path

HARDSIGHT = Path(__file__).parents[2] / "hardsight"
# function -> position of what it opens
OPENS = {"write_table": 1, "ParquetWriter": 0, "to_parquet": 0}
READERS = {"ParquetFile", "read_parquet", "read_schema", "read_metadata"}
PLACE = "run_folder/_files.py"  # has the one reader


def opened_by_name(code: str) -> list[str]:
    """Calls by which pyarrow opens a file by itself: to read, or to write without a sink."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of, name = node.func.value, node.func.attr
        if isinstance(of, ast.Name) and of.id == "writer":
            continue  # a group of rows, into a file that is open
        if name in OPENS and [ast.unparse(given) for given in node.args][OPENS[name]] != "sink":
            found.append(ast.unparse(node))
        if name in READERS and isinstance(of, ast.Name) and of.id in ("pq", "pd", "parquet"):
            found.append(ast.unparse(node))
    return found


def test_pyarrow_opens_no_file_by_its_name():
    places = {
        file.relative_to(HARDSIGHT).as_posix(): calls
        for file in HARDSIGHT.rglob("*.py")
        if (calls := opened_by_name(file.read_text(encoding="utf-8")))
    }
    assert set(places) == {PLACE}
    assert all("ParquetFile" in call for call in places[PLACE])


def test_a_file_that_is_opened_by_its_name_is_found():
    assert opened_by_name("pq.write_table(rows, partial)") == ["pq.write_table(rows, partial)"]
    assert opened_by_name("pq.ParquetWriter(file, schema)")
    assert opened_by_name("frame.to_parquet(target, index=False)")
    assert opened_by_name("pq.ParquetFile(file)")
    assert not opened_by_name("pq.write_table(rows, sink)\nwriter.write_table(rows)")
