"""A plugin as its author would write it: this module holds the hooks and imports nothing else of the plugin."""

from rewardkit import hookimpl


@hookimpl
def rewardkit_verifiers(register):
    register("iso_day", "rewardkit_dates.iso_day:IsoDay", "The last ISO date is the reference day")


@hookimpl
def rewardkit_rewards(register):
    register("mentions_year", "rewardkit_dates.rewards:mentions_year", "1 when a year is mentioned")
    register("iso_day_set", "rewardkit_dates.rewards:iso_day_set", "The day, and a little for its form")


@hookimpl
def rewardkit_commands(register):
    register("weekday", "rewardkit_dates.command:weekday", "Print the weekday of an ISO date.")
    register("broken_command", "rewardkit_dates.no_such_module:command", "Does not import.")
    register("odd_command", "rewardkit_dates.rewards:mentions_year", "Is no command.")
