"""Every public function of the swept namespaces is exported and compared, or listed with the reason why not.

By default every third runs once, the rest with the slow tests, and a seeded sample of the crossing; all of the crossing
is `make sweeps`.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.export.sweeps.crossing import first, run, run_all, shuffled
from tests.export.sweeps.namespaces import NAMESPACES

SUBJECTS = [(n, name, case) for n in NAMESPACES for name, case in n.cases.items()]
REFUSED = [(n, name, case) for n in NAMESPACES for name, case in n.refused.items()]
ELSEWHERE = [(n, name, case) for n in NAMESPACES for name, case in n.elsewhere.items()]
# JAX and NumPy warn of the edge values that the sweeps are about.
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning", "ignore::DeprecationWarning")
#: How many functions of the sample are crossed in a default run, and in how many cells each.
SAMPLE, CELLS = 60, 3


def identity(subject):
    return f"{subject[0].name}.{subject[1]}" if isinstance(subject, tuple) else None


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.name)
def test_every_public_name_has_a_case_or_a_reason(namespace):
    known = [*namespace.cases, *namespace.reasons, *namespace.refused, *namespace.elsewhere]
    assert len(known) == len(set(known)), "a name stands twice"
    missing, gone = sorted({*namespace.names} - {*known}), sorted({*known} - {*namespace.names})
    assert not missing, f"{namespace.name} has {missing}: add a case, or a reason for having none, to its table"
    assert not gone, f"{namespace.name} has no {gone}: take them out of its table"
    assert all(namespace.reasons.values())


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.name)
def test_the_share_that_is_exported(namespace, record_property):
    record_property("sweep", (namespace.name, "refused", len(namespace.refused)))
    assert namespace.share >= namespace.target


@quiet
@pytest.mark.sampled(8)
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_function(subject, record_property):
    namespace = subject[0]
    outcome = outcome_of(*subject)
    assert outcome.status == "exported", f"{outcome.status}: {outcome.why}"
    record_property("sweep", (namespace.name, "exported", 1))


@quiet
@pytest.mark.parametrize("subject", REFUSED, ids=identity)
def test_a_refusal(subject):
    """What is listed as refused is refused, by name and with a reason; what is not any more belongs among the cases."""
    assert outcome_of(*subject).status in ("refused", "not run")


@quiet
@pytest.mark.sampled(8)
@pytest.mark.parametrize("subject", ELSEWHERE, ids=identity)
def test_what_jax_itself_cannot_run_here(subject):
    assert outcome_of(*subject).status == "unaccepted"


def outcome_of(namespace, name, case):
    job = first(name, case, getattr(namespace.module, name))
    assert job is not None, "JAX accepts none of the dtypes: the case is wrong"
    return run([job])


def sampled():
    """Some cells of some functions, always the same ones."""
    generator = random.Random(0)
    return generator.sample(SUBJECTS, SAMPLE)


@quiet
@pytest.mark.sampled(2)
@pytest.mark.parametrize("subject", sampled(), ids=identity)
def test_sample_of_the_crossing(subject, record_property):
    namespace, name, case = subject
    jobs = list(itertools.islice(shuffled(name, case, getattr(namespace.module, name)), CELLS))
    for job, outcome in run_all(jobs):
        assert outcome.status in ("exported", "unaccepted"), f"{job.cell}: {outcome.status}: {outcome.why}"
    record_property("sweep", (namespace.name, "cells of the crossing", len(jobs)))
