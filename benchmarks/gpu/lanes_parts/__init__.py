"""What `lanes.py` measures, a module for each question, on a stage that is a GPU or pretends to be one."""
