"""URLs are shown without credentials, and still work."""

from __future__ import annotations

import pytest

from ratchet.tracking.urls import mlflow_page, within_page, without_logins


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@there:5000/a", "http://there:5000/a"),
        ("tracking at http://me:sec@ret@there failed", "tracking at http://there failed"),
        (
            "postgresql://me:s:e@c@there/db and s3://you:x@here",
            "postgresql://there/db and s3://here",
        ),
        ("http://there/a@b?c=d@e", "http://there/a@b?c=d@e"),
        ("http://there?c=d@e", "http://there?c=d@e"),
    ],
)
def test_urls_are_shown_without_credentials(text, shown):
    assert without_logins(text) == shown


def test_query_parameters_of_a_page_follow_the_path_within_it():
    page = "http://there/#/experiments/1/runs/2"
    assert within_page(page, "artifacts/a.html") == f"{page}/artifacts/a.html"
    asked = within_page(f"{page}?workflowType=machine_learning", "artifacts/a.html")
    assert asked == f"{page}/artifacts/a.html?workflowType=machine_learning"


def test_mlflow_pages_open_in_the_view_for_model_training():
    page = "http://127.0.0.1:5000/#/experiments?workflowType=machine_learning"
    assert mlflow_page("http://me:secret@127.0.0.1:5000/") == page
    assert mlflow_page("http://a", "models") == "http://a/#/models?workflowType=machine_learning"
