from __future__ import annotations

import shlex
from pathlib import Path

import click

from hardsight.cli._command import Command

_EPILOG = """\b
Examples:
  hardsight review run
  hardsight review run --no-browser --port 9000
  hardsight review run --data /elsewhere/photos --card card
"""


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65535),
              help="Port of the page; if it is in use, the next free one.  "
              "[default: 8712]")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on. An address that other machines can reach requires "
              "--token.")  # fmt: skip
@click.option("--token", envvar="HARDSIGHT_TOKEN", show_envvar=True,
              help="Secret that every request must send; random by default.")  # fmt: skip
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME[:PORT]",
              help="Another host name of the page, such as that of a proxy.")  # fmt: skip
@click.option("--data", help="Where the data is now, if it has moved since it was scored.")
@click.option("--card", help="Folder that `hardsight evaluate` wrote for the same data, to show "
              "its Grad-CAM maps.")  # fmt: skip
@click.option(
    "--model",
    metavar="SPEC",
    help="Model that makes Grad-CAM maps, in place of the one that RUN names. Its code is run.",
)
@click.option("--weights", metavar="FILE", help="Weights of --model.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
def review(
    run: Path,
    port: int | None,
    host: str,
    token: str | None,
    allow_hosts: tuple[str, ...],
    data: str | None,
    card: str | None,
    model: str | None,
    weights: str | None,
    no_browser: bool,
) -> None:
    """Go through the suspects of RUN one by one in the browser, and fix their labels.

    Every decision is stored in RUN/review.sqlite before the next picture is shown. Press ? in the
    page to see the keys. Stop with Ctrl-C; the same command continues where you left off.
    """
    from hardsight.review import Review, open_in_browser

    app = Review(
        run, host=host, port=port, token=token, allow_hosts=allow_hosts, data=data,
        is_framed=False, card=card, model=model, weights=weights, owns_process=True,
    )  # fmt: skip
    for note in app.notes:
        click.echo(note)
    click.echo(f"open: {app.url}")
    step = ["hardsight", "patch", "export", str(run), "--out", "fixes.csv"]
    click.echo(f"next, once you have decided: {shlex.join(step)}")
    if not no_browser:
        open_in_browser(app.url)
    app.serve()
