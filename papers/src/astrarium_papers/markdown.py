"""All reproductions on one page: how many numbers agree, then each number and each claim with its note."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from astrarium_papers.findings import Row
from astrarium_papers.registry import Reproduction

_PREFACE = """\
Made by

    {command}

Everything here is simulated but for what was measured on an H200, which says so (in `astrarium/sharing` it
stands in the paper's column). There is no network delay unless the row says otherwise; `elvinger/...` has the
thesis's network. Arrivals are drawn from fixed seeds: the same command gives the same numbers on any machine,
but for times by a machine's own clock, which say so. A *verdict* compares our number with the paper's within
the row's tolerance (of the number, or of the ends of a range): `agrees`, `higher` or `lower`; `no number`
where the paper drew a curve but printed none; `given`, and not counted, where agreeing says nothing, since it
follows from what we put in. Tolerances, and the thresholds that turn a claim's words into numbers, are ours,
and some were settled after the first results were seen: judge by the ratios. Rows that differ carry the
reason we know or suspect.

In `alpaserve/...` the paper's column may hold what the authors' public code gives or records, where the paper
draws but prints nothing: so in figures 5, 7, 8 and 17, in rows that say so. What `alpaserve/table2` compares
with is printed; its setting is from that code. *Fair* rows are judged by requests that plans were not made
with. Rows *as published* go the authors' ways: plans are judged by the requests that they were made with.

In `themis/...` rho is told under three definitions: `share` (section 3.2: against being alone on an equal
part of the cluster), `equation-1` (sections 4.3.1 and 4.3.2: against the whole cluster, times the number of
apps) and `demand` (as the authors' simulator has it: against the whole cluster, times the GPUs wanted over
those there). Themis bids by the one of the row, and by `share` where a row has none. Apps are drawn
anew, several times, and a number is the median over these seeds, with its range in the note. How apps were
made as small as in the paper is said in `astrarium_papers.themis._workloads`.
`shockwave/reference` needs a trace that is not part of this repository, and is skipped where it is absent.

In `fluid/...` tasks are ours, made after what the text says of them; budgets are those of the authors' public
code. Most figures are drawn and not printed: claims are what is said of them. A number is the mean over
seeds, each of which draws the same trials with and without Fluid. *Fluid* is our `dynamic-fluid`, which has
rules beyond the printed ones, told in its module; one of them was chosen by times to target, on other seeds.

`astrarium/...` is our own policy, which no paper has: its claims are what it was built to reach.
One reproduction alone, with its figure: `astrarium reproduce NAME`."""


PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Write tables anew where a page has a place for them, between `<!-- table: NAME -->` and `<!-- end -->`;
    others stay as they are."""

    def replaced(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        return f"{start}{tables[name]}\n{end}" if name in tables else match.group()

    return PLACE.sub(replaced, page)


def page(reproductions: Sequence[Reproduction], command: str) -> str:
    parts = ["# Reproductions", _PREFACE.format(command=command), overview(reproductions)]
    for reproduction in reproductions:
        parts.append(f"## {reproduction.name}: {reproduction.title}")
        parts.append(
            f"Skipped: {reproduction.skipped}." if reproduction.skipped else numbers(reproduction.rows)
        )
        if reproduction.claims:
            claims = [(claim.what, claim.verdict, claim.note) for claim in reproduction.claims]
            parts.append(table(("claim", "here", "note"), claims))
    return "\n\n".join(parts) + "\n"


def overview(reproductions: Sequence[Reproduction]) -> str:
    rows = []
    for reproduction in reproductions:
        numbers = [row.verdict for row in reproduction.rows if row.paper is not None]
        claims = [claim.verdict for claim in reproduction.claims]
        agree = "skipped" if reproduction.skipped else _count(numbers, "agrees")
        rows.append((f"`{reproduction.name}`", reproduction.title, agree, _count(claims, "holds")))
    return table(("reproduction", "what", "numbers that agree", "claims that hold"), rows)


def numbers(rows: Iterable[Row]) -> str:
    header = ("what", "paper", "ours", "ours/paper", "tolerance", "verdict", "note")
    cells = [
        (
            _what(row),
            _paper(row),
            _number(row.ours),
            _number(row.ratio),
            _tolerance(row),
            row.verdict,
            row.note,
        )
        for row in rows
    ]
    return table(header, cells)


def _tolerance(row: Row) -> str:
    return "" if row.paper is None else f"{100 * row.tolerance:.3g} %"


def _what(row: Row) -> str:
    return f"{row.what} ({row.unit})" if row.unit else row.what


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _paper(row: Row) -> str:
    if isinstance(row.paper, tuple):
        return " to ".join(_number(end) for end in row.paper)
    return _number(row.paper)


def _number(value: float | None) -> str:
    """Return three digits where there are decimals, whole numbers otherwise; nothing for nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _count(verdicts: Sequence[str], good: str) -> str:
    """Return how many hold of those that could have been otherwise."""
    given = verdicts.count("given")
    counted = len(verdicts) - given
    parts = [f"{verdicts.count(good)} of {counted}"] if counted else []
    return ", ".join([*parts, f"{given} given"] if given else parts)
