"""Grading a class: submissions are found, run in sandboxes, marked, told to their learners and kept in a gradebook."""
