"""The command line of the benchmark: what it takes and what it refuses, in one line."""

import argparse

import pytest

from s3verbs.bench.options import add_arguments, model_of


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_defaults_are_the_published_model_and_contexts() -> None:
    options = parsed()
    assert model_of(options).name == "Llama-3.1-8B"
    assert options.contexts[0] == 1024
    assert options.contexts[-1] == 235 * 1024
    assert (options.transports, options.memory) == (["http", "rdma"], 0.25)


def test_contexts_come_in_order_and_once() -> None:
    assert parsed("--contexts", "8K,1K,8192,5").contexts == [5, 1024, 8192]


def test_a_type_changes_the_size_of_a_preset() -> None:
    assert model_of(parsed("--model", "Llama-3.1-405B", "--dtype", "fp8")).bytes_per_token() == 126 * 2 * 8 * 128


def test_a_model_can_be_given_by_its_numbers() -> None:
    options = parsed("--layers", "2", "--kv-heads", "4", "--head-dim", "8", "--dtype", "fp8")
    assert model_of(options).bytes_per_token() == 2 * 2 * 4 * 8
    with pytest.raises(ValueError, match="give --model, or all of"):
        model_of(parsed("--layers", "2"))


@pytest.mark.parametrize(
    ("text", "memory"), [("8GiB", 8 << 30), ("512M", 512 << 20), ("100", 100), ("50%", 0.5), ("100%", 1.0)]
)
def test_memory_is_a_size_or_a_share(text: str, memory: float) -> None:
    assert parsed("--memory", text).memory == memory


def test_parameters_of_the_plugin_are_for_one_transport_or_each() -> None:
    options = parsed("--nixl", "http:crtMinLimit=1", "--nixl", "ca_bundle=/a=b")
    assert options.nixl == [("http", "crtMinLimit", "1"), ("", "ca_bundle", "/a=b")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "GPT"], "is no model known here"),
        (["--contexts", "1K,x"], "'x': must be a number of tokens"),
        (["--transports", "tcp"], "must be http, rdma or http,rdma"),
        (["--memory", "0%"], "must be a size such as 8GiB"),
        (["--memory", "lots"], "must be a size such as 8GiB"),
        (["--repeat", "0"], "must be a whole number of at least 1"),
        (["--recompute", "soon"], "must be MS"),
        (["--nixl", "x"], "must be NAME=VALUE"),
        (["--serve", "x"], "a setting of s3verbs serve"),
        (["--dtype", "int3"], "must be one of fp16"),
        (["--timeout", "0"], "must be seconds, more than 0"),
        (["--timeout", "nan"], "must be seconds, more than 0"),
        (["--tp", "x"], "'x': must be a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parsed(*arguments)
    assert left.value.code == 2
    assert said in capsys.readouterr().err
