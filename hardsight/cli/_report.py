from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="Where to write the page; in RUN by default.")  # fmt: skip
@click.option("--title", help="Headline of the page.")
@click.option("--overwrite", is_flag=True, help="Replace the file at --out.")
def report(run: Path, out: Path | None, title: str | None, overwrite: bool) -> None:
    """Write one self-contained HTML page about RUN, the folder of any finished run.

    The page needs no network and no server: open it, mail it, archive it. The page in RUN itself is
    replaced unasked, any other file only with --overwrite.
    """
    from hardsight.report import write_report

    page = write_report(run, out=out, title=title, overwrite=overwrite)
    click.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    click.echo(f"next: open it in a browser: {page.resolve().as_uri()}")
