"""Where the `laval` command starts. It lies beside the package, for this module's presence tells the package to wait
with its imports: help takes no torch, and a verb imports what it needs."""


def main() -> None:
    """The `laval` command."""
    from laval.commands import app

    app()
