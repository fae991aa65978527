from __future__ import annotations

import pytest

from optpass.errors import ConfigError
from optpass.options import Options, describe_options

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPTPASS_DUMP", "OPTPASS_BISECT_LIMIT", "OPTPASS_VERIFY"):
        monkeypatch.delenv(name, raising=False)


def test_defaults():
    assert Options.parse() == Options() == Options.parse(None, {})
    assert (Options().mode, Options().parity, Options().verify) == ("default", "fast", "meta")


def test_mode_is_an_option_as_well():
    assert Options.parse("reduce-overhead") == Options.parse(options={"mode": "reduce-overhead"})
    assert Options.parse("max-autotune", {"mode": "max-autotune"}).mode == "max-autotune"
    with pytest.raises(ConfigError, match="contradict"):
        Options.parse("default", {"mode": "max-autotune"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"party": "eager"}, "unknown option 'party'; did you mean 'parity'"),
        ({"zzz": 1}, "valid options: mode, parity"),
        ({"parity": "eagr"}, "did you mean 'eager'"),
        ({"parity": None}, "one of 'fast', 'eager'"),
        ({"cache": 1}, "True or False"),
        ({"bisect_limit": -1}, "0 or more"),
        ({"bisect_limit": True}, "0 or more"),
        ({"bisect_limit": 1.5}, "0 or more"),
        ({"disable": "canonicalise"}, "a list or tuple"),
        ({"disable": [1]}, "a list or tuple"),
        ({"dump": 3}, "path"),
        ({"dump": ""}, "path"),
        ({"mode": "max-autotne"}, "did you mean 'max-autotune'"),
    ],
)
def test_errors_name_the_option_and_what_is_valid(options, message):
    with pytest.raises(ConfigError) as error:
        Options.parse(options=options)
    assert message in str(error.value) and next(iter(options)) in str(error.value)


def test_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OPTPASS_DUMP", str(tmp_path))
    monkeypatch.setenv("OPTPASS_BISECT_LIMIT", "7")
    monkeypatch.setenv("OPTPASS_VERIFY", "numeric")
    options = Options.parse()
    assert (options.dump, options.bisect_limit, options.verify) == (str(tmp_path), 7, "numeric")
    assert Options.parse(options={"verify": "off", "bisect_limit": None}).verify == "off"
    monkeypatch.setenv("OPTPASS_VERIFY", "numerical")
    with pytest.raises(ConfigError, match="environment variable OPTPASS_VERIFY"):
        Options.parse()


def test_values_are_normal_and_comparable(tmp_path):
    a = Options.parse(options={"disable": ["b", "a", "b"], "dump": tmp_path})
    assert a.disable == ("a", "b") and a.dump == str(tmp_path)
    assert a == Options.parse(options={"disable": ("a", "b"), "dump": str(tmp_path)})
    assert hash(a)


def test_fingerprint_holds_what_changes_code():
    base = Options.parse().fingerprint()
    assert base == Options.parse(options={"dump": "x", "report": True, "cache": False}).fingerprint()
    for options in ({"parity": "eager"}, {"disable": ["a"]}, {"bisect_limit": 3}, {"mode": "max-autotune"}):
        assert Options.parse(options=options).fingerprint() != base


def test_the_page_of_options_is_up_to_date(request):
    page = request.config.rootpath / "docs" / "options.md"
    assert page.read_text(encoding="utf-8") == describe_options(), (
        "write the text of optpass.options.describe_options() to docs/options.md"
    )
