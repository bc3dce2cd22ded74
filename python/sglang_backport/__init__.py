"""Looks at an installed SGLang and gives its start-up profiling the Mamba slots back.

    python -m sglang_backport {check,diff,apply,undo} (--python INTERPRETER | --site-packages DIR)

Affected are the releases with dynamic chunking from 0.5.9 to 0.5.15.post1 (SGLang #31321): the
profiler never frees the Mamba slot of its requests. A second fault is in all releases from 0.5.7
to 0.5.17: when profiling fails on the first stage, the other stages wait for its samples for ever.
`diff` shows the lines that `apply` adds for both, `undo` takes them out again.

Nothing of the target is imported: its files are read, and lines are added by position in the syntax
tree. What has another shape is refused. There is no dependency beyond Python 3.10.
"""
