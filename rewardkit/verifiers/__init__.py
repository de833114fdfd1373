"""The verifiers that come with rewardkit, one a file. They are registered in `rewardkit/builtin.py`."""
