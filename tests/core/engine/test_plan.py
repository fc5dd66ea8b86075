"""A plan survives the wire."""

import json

from glmserve.engine.plan import Rows, StepPlan
from hypothesis import given
from hypothesis import strategies as st

ids = st.lists(st.integers(0, 2**20), max_size=9).map(tuple)
rows = st.builds(
    Rows,
    sequence=st.integers(0, 99),
    start=st.integers(0, 2**20),
    tokens=ids,
    first_page=st.integers(0, 99),
    pages=ids,
    logits=st.integers(0, 9),
    chunk=st.booleans(),
)


@given(st.builds(StepPlan, step=st.integers(0, 2**40), rows=st.lists(rows, max_size=4).map(tuple), ended=ids))
def test_a_plan_read_from_json_is_the_plan(plan: StepPlan) -> None:
    assert StepPlan.of(json.loads(json.dumps(plan.plain()))) == plan
