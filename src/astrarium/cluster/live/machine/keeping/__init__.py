"""Two processes keep a part of a run: the keeper, which may be root, and the runner, which is the owner.

The keeper touches nothing that a job can write, and the runner decides nothing: it starts the processes of
the job, writes their logs, and tells what it finds in the job's folder. They import nothing of ours but each
other: they are up at once, and run where nothing of ours is installed.
"""
