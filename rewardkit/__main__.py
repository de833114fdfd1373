"""`python -m rewardkit` is `rewardkit`."""

from rewardkit.cli import main

if __name__ == "__main__":
    main()
