import click


@click.command("today")
def today():
    """Print the day."""
    click.echo("2024-02-29")


def train(path, options):
    """A backend is called with the path of a training file and the options of `rewardkit train`."""
    click.echo(f"{path.name}: nothing to train")
    return 0
