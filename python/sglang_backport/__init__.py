"""Looks at an installed SGLang and gives its start-up profiling the Mamba slots back.

    python -m sglang_backport {check,diff,apply,undo} (--python INTERPRETER | --site-packages DIR)

Affected are the releases with dynamic chunking from 0.5.9 to 0.5.15.post1 (SGLang #31321). Nothing
of the target is imported: its files are read, and found places in them are changed by position in
the syntax tree. It has no dependency beyond Python 3.10.
"""
