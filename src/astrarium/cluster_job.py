"""For a training script on a shared cluster: stop when asked, go on elsewhere as if nothing had happened.

    from astrarium import cluster_job

    with cluster_job.session() as session:
        state = session.restore() or fresh()
        for step in session.steps(1000):
            train(state, step)
            session.checkpoint(state)

Nothing but the standard library is imported; torch is used where it is.
"""

from astrarium.cluster.live.machine.session import STOPPED, Session, session

__all__ = ["STOPPED", "Session", "session"]
