"""Settings: where they come from, which wins, and what a wrong one is told."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway import config
from s3verbs.gateway.config import FIELDS, ConfigError, load, render
from s3verbs.gateway.setting_types import Address, InitialBucket
from s3verbs.storage.model import Durability


def text(tmp_path: Path, toml: str) -> Path:
    file = tmp_path / "s3verbs.toml"
    file.write_text(toml)
    return file


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = text(tmp_path, "workers = 2\nregion = 'eu-west-1'\nbody_timeout = 7\n")
    loaded = load(file, {"S3VERBS_WORKERS": "3", "S3VERBS_REGION": "eu-west-2"}, {"workers": "4"})
    assert (loaded.settings.workers, loaded.settings.region, loaded.settings.body_timeout) == (4, "eu-west-2", 7.0)
    assert loaded.settings.header_timeout == 30.0
    assert [loaded.sources[name] for name in ("workers", "region", "body_timeout", "header_timeout")] == [
        "--workers",
        "S3VERBS_REGION",
        str(file),
        "default",
    ]


def test_lists_come_from_every_source(tmp_path: Path) -> None:
    expected = (Address("127.0.0.1", 9000), Address("::1", 9001))
    listen = ["127.0.0.1:9000", "[::1]:9001"]
    assert load(text(tmp_path, f"listen = {listen}"), {}, {}).settings.listen == expected
    assert load(None, {"S3VERBS_LISTEN": "127.0.0.1:9000, [::1]:9001"}, {}).settings.listen == expected
    assert load(None, {}, {"listen": listen}).settings.listen == expected


def test_the_rdma_settings_may_stand_in_a_table(tmp_path: Path) -> None:
    file = text(tmp_path, '[rdma]\nmode = "required"\ndevices = ["mlx5_0:1"]\ndc_key = 7\nsocket = "off"\n')
    found = load(file, {}, {}).settings
    assert (found.rdma, found.rdma_devices, found.rdma_dc_key, found.socket) == ("required", ("mlx5_0:1",), 7, "off")
    assert load(text(tmp_path, 'rdma = "off"'), {}, {}).settings.rdma == "off"
    with pytest.raises(ConfigError, match="rdma_device: unknown setting"):
        load(text(tmp_path, '[rdma]\ndevice = "mlx5_0"'), {}, {})


def test_buckets_name_their_durability() -> None:
    assert load(None, {}, {"buckets": ["kvcache:relaxed", "logs"]}).settings.buckets == (
        InitialBucket("kvcache", Durability.RELAXED),
        InitialBucket("logs", Durability.STRICT),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", "0"),
        ("workers", "two"),
        ("workers", 1.5),
        ("workers", True),
        ("listen", "9000"),
        ("listen", "host:70000"),
        ("listen", ":9000"),
        ("listen", "::1:9000"),
        ("metrics_listen", "on"),
        ("enforce_region", "maybe"),
        ("region", "US East"),
        ("domains", "s3.example.com:9000"),
        ("buckets", "UPPER"),
        ("buckets", "kvcache:fast"),
        ("body_timeout", "-1"),
        ("body_timeout", "soon"),
        ("buffer_pool", "1KiB"),
        ("buffer_pool", "64 MB"),
        ("map_bytes", "1.5GiB"),
        ("stale_upload_days", "-1"),
        ("trusted_proxies", "10.0.0.0/40"),
        ("rdma", "on"),
        ("rdma_devices", "mlx5_0:one"),
        ("rdma_devices", "mlx5_0:0"),
        ("rdma_dc_key", "0x1ffffffff"),
        ("rdma_allowed_peers", "10.0.0.0/40"),
        ("rdma_pool_bytes", "1MiB"),
        ("rdma_transfer_timeout", "0"),
        ("socket", "relative/path"),
        ("root_access_key", "a b"),
        ("access_log", ""),
        ("data", ""),
    ],
)
def test_a_wrong_setting_names_itself_its_value_and_what_is_allowed(name: str, value: Any) -> None:
    many = FIELDS[name].metadata["many"]
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {name: [value] if many else value})
    message = str(caught.value)
    assert message.startswith(f"{name}: {value!r} (from {config.flag_of(name)}); allowed: ")
    assert FIELDS[name].metadata["allowed"] in message


def test_a_wrong_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"S3VERBS_ROOT_SECRET_KEY": "hush"}, {})
    assert "hush" not in str(caught.value)
    assert "8 to 128" in str(caught.value)


def test_unknown_settings_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"wokers: unknown setting in .*; did you mean workers\?"):
        load(text(tmp_path, "wokers = 2"), {}, {})
    with pytest.raises(ConfigError, match=r"S3VERBS_LISTN: unknown setting .*; did you mean S3VERBS_LISTEN\?"):
        load(None, {"S3VERBS_LISTN": "x"}, {})


def test_the_variables_of_clients_on_the_same_machine_are_left_alone() -> None:
    """They are not settings, so the server starts; that one of them is not the server's DC key is said."""
    environment = {"S3VERBS_TRANSPORT": "samehost", "S3VERBS_DC_KEY": "0x1234", "S3VERBS_LOG": "debug"}
    loaded = load(None, environment, {})
    assert loaded.settings == load(None, {}, {}).settings
    said = config.render(loaded)
    assert "# S3VERBS_DC_KEY is set, for clients; it is no setting of the server" in said
    assert "0x1234" not in said
    with pytest.raises(ConfigError, match=r"S3VERBS_DC_KEYS: unknown setting"):
        load(None, {"S3VERBS_DC_KEYS": "0x1234"}, {})


def test_the_variables_that_clients_and_servers_share_mean_the_same_to_both() -> None:
    loaded = load(None, {"S3VERBS_SOCKET": "/run/gateway.sock", "S3VERBS_RDMA_DEVICES": "mlx5_0:1:3, mlx5_1"}, {})
    assert loaded.settings.socket == "/run/gateway.sock"
    assert loaded.settings.rdma_devices == ("mlx5_0:1:3", "mlx5_1")


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml", {}, {})
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(text(tmp_path, "workers = = 2"), {}, {})


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        ({}, "data:"),
        ({"data": ["/a", "/a"]}, "data: a directory is given twice"),
        ({"data": ["/a"], "tls_cert": "/c"}, "tls_key: is not set although tls_cert is"),
        ({"data": ["/a"], "root_secret_key": "long-enough"}, "root_access_key: is not set"),
        ({"data": ["/a"], "workers": "8", "buffer_pool": "16MiB"}, "buffer_pool: 16777216 is too small"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags: dict[str, Any], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, flags).settings.check()
    assert str(caught.value).startswith(start)


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    flags = {
        "data": ["/d1", '/d "2"'],
        "listen": ["[::1]:9000"],
        "metrics_listen": "off",
        "buckets": ["kvcache:relaxed"],
        "trusted_proxies": ["10.0.0.0/8", "::1"],
        "map_bytes": "16MiB",
        "enforce_region": "true",
        "domains": ["s3.example.com"],
    }
    loaded = load(None, {"S3VERBS_BODY_TIMEOUT": "1.5"}, flags)
    printed = render(loaded)
    assert "# S3VERBS_BODY_TIMEOUT" in printed
    assert load(text(tmp_path, printed), {}, {}).settings == loaded.settings


def test_secrets_are_not_printed() -> None:
    loaded = load(None, {"S3VERBS_ROOT_ACCESS_KEY": "AKIA", "S3VERBS_ROOT_SECRET_KEY": "top-secret-value"}, {})
    assert "top-secret-value" not in render(loaded)


@given(st.sampled_from(["", "B", "KiB", "MiB", "GiB"]), st.integers(4 << 20, 1 << 30))
def test_sizes_in_any_unit_are_bytes(unit: str, size: int) -> None:
    factor = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
    count = max(size // factor, -(-(4 << 20) // factor))
    assert load(None, {}, {"buffer_pool": f"{count}{unit}"}).settings.buffer_pool == count * factor


@given(st.text(max_size=20))
def test_no_text_crashes_a_parser(value: str) -> None:
    for name, item in FIELDS.items():
        with contextlib.suppress(ConfigError):
            load(None, {}, {name: [value] if item.metadata["many"] else value})
