"""The parts of the policy `planner`: drafts of plans, what they are worth, and how they change."""
