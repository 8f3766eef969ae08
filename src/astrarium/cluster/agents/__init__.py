"""The agents of apps bid in the auctions of Themis (section 4.3): one for each app that wants GPUs.

`self_report` is what an app says of itself, `remaining_work` how long it then takes on GPUs of a `layout`,
`patterns` are the GPUs that an `agent` bids on, and `participants` are all apps of a run with their agents.
"""
