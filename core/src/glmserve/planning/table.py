"""A plan for people: groups of aligned lines, on one screen where a model is known."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from .budget import GIB, Budget
from .components import Component
from .plan import Figures, Plan
from .subject import NEXT_TOKEN

MIB = 2**20
LABEL = 14
"""Columns of the words at the left."""
WIDTH = 100
"""Columns at which prose is folded; a table is never folded."""

Row = Sequence[str]


def labelled(label: str, text: str) -> Iterator[str]:
    """A label and its text, folded; nothing when there is no text."""
    for i, line in enumerate(textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False)):
        yield f"{'' if i else label:<{LABEL}}{line}"


def render(plan: Plan) -> Iterator[str]:
    """The lines of a plan."""
    yield from labelled("profile", plan.profile)
    yield from labelled("model", f"{plan.served_name} from {plan.source}")
    if plan.figures is None:
        yield from labelled("", "not here yet, so that its memory is not known until it is")
    else:
        yield from labelled("", _size_of_model(plan, plan.figures))
    yield from labelled("seams", " · ".join(f"{kind} {name}" for kind, name in plan.providers.items()))
    yield from labelled("missing", ", ".join(map(str, plan.missing)))
    pool = f"pool of {plan.kv_tokens:,} in {plan.kv_dtype}, {plan.max_sequences} conversations at once"
    yield from labelled("context", f"{plan.max_context:,} tokens, {pool}")
    many = f"tensor {plan.tensor}, context {plan.context}: " if len(plan.ranks) > 1 else ""
    yield from labelled("ranks", f"{many}{', '.join(plan.ranks)} on {plan.device}")
    if plan.figures is not None:
        yield from _figures(plan, plan.figures)


def _size_of_model(plan: Plan, figures: Figures) -> str:
    said = f"{_count(figures.total('parameters'))} parameters, {_count(figures.total('active_parameters'))} active"
    where = "" if plan.present else "not here, figures "
    return f"{said} a token, {_decimal(figures.total('stored_bytes'))} stored; {where}from {figures.headers}"


def _figures(plan: Plan, figures: Figures) -> Iterator[str]:
    yield ""
    yield from _weights(figures, loaded=plan.providers["drafter"] == NEXT_TOKEN)
    yield ""
    yield from _memory(plan, figures)
    yield ""
    yield from _cache(plan, figures)
    if figures.traffic:
        yield ""
        yield from _traffic(figures)
    if figures.decode:
        yield ""
        yield from _decode(figures)
    yield ""
    yield from labelled("disk", _disk(figures))


def _weights(figures: Figures, loaded: bool) -> Iterator[str]:
    """`loaded`: the ranks hold the next-token layers, because they draft."""
    rows = [
        (
            str(part.component),
            _count(part.parameters),
            _decimal(part.stored_bytes),
            _binary(part.rank_bytes) if loaded or part.component is not Component.MTP else "not loaded",
            _decimal(part.read_bytes) if part.read_bytes else "-",
        )
        for part in figures.weights
    ]
    held = figures.total("rank_bytes", mtp=loaded)
    total = [figures.total(of) for of in ("parameters", "stored_bytes", "read_bytes")]
    rows.append(("all", _count(total[0]), _decimal(total[1]), _binary(held), _decimal(total[2])))
    yield from _table(("weights", "parameters", "stored", "held by a rank", "read a token"), rows)


def _memory(plan: Plan, figures: Figures) -> Iterator[str]:
    memory = figures.memory
    drafter = plan.providers["drafter"]
    rows: list[tuple[str, ...]] = [("weights", _gib(memory.weights_bytes))]
    # Of a drafter that is not installed, only facts tell whether it brings a model.
    unknown = not memory.drafter_bytes and drafter != NEXT_TOKEN and any(one.kind == "drafter" for one in plan.missing)
    if memory.drafter_bytes or unknown:
        rows.append((f"drafter {drafter}", "not known" if unknown else _gib(memory.drafter_bytes)))
    rows.append((f"cache, {plan.kv_dtype}, full", _gib(memory.kv_bytes)))
    rows += [(f"reserve: {name.replace('_', ' ')}", _gib(nbytes)) for name, nbytes in memory.reserve_bytes.items()]
    rows.append((f"of {_gib(memory.device_bytes)}", *_verdict(memory)))
    rows += [(f"with drafter {name}", *_verdict(other)) for name, other in figures.drafters.items()]
    yield from _table(("memory of a rank", "", ""), [(*row, "")[:3] for row in rows])
    helping = [remedy for remedy in figures.remedies if remedy.fits] or figures.remedies
    for i, remedy in enumerate(helping):
        change = " and ".join(f"{key} = {value}" for key, value in remedy.change.items())
        end = f"{_gib(remedy.left_bytes)} left" if remedy.fits else f"{_gib(-remedy.left_bytes)} short, alone"
        yield from labelled("" if i else "  change", f"{change}: {end}")


def _verdict(memory: Budget) -> tuple[str, str]:
    return _gib(abs(memory.left_bytes)), "left: fits" if memory.fits else "short: does not fit"


def _cache(plan: Plan, figures: Figures) -> Iterator[str]:
    alone = plan.tensor == 1
    rows = [
        (
            row.kv_dtype + (" *" if row.kv_dtype == plan.kv_dtype else ""),
            f"{row.token_bytes:,} B",
            _binary(row.whole_pool_bytes),
            f"{row.dealt_token_bytes:,.0f} B",
            _binary(row.dealt_pool_bytes),
        )
        for row in figures.cache
    ]
    columns = ("cache", "a token", "full pool", f"a token, dealt over {plan.tensor}", "full pool, dealt")
    yield from _table(columns[:3] if alone else columns, [row[:3] if alone else row for row in rows])


def _traffic(figures: Figures) -> Iterator[str]:
    rows = [
        (
            c.name,
            f"{c.count:,}",
            _decimal(c.payload_bytes),
            _decimal(c.token_payload_bytes),
            _decimal(c.token_sent_bytes),
        )
        for c in figures.traffic
    ]
    payload, sent = (sum(getattr(c, of) for c in figures.traffic) for of in ("token_payload_bytes", "token_sent_bytes"))
    rows.append(("all", f"{sum(c.count for c in figures.traffic):,}", "", _decimal(payload), _decimal(sent)))
    yield from _table(("exchanges of a token", "times", "payload", "a token", "sent by a rank"), rows)
    chunk = f"a prompt chunk of {figures.prefill_rows:,} rows"
    yield from labelled("", f"{chunk}: {_decimal(figures.prefill_sum_bytes)} a layer sum")


def _decode(figures: Figures) -> Iterator[str]:
    rows = [
        (
            f"after {one.context_tokens:,} tokens",
            _decimal(one.weights_bytes + one.cache_bytes),
            f"{one.roof_s * 1e3:.1f} ms",
            f"{one.roof_tokens_s:.1f} tok/s",
            f"{one.read_s * 1e3:.1f} + {one.exchange_s * 1e3:.1f} ms",
            f"{one.expected_tokens_s:.1f} tok/s",
        )
        for one in figures.decode
    ]
    columns = ("serial decode", "read by a rank", "roof", "", "reading + exchanges", "estimate")
    yield from _table(columns, rows)


def _disk(figures: Figures) -> str:
    disk = figures.disk
    said = [f"model {_decimal(disk.model_bytes)}"]
    said += [f"drafter {_decimal(disk.drafter_bytes)}"] if disk.drafter_bytes else []
    if disk.prefix_bytes:
        said.append(f"prefix cache {_gib(disk.prefix_bytes)} a rank, for {_count(disk.prefix_tokens)} tokens")
    return " · ".join(said)


def _table(columns: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Words to the left, figures to the right; the first column is the label of the group."""
    lines = [columns, *((f"  {row[0]}", *row[1:]) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  ".join((line[0].ljust(max(widths[0], LABEL)), *cells)).rstrip()


def _count(n: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if n >= size:
            return f"{n / size:,.{3 if n < 1e12 and unit == 'B' else 1}f} {unit}"
    return f"{n:,.0f}"


def _decimal(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes:,.0f} B"


def _binary(nbytes: float) -> str:
    return _gib(nbytes) if nbytes >= GIB else f"{nbytes / MIB:,.2f} MiB"


def _gib(nbytes: float) -> str:
    return f"{nbytes / GIB:,.2f} GiB"
