"""Running a script under watch: its ranks are forked, what they do is recorded, what they leave is read."""
