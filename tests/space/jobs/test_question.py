import pytest

from mdir_space.jobs.question import (
    FamilyQuestion,
    PairQuestion,
    RefusedError,
    SurveyQuestion,
    is_collection,
    pair_question,
    parse_question,
    shortened,
    split_names,
    survey_question,
)


@pytest.mark.parametrize(
    ("first", "second", "which"), [("", "c/d", "first"), ("a/b", None, "second"), (" ", "", "first")]
)
def test_a_name_that_is_missing_is_named(first, second, which):
    with pytest.raises(RefusedError, match=f"The {which} model is not named"):
        pair_question(first, second)


def test_a_very_long_name_is_refused_in_a_short_message():
    with pytest.raises(RefusedError, match=r"10,000 characters") as caught:
        pair_question("x" * 10_000, "c/d")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("level", ["everything", None, 3, "<b>", "x" * 5000])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(RefusedError, match="is unknown") as caught:
        pair_question("a/b", "c/d", level)
    assert len(caught.value.message) < 250


@pytest.mark.parametrize("alpha", ["0", "1", "-0.1", "2", "nan", "inf", "much", "1e-400", "9" * 5000, None])
def test_an_invalid_alpha_is_refused(alpha):
    with pytest.raises(RefusedError, match="Alpha is") as caught:
        pair_question("a/b", "c/d", alpha=alpha)
    assert len(caught.value.message) < 300


def test_a_text_is_shortened_in_the_middle():
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcde", 5) == "abcde"
    assert len(shortened("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("owner/a", ("owner/a",)),
        (" owner/a  owner/b ", ("owner/a", "owner/b")),
        ("owner/a, owner/b\nowner/c", ("owner/a", "owner/b", "owner/c")),
        ("owner/a vs owner/b@v1.0", ("owner/a", "owner/b@v1.0")),
        ("https://huggingface.co/o/a https://huggingface.co/o/b/tree/main", ("https://huggingface.co/o/a", "https://huggingface.co/o/b/tree/main")),
        ("gpt2 VS distilgpt2", ("gpt2", "distilgpt2")),
        ("- owner/a\n- owner/a", ("owner/a",)),
        ("what is my model", ("what is my model",)),
        ('<img src=x onerror="alert(1)">/b', ('<img src=x onerror="alert(1)">/b',)),
        (" ", ()),
    ],
)  # fmt: skip
def test_lists_are_split_into_names_and_other_text_stays_whole(text, names):
    assert split_names(text) == names


def test_a_path_with_blanks_is_one_name_if_paths_are_allowed():
    assert split_names("/my models/a b", allow_local=True) == ("/my models/a b",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("https://huggingface.co/collections/owner/some-0123456789abcdef01234567", True),
        ("huggingface.co/collections/owner/some-0123456789abcdef01234567", True),
        ("owner/some-0123456789abcdef01234567", True),
        ("owner/some-model", False),
        ("https://huggingface.co/owner/some-model", False),
    ],
)
def test_a_collection_is_known_by_its_address_or_slug(name, said):
    assert is_collection(name) is said


@pytest.mark.parametrize(
    "text", ["owner/a owner/b owner/c", "owner/a, owner/b\nowner/c", "owner/a vs owner/b vs owner/c"]
)
def test_a_survey_takes_the_text_of_a_field(text):
    assert survey_question(text).names == ("owner/a", "owner/b", "owner/c")
    assert survey_question("Qwen").names == ("Qwen",)
    with pytest.raises(RefusedError, match="No model is named"):
        survey_question(" ")


def test_more_models_than_a_survey_takes_are_refused():
    with pytest.raises(RefusedError, match="at most 20 here"):
        survey_question([f"owner/model-{k}" for k in range(21)])


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("owner/a", "", FamilyQuestion),
        ("", "owner/a", FamilyQuestion),
        ("owner/a", "owner/b", PairQuestion),
        ("owner/a owner/b", "", PairQuestion),
        ("owner/a owner/b", "owner/c", SurveyQuestion),
        ("owner/some-0123456789abcdef01234567", "", SurveyQuestion),
    ],
)
def test_the_number_of_names_decides_the_question(first, second, kind):
    assert isinstance(parse_question(first, second, "auto", "1e-10"), kind)
