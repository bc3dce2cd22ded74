"""What a pipeline of so many stages would give: a simulation of the schedule that the server runs.

`python -m sglang.plan_pipeline --help`; docs/planning.md says what is modelled and what is not.
"""
