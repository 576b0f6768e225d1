from __future__ import annotations

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
              help="Of the page; the next free one if it is in use.  [default: 8712]")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; one beyond this machine asks for --token.")  # fmt: skip
@click.option("--token", envvar="HARDSIGHT_TOKEN", show_envvar=True,
              help="What requests must bring; a random one by default.")  # fmt: skip
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME[:PORT]",
              help="A further name of the page, such as that of a proxy.")  # fmt: skip
@click.option("--data", help="Where the data lies now, if not where it was scored.")
@click.option("--card", help="Folder of `hardsight evaluate` on the same data: its Grad-CAM maps.")
@click.option(
    "--model",
    metavar="SPEC",
    help="Makes Grad-CAM maps, in place of the model that the run names; its code is run.",
)
@click.option("--weights", metavar="FILE", help="Of --model.")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
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
    """Look at the suspects of RUN one by one and fix their labels, in the browser.

    Every decision is stored in RUN/review.sqlite before the next picture shows. Press ? in the
    page for the keys. Ctrl-C ends it; start it again to go on.
    """
    from hardsight.review import Review, open_in_browser

    app = Review(
        run, host=host, port=port, token=token, allow_hosts=allow_hosts, data=data,
        is_framed=False, card=card, model=model, weights=weights, owns_process=True,
    )  # fmt: skip
    for note in app.notes:
        click.echo(note)
    click.echo(f"open: {app.url}")
    if not no_browser:
        open_in_browser(app.url)
    app.serve()
