"""Seeds of the losses in the authors' workloads, job by job: `random_seed` of their files of jobs.

The files are those of kshiteejm/mltiply: configuration/jobs/online_workload_NAME.json, commit 312d34d. The
factors of a job's loss are drawn with its seed (`setting.loss_curve`).
"""

from __future__ import annotations

SEEDS = {
    "comparison": """
        45 96 14 45 67 76 21 51 88 62 27 79 63 0 60 21 43 54 64 33 32 67 22 4 54 54 16 83 52 78 27 81 77
        65 96 29 89 96 66 22 67 7 81 12 35 24 54 29 85 79 24 42 21 39 51 46 93 35 14 24 48 0 65 22 46 91
        66 94 74 67 84 67 50 0 39 84 13 3 4 48 17 81 58 10 25 13 74 57 9 4 63 12 5 49 70 68 58 64 61 19 36
        11 39 8 12 71 4 41 43 33 62 96 84
    """,
    "0network": """
        35 80 1 15 60 95 65 96 43 87 6 85 88 47 11 43 31 18 74 21 49 41 66 71 73 91 35 51 4 76 46 60 93 37
        97 12 10 53 30 48 60 38 4 79 26 99 81 45 36 93 88 34 99 93 61 20 19 7 3 26 89 6 89 97 62 83 18 76
        79 98 0 68 80 56 65 56 55 64 59 78 83 94 50 94 50 64 44 58 1 34 50 2 94 6 65 86 2 33 68 2 63 88 74
        62 64 68 37 32 11 7 99 99 99
    """,
    "100network": """
        6 78 18 95 85 45 16 14 88 89 68 68 12 22 83 30 97 2 67 17 57 79 28 95 2 4 79 83 76 59 42 12 67 53
        51 27 11 95 51 59 10 39 41 88 94 12 43 75 58 19 68 87 20 46 76 34 37 15 64 71 68 79 28 7 90 54 69
        26 98 15 70 31 32 96 43 63 46 3 53 90 58 57 6 86 44 17 60 48 26 29 77 78 19 15 71 23 57 73 77 49
        89 39 71 46 85 87 94 40 29 90 57 61 40
    """,
}


def loss_seeds(workload: str) -> dict[int, int]:
    """Return the seed of each job of a workload of theirs, by its number; none where they are not known."""
    return dict(enumerate(map(int, SEEDS.get(workload, "").split()), 1))
