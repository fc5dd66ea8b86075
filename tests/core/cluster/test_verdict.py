"""Whom rank 0 names, given what every rank sees."""

from __future__ import annotations

import pytest
from glmserve.cluster.faults import Report, verdict
from hypothesis import given
from hypothesis import strategies as st


def sees(*blames: int, error: str = "") -> Report:
    return Report(blames, "", error)


def astray(*blames: int, at: str, error: str = "") -> Report:
    return Report(blames, at, error, bool(error))


@pytest.mark.parametrize(
    ("reports", "ended", "guilty", "text"),
    [
        # Rank 3 saw the end of rank 1 and left, which rank 0 saw: but only rank 1 reported nothing.
        ({0: sees(3), 2: sees(), 3: sees(1)}, {1: "was killed by SIGKILL"}, (1,), "Rank 1 was killed by SIGKILL."),
        ({0: sees(), 2: sees(0)}, {1: "exited with 3"}, (1,), "Rank 1 exited with 3."),
        ({0: sees(1), 1: sees(2), 3: sees(2)}, {1: "exited with 1"}, (2,), "Rank 2 does not answer."),
        ({0: sees(1, error="Late."), 3: sees()}, {}, (1, 2), "Ranks 1, 2 do not answer (Late)."),
        # A chain: who waits for rank 3 is not to blame.
        (
            {0: sees(1, error="Rank 0 waited."), 1: sees(2), 2: sees(3), 3: sees()},
            {},
            (3,),
            "Rank 3 is waited for and waits for nobody (Rank 0 waited).",
        ),
        ({0: sees(1, error="Late."), 1: sees(1, error="no space left"), 2: sees(), 3: sees()}, {}, (1,), "Rank 1: no"),
        # Rank 0 was stopped for a while, and sees that the others have left.
        (
            {
                0: sees(1, error="Rank 1 closed its channel."),
                1: sees(0, error="Rank 1 waited for rank 0."),
                2: sees(0, error="Rank 2 waited for rank 0."),
                3: sees(0, error="Rank 3 waited for rank 0."),
            },
            {},
            (0,),
            "Rank 1 waited for rank 0.",
        ),
        # Out of step: rank 0 leads, and a rank that has not come that far is not to blame.
        (
            {0: astray(1, 2, at="a"), 1: sees(), 2: astray(1, at="b", error="Rank 1 makes a."), 3: sees()},
            {},
            (2,),
            "Rank 2 is out of step. Rank 1",
        ),
        (
            {0: astray(1, at="a", error="Rank 1 makes b."), 1: astray(2, at="b"), 2: astray(at="a"), 3: sees()},
            {},
            (1,),
            "Rank 1 is out of step. Rank 1 makes b.",
        ),
        (
            {0: sees(1), 1: astray(2, at="a"), 2: astray(1, at="b", error="Rank 1 makes a."), 3: astray(2, at="a")},
            {},
            (2,),
            "Rank 2 is out of step.",
        ),
        # The same exchange with another size.
        (
            {0: astray(1, at="a", error="Size."), 1: astray(0, at="a"), 2: astray(1, at="a"), 3: astray(0, 1, at="a")},
            {},
            (1,),
            "Size.",
        ),
    ],
)
def test_the_rank_at_fault_is_named(
    reports: dict[int, Report], ended: dict[int, str], guilty: tuple[int, ...], text: str
) -> None:
    error = verdict(4, reports, ended)
    assert error.ranks == guilty
    assert str(error).startswith(text)


ranks = st.integers(0, 3)


@st.composite
def reports_of(draw: st.DrawFn) -> Report:
    return Report(
        tuple(sorted(draw(st.sets(ranks)))), draw(st.sampled_from(["", "a", "b"])), draw(st.text()), draw(st.booleans())
    )


@given(st.dictionaries(ranks, reports_of()), st.sets(st.integers(1, 3)))
def test_a_rank_that_answers_and_that_nothing_speaks_against_is_never_named(
    reports: dict[int, Report], ended: set[int]
) -> None:
    reports.setdefault(0, Report((), "a"))
    error = verdict(4, reports, dict.fromkeys(ended, "exited with 1"))
    for rank in error.ranks:
        blamed = any(rank in report.blames for report in reports.values())
        contradicted = any(report.out_of_step for report in reports.values())
        assert rank not in reports or blamed or (contradicted and reports[rank].exchange)


@given(reports_of())
def test_a_report_is_read_as_it_was_written(report: Report) -> None:
    assert Report.unpack(report.pack()) == report
