"""Pure functions from evidence to a verdict: what must hold of a run, each said once."""
