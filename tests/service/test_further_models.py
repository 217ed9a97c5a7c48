"""Base models that a service creates on first request."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from ratchet.errors import ParameterError
from ratchet.service.serving import find_base_model, further_models
from ratchet.service.settings import BASE_MODEL, SMALL_MODEL, ServiceSettings

ASKED = [{"role": "user", "content": "?"}]


@pytest.fixture
def small(tmp_path):
    """Create the small model's folder, once allowed."""

    class Small:
        made = 0
        may = threading.Event()

        def __call__(self):
            assert self.may.wait(20)
            self.made += 1
            folder = tmp_path / "small-of-this-version"
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text("{}")
            return folder

    return Small()


def test_it_is_created_once_while_other_requests_are_served(make_service, small):
    with make_service(further={SMALL_MODEL: small}).serving() as service:
        client = service.client()
        assert [model.id for model in client.models.list()] == [BASE_MODEL]
        chat = client.chat.completions.create
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(chat, model=SMALL_MODEL, messages=ASKED)
            assert chat(model=BASE_MODEL, messages=ASKED).model == BASE_MODEL
            assert not waits.done()
            small.may.set()
            assert waits.result(20).model == SMALL_MODEL
        chat(model=SMALL_MODEL, messages=ASKED)
        assert small.made == 1
        assert {model.id for model in client.models.list()} == {BASE_MODEL, SMALL_MODEL}
        with pytest.raises(openai.PermissionDeniedError, match="is a base model"):
            client.models.delete(SMALL_MODEL)
        with pytest.raises(openai.NotFoundError):
            chat(model="another", messages=ASKED)


def test_jobs_start_from_it_and_their_models_outlive_the_service(
    make_service, small, upload, wait_for
):
    small.may.set()
    service = make_service(further={SMALL_MODEL: small})
    with service.serving():
        client = service.client()
        job = client.fine_tuning.jobs.create(model=SMALL_MODEL, training_file=upload(client))
        trained = wait_for(client, job.id, "succeeded").fine_tuned_model
        assert trained.startswith(f"ft:{SMALL_MODEL}:")
        base = service.service.models.base_of(trained)
        assert (base.id, base.folder.name) == (SMALL_MODEL, "small-of-this-version")
        assert service.service.models.base_of(BASE_MODEL).id == BASE_MODEL
    with make_service(further={SMALL_MODEL: small}).serving() as again:
        answer = again.client().chat.completions.create(model=trained, messages=ASKED)
        assert answer.model == trained
        assert again.service.models.must_be_created(SMALL_MODEL)  # not requested yet


def test_only_services_that_create_their_base_model_create_others(tmp_path):
    assert list(further_models(ServiceSettings(home=tmp_path))) == [SMALL_MODEL]
    assert list(further_models(ServiceSettings(home=tmp_path, model=SMALL_MODEL))) == [BASE_MODEL]
    folder = tmp_path / "mine"
    folder.mkdir()
    own = ServiceSettings(home=tmp_path, model=str(folder))
    assert find_base_model(own, lambda done, steps: None).id == "mine"
    assert further_models(own) == {}


def test_a_model_is_served_under_a_chosen_name(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    named = ServiceSettings(home=tmp_path, model=str(folder), name="org/model-1.5")
    base = find_base_model(named, lambda done, steps: None)
    assert (base.id, base.root, base.folder) == ("org/model-1.5", "org/model-1.5", folder)
    for name in ("org/model/more", "a:b", "", "/model"):
        with pytest.raises(ParameterError, match=r"name: got .* expected letters"):
            ServiceSettings(home=tmp_path, name=name)
