from __future__ import annotations

from pathlib import Path

import click

from hardsight.cli._command import Command, json_option, tell

_EPILOG = """\b
Examples:
  hardsight report run
  hardsight report run --out page.html --title "Photos of May"
"""


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="File to write; by default report.html or card.html in RUN.")  # fmt: skip
@click.option("--title", help="Headline of the page.")
@click.option("--overwrite", is_flag=True, help="Replace the file at --out.")
@json_option
def report(run: Path, out: Path | None, title: str | None, overwrite: bool) -> None:
    """Write one self-contained HTML page about RUN, the folder of any finished run.

    The page needs no network and no server, so it can be opened, mailed and archived. An earlier
    page in RUN is replaced; any other file only with --overwrite.
    """
    from hardsight.report import write_report

    page = write_report(run, out=out, title=title, overwrite=overwrite)
    tell({"page": page, "bytes": page.stat().st_size}, lambda: _print(page))


def _print(page: Path) -> None:
    click.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    click.echo(f"next: open it in a browser: {page.resolve().as_uri()}")
