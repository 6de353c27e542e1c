"""Run jobs of the Space in the process of the test."""

from mdir_space.jobs.access import find_access
from mdir_space.jobs.family import FamilyJob
from mdir_space.jobs.question import family_question


def access_of(question, token=None):
    """Find the models of a question as the server does."""
    return find_access(question, token, allow_local=False, may_sign_in=False, may_lack=True)


def family(name, index, token=None, n_bytes=None):
    """Run the job for one model."""
    question = family_question(name)
    access = access_of(question, token)
    return FamilyJob(access=access, question=question, index=index, n_bytes=n_bytes).run(lambda event: None)
