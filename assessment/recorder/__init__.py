"""What is loaded into a learner's process: it writes down what a script does, and changes nothing."""
