"""One thin command for each verb. Nothing heavy is imported until a verb runs."""
