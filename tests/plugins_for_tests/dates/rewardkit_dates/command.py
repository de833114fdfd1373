"""`rewardkit weekday DAY`."""

from datetime import date

import click


@click.command("weekday")
@click.argument("day")
def weekday(day):
    """Print the weekday of DAY, an ISO date."""
    click.echo(f"{date.fromisoformat(day):%A}")
