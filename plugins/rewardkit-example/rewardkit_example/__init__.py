from rewardkit import hookimpl


@hookimpl
def rewardkit_verifiers(register):
    register("iso_day", "rewardkit_example.days:IsoDay", "The last ISO date is the reference day")


@hookimpl
def rewardkit_rewards(register):
    register("dated", "rewardkit_example.days:dated", "The text holds an ISO date")
    register("day_set", "rewardkit_example.days:day_set", "Preset: the right day, and a little for any date")


@hookimpl
def rewardkit_readers(register):
    register("daylog", "rewardkit_example.daylog:READER", "Lines of QUESTION => DAY => ANSWER")


@hookimpl
def rewardkit_backends(register):
    register("dry", "rewardkit_example.commands:train", "Trains nothing")


@hookimpl
def rewardkit_commands(register):
    register("today", "rewardkit_example.commands:today", "Print the day")
