"""Pure functions from evidence to a verdict: what must hold of a run, each said once.

A law takes a ``Trial`` and returns a ``Verdict``: it holds, it is broken (with the symptom in numbers), or nothing was
seen that could tell. What a law judges is behaviour: which images, gradients, weights and files, never how the script
is written.
"""
